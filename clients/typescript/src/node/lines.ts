/**
 * Messages as lines, over a unix socket or the standard streams of a program.
 *
 * @module
 */
import type { Readable, Writable } from "node:stream";
import type { Link, Outgoing, Receiver } from "../link.js";
import { CLOSE_TIMEOUT_MS } from "../link.js";
import { encodedLength, writeMessage } from "./encode.js";
import { ReceiveBuffer, deliverBytes } from "./receive-buffer.js";

/** A connection of lines. */
export class LineLink implements Link {
  readonly hasServerPings = false;
  readonly #input: Readable;
  readonly #output: Writable;
  readonly #received: ReceiveBuffer;
  /** How many of the unparsed bytes are known to have no line end. */
  #searched = 0;
  #queued: Outgoing[] = [];
  #receiver: Receiver | undefined;
  #endReason: string | undefined;
  readonly #ended: Promise<void>;

  /** With a buffer, the system reads into it, and the code that connected calls {@link LineLink.onBytes}. */
  constructor(input: Readable, output: Writable, received?: ReceiveBuffer) {
    this.#received = received ?? new ReceiveBuffer();
    this.#input = input;
    this.#output = output;
    this.#ended = new Promise((resolve) => {
      const onEnd = (reason: string): void => {
        this.#endReason ??= reason;
        resolve();
        this.#receiver?.onEnd(this.#endReason);
      };
      input.on("error", (error) => onEnd(error.message));
      input.on("end", () => onEnd("the server closed the connection"));
      input.on("close", () => onEnd("the server closed the connection"));
      output.on("error", (error) => onEnd(error.message));
    });
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

  /** More bytes are in the buffer. */
  onBytes(): void {
    const received = this.#received;
    if (!this.#receiver) return;
    let from = received.start + this.#searched;
    for (;;) {
      const at = received.bytes.subarray(0, received.end).indexOf(0x0a, from);
      if (at < 0) break;
      const { start } = received;
      received.start = from = at + 1;
      const end = at > start && received.bytes[at - 1] === 0x0d ? at - 1 : at;
      if (!isBlank(received.bytes, start, end)) deliverBytes(received.bytes, start, end, this.#receiver);
    }
    this.#searched = received.end - received.start;
  }

  send(message: Outgoing): void {
    this.#queued.push(message);
    if (this.#queued.length === 1) queueMicrotask(() => this.#flush());
  }

  #flush(): void {
    const queued = this.#queued;
    this.#queued = [];
    if (queued.length === 0 || !this.#output.writable) return;
    const lengths = queued.map(encodedLength);
    const out = Buffer.allocUnsafeSlow(lengths.reduce((sum, length) => sum + length + 1, 0));
    let at = 0;
    queued.forEach((message, index) => {
      at = writeMessage(out, at, message, lengths[index]!);
      out[at++] = 0x0a;
    });
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
