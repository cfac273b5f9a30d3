/**
 * Decoding what the server sends about processes, and bytes.
 *
 * @module
 */
import { decodeBase64 } from "./bytes.js";
import { ProtocolError } from "./errors.js";
import type { ClosedEvent, Exit, ExitedEvent, GapEvent, OutputEvent, ReadBatch } from "./events.js";
import type { ProcessClosedParams, ProcessExitedParams, ProcessGapRange, ProcessReadResult } from "./protocol.js";

/** Returns whether a value is a JSON object. */
export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Returns a number that is an integer, or fails. */
export function integer(value: unknown, what: string): number {
  if (typeof value === "number" && Number.isInteger(value)) return value;
  throw new ProtocolError(`\`${what}\` is not an integer`);
}

/** Returns the incarnation that an answer or a notification names, if it names one. */
export function incarnationOf(params: { readonly incarnation?: unknown }): number | undefined {
  return params.incarnation == null ? undefined : integer(params.incarnation, "incarnation");
}

/** Returns a text, or fails. */
export function text(value: unknown, what: string): string {
  if (typeof value === "string") return value;
  throw new ProtocolError(`\`${what}\` is not a string`);
}

/** Returns bytes that arrived beside the message or as base64, or fails. */
export function bytesOf(value: unknown, what: string): Uint8Array {
  if (value instanceof Uint8Array) return value;
  const bytes = decodeBase64(text(value, what));
  if (bytes !== undefined) return bytes;
  throw new ProtocolError(`\`${what}\` is not base64`);
}

export function chunkEvent(chunk: { seq: number; stream: string; chunk: string }): OutputEvent {
  return {
    type: "output",
    stream: text(chunk.stream, "stream"),
    seq: integer(chunk.seq, "seq"),
    bytes: bytesOf(chunk.chunk, "chunk"),
  };
}

export function exitedEvent(note: ProcessExitedParams): ExitedEvent {
  return { type: "exited", seq: integer(note.seq, "seq"), exit: toExit(note) };
}

type Loose<T> = { [K in keyof T]?: T[K] | null | undefined };

/** Returns the exit that an answer or a notification describes. */
export function toExit(state: Loose<Pick<ProcessExitedParams, "exitCode" | "signal" | "cause" | "usage" | "sandboxDenied" | "networkDenied">>): Exit {
  const exitCode = integer(state.exitCode, "exitCode");
  return {
    ok: exitCode === 0 && state.signal == null,
    exitCode,
    signal: state.signal ?? undefined,
    cause: state.cause ?? undefined,
    usage: state.usage ?? undefined,
    sandboxDenied: state.sandboxDenied ?? false,
    networkDenied: state.networkDenied ?? [],
  };
}

export function closedEvent(note: Loose<Pick<ProcessClosedParams, "seq" | "produced" | "evictedBytes">>): ClosedEvent {
  const seq = integer(note.seq, "seq");
  return { type: "closed", seq, produced: note.produced ?? undefined, evictedBytes: note.evictedBytes ?? undefined };
}

export function gapEvent(gap: ProcessGapRange): GapEvent {
  const [fromSeq, toSeq] = [integer(gap.fromSeq, "fromSeq"), integer(gap.toSeq, "toSeq")];
  return { type: "gap", seq: toSeq, fromSeq, toSeq, bytes: gap.bytes ?? undefined, cause: gap.cause ?? undefined };
}

export function readBatch(reply: ProcessReadResult): ReadBatch {
  if (!Array.isArray(reply.chunks)) throw new ProtocolError("`chunks` is not an array");
  return {
    gap: reply.gap ? gapEvent(reply.gap) : undefined,
    chunks: reply.chunks.map(chunkEvent),
    nextSeq: integer(reply.nextSeq, "nextSeq"),
    // A server of the base dialect may know that it exited, and not how.
    exit: reply.exited ? toExit({ ...reply, exitCode: reply.exitCode ?? -1 }) : undefined,
    closed: reply.closed ? closedEvent({ ...reply, seq: 0 }) : undefined,
  };
}
