/**
 * Messages as lines, and binary messages between them, over a unix socket or the standard streams of a program.
 *
 * @module
 */
import type { Readable, Writable } from "node:stream";
import { BinaryReader, LINE_HEAD_LEN, LINE_MARK, isBinary, uint32 } from "../binary.js";
import type { Link, Receiver } from "../link.js";
import { CLOSE_TIMEOUT_MS, MAX_MESSAGE_LEN } from "../link.js";
import type { Outgoing } from "../outgoing.js";
import { writeUint32 } from "../outgoing.js";
import { encode } from "./encode.js";
import { ReceiveBuffer, deliverBytes } from "./receive-buffer.js";

/** A connection of lines. */
export class LineLink implements Link {
  readonly hasServerPings = false;
  readonly #input: Readable;
  readonly #output: Writable;
  readonly #received: ReceiveBuffer;
  /** How many of the unparsed bytes are known to have no line end. */
  #searched = 0;
  /** Reads binary messages, if there may be any. */
  #binary: BinaryReader | undefined;
  #queued: Outgoing[] = [];
  #receiver: Receiver | undefined;
  #endReason: string | undefined;
  readonly #ended: Promise<void>;
  readonly #end: (reason: string) => void;

  /** With a buffer, the system reads into it, and the code that connected calls {@link LineLink.onBytes}. */
  constructor(input: Readable, output: Writable, received?: ReceiveBuffer) {
    this.#received = received ?? new ReceiveBuffer();
    this.#input = input;
    this.#output = output;
    let onEnded = (): void => {};
    this.#ended = new Promise((resolve) => (onEnded = resolve));
    this.#end = (reason) => {
      this.#endReason ??= reason;
      onEnded();
      this.#receiver?.onEnd(this.#endReason);
    };
    input.on("error", (error) => this.#end(error.message));
    input.on("end", () => this.#end("the server closed the connection"));
    input.on("close", () => this.#end("the server closed the connection"));
    output.on("error", (error) => this.#end(error.message));
    output.on("drain", () => this.#receiver?.onDrain());
    if (received) return;
    input.pause();
    input.on("data", (chunk: Buffer) => {
      this.#received.push(chunk);
      this.onBytes();
    });
  }

  get isFull(): boolean {
    return this.#output.writableNeedDrain;
  }

  start(receiver: Receiver): void {
    this.#receiver = receiver;
    if (this.#endReason !== undefined) return receiver.onEnd(this.#endReason);
    this.#input.resume();
    this.onBytes();
  }

  acceptBinary(): void {
    this.#binary = new BinaryReader();
  }

  /** More bytes are in the buffer. */
  onBytes(): void {
    const receiver = this.#receiver;
    if (!receiver) return;
    while (this.#next(receiver));
    this.#received.settle();
  }

  /** Delivers the next message; returns false if it has not arrived completely. */
  #next(receiver: Receiver): boolean {
    const received = this.#received;
    const { bytes, start, end } = received;
    if (this.#binary && start < end && bytes[start] === LINE_MARK) return this.#nextBinary(this.#binary, receiver);
    const at = bytes.subarray(0, end).indexOf(0x0a, start + this.#searched);
    if (at < 0) {
      this.#searched = end - start;
      return false;
    }
    this.#searched = 0;
    received.start = at + 1;
    const lineEnd = at > start && bytes[at - 1] === 0x0d ? at - 1 : at;
    if (!isBlank(bytes, start, lineEnd)) deliverBytes(bytes, start, lineEnd, receiver);
    return true;
  }

  #nextBinary(reader: BinaryReader, receiver: Receiver): boolean {
    const received = this.#received;
    const { bytes, start } = received;
    const available = received.end - start;
    if (available < LINE_HEAD_LEN) return false;
    const length = LINE_HEAD_LEN + uint32(bytes, start + 1);
    if (length - LINE_HEAD_LEN > MAX_MESSAGE_LEN) return this.#violation(length - LINE_HEAD_LEN);
    if (available < length) {
      received.wanted = length - available;
      return false;
    }
    received.start = start + length;
    const at = start + LINE_HEAD_LEN;
    if (isBinary(bytes, at, received.start)) reader.deliver(bytes, at, received.start, receiver, received.keep);
    else deliverBytes(bytes, at, received.start, receiver);
    return true;
  }

  #violation(length: number): false {
    this.destroy();
    this.#end(`the server sent a message of ${length} bytes`);
    // Nothing behind it can be found.
    this.#received.start = this.#received.end;
    return false;
  }

  send(message: Outgoing): void {
    this.#queued.push(message);
    if (this.#queued.length === 1) queueMicrotask(() => this.#flush());
  }

  #flush(): void {
    const queued = this.#queued;
    this.#queued = [];
    if (queued.length === 0 || !this.#output.writable) return;
    const messages = queued.map((message) => encode(message, this.#binary !== undefined));
    const out = Buffer.allocUnsafeSlow(messages.reduce((sum, { length, isBinary }) => sum + length + (isBinary ? LINE_HEAD_LEN : 1), 0));
    let at = 0;
    for (const message of messages) {
      if (message.isBinary) {
        out[at] = LINE_MARK;
        writeUint32(out, at + 1, message.length);
        at = message.write(out, at + LINE_HEAD_LEN);
      } else {
        at = message.write(out, at);
        out[at++] = 0x0a;
      }
    }
    this.#output.write(out);
  }

  async close(): Promise<void> {
    this.#flush();
    this.#output.end();
    const timer = setTimeout(() => this.destroy(), CLOSE_TIMEOUT_MS);
    await this.#ended;
    clearTimeout(timer);
    this.destroy();
  }

  destroy(): void {
    this.#input.destroy();
    this.#output.destroy();
  }
}

function isBlank(bytes: Buffer, start: number, end: number): boolean {
  while (start < end && (bytes[start] === 0x20 || bytes[start] === 0x09 || bytes[start] === 0x0d)) start++;
  return start === end;
}
