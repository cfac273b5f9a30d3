/**
 * Reading binary messages, which carry bytes without base64: section 2.4 of the protocol.
 *
 * Start at {@link BinaryReader}. What the JSON of a message refers to is put into it by `attached.ts`.
 *
 * @module
 */
import { keptPart, toText } from "./bytes.js";
import { ProtocolError } from "./errors.js";
import type { Receiver } from "./link.js";
import { MESSAGE_HEAD_LEN } from "./outgoing.js";

/** What comes before a binary message between lines; its length in four bytes follows. */
export const LINE_MARK = 0;

/** The length of what comes before a binary message between lines. */
export const LINE_HEAD_LEN = 5;

const OUTPUT = 1;
const MESSAGE = 2;
const OUTPUT_HEAD_LEN = 24;

const HAS_INCARNATION = 1;
const HAS_SESSION = 2;

/** The streams by their numbers; a newer server may have others. */
const STREAMS = ["stdout", "stderr", "pty"] as const;
const UNKNOWN_STREAM = "unknown";

/** Returns whether a message is binary rather than JSON, which begins with white space or a printable character. */
export function isBinary(bytes: Uint8Array, start: number, end: number): boolean {
  const first = bytes[start]!;
  return start < end && first < 0x20 && !WHITE_SPACE.has(first);
}

const WHITE_SPACE: ReadonlySet<number> = new Set([0x09, 0x0a, 0x0d]);

/** Returns an unsigned integer of four bytes. */
export function uint32(bytes: Uint8Array, at: number): number {
  return ((bytes[at]! << 24) | (bytes[at + 1]! << 16) | (bytes[at + 2]! << 8) | bytes[at + 3]!) >>> 0;
}

/** Returns an unsigned integer of eight bytes; beyond 2^53 it is rounded, as in JSON. */
function uint64(bytes: Uint8Array, at: number): number {
  return uint32(bytes, at) * 2 ** 32 + uint32(bytes, at + 4);
}

function uint16(bytes: Uint8Array, at: number): number {
  return (bytes[at]! << 8) | bytes[at + 1]!;
}

/** Returns a part of a message that is kept beyond its delivery. */
export type KeepPart = (start: number, end: number) => Uint8Array;

/** Reads the binary messages of one connection. */
export class BinaryReader {
  readonly #ids = new IdCache();

  /** Delivers the message in a part of `bytes`; `keep` returns what the receiver may keep of them. */
  deliver(bytes: Uint8Array, start: number, end: number, receiver: Receiver, keep: KeepPart = (from, to) => keptPart(bytes, from, to)): void {
    try {
      if (bytes[start] === OUTPUT) this.#deliverOutput(bytes, start, end, receiver, keep);
      else if (bytes[start] === MESSAGE) deliverMessage(bytes, start, end, receiver, keep);
      else throw new ProtocolError(`no binary message begins with the byte ${bytes[start]}`);
    } catch (error) {
      if (!(error instanceof ProtocolError)) throw error;
      receiver.onMalformed(error);
    }
  }

  #deliverOutput(bytes: Uint8Array, start: number, end: number, receiver: Receiver, keep: KeepPart): void {
    if (end - start < OUTPUT_HEAD_LEN) throw tooShort(end - start);
    const flags = bytes[start + 2]!;
    const [processLen, sessionLen] = [uint16(bytes, start + 4), uint16(bytes, start + 6)];
    const number = uint64(bytes, start + 16);
    const incarnation = flags & HAS_INCARNATION ? number : undefined;
    const hasSession = (flags & HAS_SESSION) !== 0;
    if ((flags & ~(HAS_INCARNATION | HAS_SESSION)) !== 0 || bytes[start + 3] !== 0
      || (!hasSession && sessionLen !== 0) || (incarnation === undefined && number !== 0)) throw reserved();
    const sessionAt = start + OUTPUT_HEAD_LEN + processLen;
    const chunkAt = sessionAt + sessionLen;
    if (chunkAt > end) throw tooShort(end - start);
    const processId = this.#ids.decode(bytes, start + OUTPUT_HEAD_LEN, sessionAt);
    const sessionId = hasSession ? this.#ids.decode(bytes, sessionAt, chunkAt) : undefined;
    const stream = STREAMS[bytes[start + 1]!] ?? UNKNOWN_STREAM;
    const seq = uint64(bytes, start + 8);
    receiver.onOutput(processId, { type: "output", stream, seq, bytes: keep(chunkAt, end) }, incarnation, sessionId);
  }
}

function deliverMessage(bytes: Uint8Array, start: number, end: number, receiver: Receiver, keep: KeepPart): void {
  if (end - start < MESSAGE_HEAD_LEN) throw tooShort(end - start);
  if (bytes[start + 1] !== 0 || bytes[start + 2] !== 0 || bytes[start + 3] !== 0) throw reserved();
  const jsonAt = start + MESSAGE_HEAD_LEN;
  const attachedAt = jsonAt + uint32(bytes, start + 4);
  if (attachedAt > end) throw tooShort(end - start);
  receiver.onMessage(toText(bytes.subarray(jsonAt, attachedAt)), keep(attachedAt, end));
}

function tooShort(length: number): ProtocolError {
  return new ProtocolError(`a binary message ends after ${length} bytes, before its head, its ids or its JSON do`);
}

function reserved(): ProtocolError {
  return new ProtocolError("a reserved byte or an unknown flag of a binary message is not 0");
}

const strictDecoder = new TextDecoder("utf-8", { ignoreBOM: true, fatal: true });

/** How many ids are remembered: those of the processes that write at the same time. */
const MAX_IDS = 16;

/** Decodes ids, and those that have just been decoded without making another string. */
class IdCache {
  readonly #known: { readonly bytes: Uint8Array; readonly text: string }[] = [];
  #next = 0;

  decode(bytes: Uint8Array, start: number, end: number): string {
    for (const { bytes: known, text } of this.#known) if (isSame(known, bytes, start, end)) return text;
    const id = bytes.slice(start, end);
    let text: string;
    try {
      text = strictDecoder.decode(id);
    } catch {
      throw new ProtocolError("an id in a binary message is not UTF-8");
    }
    this.#known[this.#next] = { bytes: new Uint8Array(id), text };
    this.#next = (this.#next + 1) % MAX_IDS;
    return text;
  }
}

/** Returns whether a part of `bytes` is `known`; ids that a client has made differ at their ends. */
function isSame(known: Uint8Array, bytes: Uint8Array, start: number, end: number): boolean {
  if (known.length !== end - start) return false;
  for (let at = known.length - 1; at >= 0; at--) if (known[at] !== bytes[start + at]) return false;
  return true;
}
