/**
 * A WebSocket client (RFC 6455) over a socket of Node.
 *
 * The built-in `WebSocket` of Node cannot send headers or trust a private CA, and exists from Node 22 on only. This one
 * is as much of the standard as the protocol needs: messages, pings, close, no extensions.
 *
 * @module
 */
import { createHash, randomBytes } from "node:crypto";
import type { Socket } from "node:net";
import type { KeepPart } from "../binary.js";
import { BinaryReader, isBinary } from "../binary.js";
import { UnauthorizedError, UnreachableError } from "../errors.js";
import type { Link, Receiver } from "../link.js";
import { CLOSE_TIMEOUT_MS, MAX_MESSAGE_LEN } from "../link.js";
import type { Outgoing } from "../outgoing.js";
import { soon } from "../timing.js";
import type { Encoded } from "./encode.js";
import { encode } from "./encode.js";
import { ReceiveBuffer, deliverBytes } from "./receive-buffer.js";

const TEXT = 1;
const BINARY = 2;
const CLOSE = 8;
const PING = 9;
const PONG = 10;

const MAX_HEAD_LEN = 64 << 10;
const MAX_FRAME_HEAD_LEN = 14;
/** The longest reason for a refusal to read, and how long it may take to arrive: without it, the status has to do. */
const MAX_REASON_LEN = 1024;
const REASON_TIMEOUT_MS = 1000;
const ACCEPT_SUFFIX = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/** Where a WebSocket is, and who asks for it. */
export interface Upgrade {
  /** For messages to people. */
  target: string;
  /** The host and port of the `Host` header. */
  host: string;
  /** Path and query. */
  path: string;
  token: string | undefined;
  /** Further headers. */
  headers: Readonly<Record<string, string>>;
}

/** A WebSocket connection. */
export class WebSocketLink implements Link {
  readonly hasServerPings = true;
  readonly #socket: Socket;
  readonly #received: ReceiveBuffer;
  /** The pieces of a message that arrives in several frames. */
  #fragments: Buffer[] = [];
  #fragmentsLen = 0;
  /** Reads binary messages, if there may be any. */
  #binary: BinaryReader | undefined;
  #queued: Frame[] = [];
  /** The payload of the newest ping that is not answered. */
  #pong: Buffer | undefined;
  #receiver: Receiver | undefined;
  #endReason: string | undefined;
  readonly #ended: Promise<void>;
  #onEnded!: () => void;

  private constructor(socket: Socket, received: ReceiveBuffer) {
    this.#socket = socket;
    this.#received = received;
    this.#ended = new Promise((resolve) => (this.#onEnded = resolve));
    socket.on("drain", () => {
      this.#sendPong();
      this.#receiver?.onDrain();
    });
  }

  /**
   * Upgrades a connected socket; `received` is where its bytes arrive, and `onBytes` is told to call what it gets
   * whenever there are more.
   */
  static upgrade(socket: Socket, received: ReceiveBuffer, upgrade: Upgrade, onBytes: (callback: () => void) => void): Promise<WebSocketLink> {
    const key = randomBytes(16).toString("base64");
    const accept = createHash("sha1").update(key + ACCEPT_SUFFIX).digest("base64");
    return new Promise((resolve, reject) => {
      const link = new WebSocketLink(socket, received);
      let isOpen = false;
      let waiting: { head: string; start: number; timer: NodeJS.Timeout } | undefined;
      const refuse = (head: string, start: number): void => {
        clearTimeout(waiting?.timer);
        waiting = undefined;
        const body = received.bytes.subarray(start, Math.min(received.end, start + refusalLen(head))).toString("utf8");
        reject(checkResponse(head, accept, upgrade, reasonIn(body)));
        socket.destroy();
      };
      const onEnd = (reason: string): void => {
        if (waiting) refuse(waiting.head, waiting.start);
        else if (isOpen) link.#onSocketEnd(reason);
        else reject(new UnreachableError(`cannot connect to ${upgrade.target}: ${reason}`));
      };
      socket.on("error", (error) => onEnd(error.message));
      socket.on("close", () => onEnd("the server closed the connection"));
      socket.on("end", () => onEnd("the server closed the connection"));
      onBytes(() => {
        if (isOpen) return link.#onBytes();
        const end = received.bytes.subarray(0, received.end).indexOf("\r\n\r\n", received.start, "latin1");
        if (end < 0) {
          if (received.end - received.start > MAX_HEAD_LEN) socket.destroy(new Error("the response has no end"));
          return;
        }
        const head = received.bytes.toString("latin1", received.start, end);
        const missing = refusalLen(head) - (received.end - end - 4);
        if (missing > 0) {
          // What has arrived is enough if the rest does not.
          waiting ??= { head, start: end + 4, timer: setTimeout(() => refuse(head, end + 4), REASON_TIMEOUT_MS) };
          return;
        }
        const error = checkResponse(head, accept, upgrade);
        if (error) return refuse(head, end + 4);
        received.start = end + 4;
        isOpen = true;
        resolve(link);
      });
      socket.write(request(upgrade, key));
    });
  }

  acceptBinary(): void {
    this.#binary = new BinaryReader();
  }

  start(receiver: Receiver): void {
    this.#receiver = receiver;
    if (this.#received.end > this.#received.start) this.#onBytes();
    if (this.#endReason !== undefined) receiver.onEnd(this.#endReason);
  }

  #onSocketEnd(reason: string): void {
    this.#endReason ??= reason;
    this.#onEnded();
    this.#receiver?.onEnd(this.#endReason);
  }

  #onBytes(): void {
    this.#parse();
    this.#received.settle();
  }

  #parse(): void {
    const received = this.#received;
    while (this.#receiver && this.#endReason === undefined) {
      const { bytes, start } = received;
      const available = received.end - start;
      if (available < 2) break;
      const [first, second] = [bytes[start]!, bytes[start + 1]!];
      let [headLen, length] = [2, second & 0x7f];
      if (length === 126) {
        if (available < 4) break;
        [headLen, length] = [4, bytes.readUInt16BE(start + 2)];
      } else if (length === 127) {
        if (available < 10) break;
        [headLen, length] = [10, Number(bytes.readBigUInt64BE(start + 2))];
      }
      if (second & 0x80 || first & 0x70) return this.#violation("a frame is masked or has reserved bits");
      if (length > MAX_MESSAGE_LEN) return this.#violation(`a message has ${length} bytes`);
      if (available < headLen + length) {
        received.wanted = headLen + length - available;
        break;
      }
      received.start = start + headLen + length;
      this.#onFrame(first, start + headLen, start + headLen + length);
    }
  }

  #onFrame(first: number, start: number, end: number): void {
    const [isFinal, opcode] = [(first & 0x80) !== 0, first & 0x0f];
    const { bytes } = this.#received;
    switch (opcode) {
      case TEXT:
      case BINARY:
        if (isFinal) return this.#deliver(bytes, start, end, this.#received.keep);
        this.#fragments = [Buffer.from(bytes.subarray(start, end))];
        this.#fragmentsLen = end - start;
        return;
      case 0: {
        this.#fragments.push(Buffer.from(bytes.subarray(start, end)));
        this.#fragmentsLen += end - start;
        if (this.#fragmentsLen > MAX_MESSAGE_LEN) return this.#violation(`a message has ${this.#fragmentsLen} bytes or more`);
        if (!isFinal) return;
        const whole = Buffer.concat(this.#fragments);
        this.#fragments = [];
        return this.#deliver(whole, 0, whole.length);
      }
      case PING:
        this.#pong = Buffer.from(bytes.subarray(start, end));
        soon(() => {
          if (!this.isFull) this.#sendPong();
        });
        return;
      case PONG:
        return this.#receiver!.onPong();
      case CLOSE: {
        const code = end - start >= 2 ? bytes.readUInt16BE(start) : 1000;
        const reason = bytes.toString("utf8", Math.min(start + 2, end), end);
        this.#queue({ opcode: CLOSE, payload: Buffer.from(bytes.subarray(start, Math.min(start + 2, end))) });
        this.#flush();
        this.#socket.end();
        return this.#onSocketEnd(`the server closed the connection${reason === "" ? ` (code ${code})` : `: ${reason}`}`);
      }
      default:
        return this.#violation(`a frame has the opcode ${opcode}`);
    }
  }

  #deliver(bytes: Buffer, start: number, end: number, keep?: KeepPart): void {
    if (this.#binary && isBinary(bytes, start, end)) this.#binary.deliver(bytes, start, end, this.#receiver!, keep);
    else deliverBytes(bytes, start, end, this.#receiver!);
  }

  #violation(what: string): void {
    this.#socket.destroy();
    this.#onSocketEnd(`the server sent an invalid frame: ${what}`);
  }

  get isFull(): boolean {
    return this.#socket.writableNeedDrain;
  }

  /** Answers the newest ping, and with it those before. */
  #sendPong(): void {
    if (this.#pong) this.#queue({ opcode: PONG, payload: this.#pong });
    this.#pong = undefined;
  }

  send(message: Outgoing): void {
    this.#queue({ message });
  }

  ping(): void {
    this.#queue({ opcode: PING, payload: Buffer.alloc(0) });
  }

  #queue(frame: Frame): void {
    this.#queued.push(frame);
    if (this.#queued.length === 1) queueMicrotask(() => this.#flush());
  }

  #flush(): void {
    const queued = this.#queued;
    this.#queued = [];
    if (queued.length > 0 && this.#socket.writable) this.#socket.write(encodeFrames(queued, this.#binary !== undefined));
  }

  async close(): Promise<void> {
    this.#queue({ opcode: CLOSE, payload: Buffer.from([0x03, 0xe8]) });
    this.#flush();
    const timer = setTimeout(() => this.destroy(), CLOSE_TIMEOUT_MS);
    await this.#ended;
    clearTimeout(timer);
    this.destroy();
  }

  destroy(): void {
    this.#socket.destroy();
  }
}

/** A message, or a control frame with its payload. */
type Frame = { readonly message: Outgoing } | { readonly opcode: number; readonly payload: Buffer };

function encodeFrame(frame: Frame, acceptsBinary: boolean): { opcode: number } & Pick<Encoded, "length" | "write"> {
  if ("message" in frame) {
    const message = encode(frame.message, acceptsBinary);
    return { opcode: message.isBinary ? BINARY : TEXT, length: message.length, write: (out, at) => message.write(out, at) };
  }
  const { opcode, payload } = frame;
  return { opcode, length: payload.length, write: (out, at) => at + payload.copy(out, at) };
}

/** Returns frames in one piece, masked as the standard requires of clients. */
function encodeFrames(queued: readonly Frame[], acceptsBinary: boolean): Buffer {
  const frames = queued.map((frame) => encodeFrame(frame, acceptsBinary));
  const out = Buffer.allocUnsafeSlow(frames.reduce((sum, { length }) => sum + length + MAX_FRAME_HEAD_LEN, 0));
  let at = 0;
  for (const { opcode, length, write } of frames) {
    out[at++] = 0x80 | opcode;
    if (length < 126) {
      out[at++] = 0x80 | length;
    } else if (length < 65536) {
      out[at++] = 0x80 | 126;
      at = out.writeUInt16BE(length, at);
    } else {
      out[at++] = 0x80 | 127;
      at = out.writeBigUInt64BE(BigInt(length), at);
    }
    at += nextKey().copy(out, at);
    write(out, at);
    mask(out, at, at + length, at - 4);
    at += length;
  }
  return out.subarray(0, at);
}

/** Random bytes for the next keys; asking for each alone takes longer than to mask a short message. */
let keys: Buffer = Buffer.alloc(0);
let usedKeys = 0;

function nextKey(): Buffer {
  if (usedKeys === keys.length) [keys, usedKeys] = [randomBytes(4096), 0];
  usedKeys += 4;
  return keys.subarray(usedKeys - 4, usedKeys);
}

/** Masks bytes with the four bytes at `keyAt`, a word at a time. */
function mask(bytes: Buffer, start: number, end: number, keyAt: number): void {
  const key = bytes.subarray(keyAt, keyAt + 4);
  let at = start;
  const byteAt = (index: number): void => {
    bytes[index]! ^= key[(index - start) & 3]!;
  };
  // `allocUnsafeSlow` begins on a word.
  for (; at < end && (at & 3) !== 0; at++) byteAt(at);
  const rotated = new Uint8Array(4);
  for (let index = 0; index < 4; index++) rotated[index] = key[(at - start + index) & 3]!;
  const word = new Uint32Array(rotated.buffer)[0]!;
  const words = new Uint32Array(bytes.buffer, 0, end >> 2);
  for (let index = at >> 2; index < end >> 2; index++) words[index]! ^= word;
  for (at = Math.max(at, end & ~3); at < end; at++) byteAt(at);
}

function request({ host, path, token, headers }: Upgrade, key: string): string {
  const authorization = token === undefined ? "" : `Authorization: Bearer ${token}\r\n`;
  const further = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`).join("");
  return `GET ${path} HTTP/1.1\r\nHost: ${host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: ${key}\r\nSec-WebSocket-Version: 13\r\n${authorization}${further}\r\n`;
}

function parseHead(head: string): { status: number; field: (name: string) => string | undefined } {
  const [statusLine = "", ...fields] = head.split("\r\n");
  const status = Number(/^HTTP\/1\.[01] (\d{3})/.exec(statusLine)?.[1]);
  const field = (name: string): string | undefined =>
    fields.find((line) => line.toLowerCase().startsWith(`${name}:`))?.slice(name.length + 1).trim();
  return { status, field };
}

/** Returns how many bytes of a response say in plain text why the server refuses; 0 if it does not say. */
function refusalLen(head: string): number {
  const { status, field } = parseHead(head);
  if (status === 101 || !field("content-type")?.startsWith("text/plain")) return 0;
  const length = field("content-length") ?? "";
  return /^\d+$/.test(length) ? Math.min(Number(length), MAX_REASON_LEN) : 0;
}

/** Returns the first line of a body, if it can be shown. */
function reasonIn(body: string): string | undefined {
  const line = body.split("\n", 1)[0]!.trim();
  // Neither what would move the cursor of a terminal, nor what is not UTF-8.
  return line === "" || /[\p{Cc}\ufffd]/u.test(line) ? undefined : line;
}

/** Returns what is wrong with the response to the upgrade; `said` is the reason in its body. */
function checkResponse(head: string, accept: string, { target, token }: Upgrade, said?: string): Error | undefined {
  const { status, field } = parseHead(head);
  if (status === 101) {
    if (field("sec-websocket-accept") === accept) return undefined;
    return new UnreachableError(`cannot connect to ${target}: the server accepted another WebSocket`);
  }
  if (status === 401 || status === 403) return new UnauthorizedError(target, status, token !== undefined, said);
  const hint = status === 426 ? "use `wss://`" : undefined;
  const why = said === undefined ? "" : `: ${said}`;
  const what = Number.isNaN(status) ? "this is not an HTTP server" : `the server answered with status ${status}${why}`;
  return new UnreachableError(`cannot connect to ${target}: ${what}`, { hint });
}
