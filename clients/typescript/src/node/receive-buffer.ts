/**
 * The bytes of a connection that are not parsed yet, in one piece.
 *
 * @module
 */
import { decodeBase64, keptPart } from "../bytes.js";
import type { Receiver } from "../link.js";
import { OUTPUT_HEAD_LEN, outputHead } from "../link.js";

/** The system reads at most this much at once; larger reads cost fewer calls. */
const READ_LEN = 256 << 10;

/**
 * A growing buffer that the system reads into directly.
 *
 * It is rearranged only in {@link ReceiveBuffer.settle}, and when the next bytes are about to arrive: until then the
 * system holds a view of it.
 */
export class ReceiveBuffer {
  bytes: Buffer = Buffer.allocUnsafeSlow(2 * READ_LEN);
  /** Where the unparsed bytes begin; the parser moves it on. */
  start = 0;
  /** Where they end. */
  end = 0;
  /** How many more bytes the parser knows to need; 0 if it does not know. */
  wanted = 0;
  /** Whether a view of the bytes was given away, so that nothing may stay or arrive there. */
  #isGivenAway = false;

  /** Returns where the next bytes go; {@link ReceiveBuffer.filled} follows. */
  space(): Buffer {
    this.#reserve(READ_LEN);
    return this.bytes.subarray(this.end);
  }

  filled(length: number): void {
    this.end += length;
  }

  push(chunk: Uint8Array): void {
    this.#reserve(chunk.length);
    this.bytes.set(chunk, this.end);
    this.end += chunk.length;
  }

  /**
   * Returns a part of the bytes that may be kept.
   *
   * Usually that is a copy: to read each message into memory of its own takes more and shorter reads, which cost as much.
   */
  readonly keep = (start: number, end: number): Uint8Array => {
    const part = keptPart(this.bytes, start, end);
    if (part.buffer === this.bytes.buffer) this.#isGivenAway = true;
    return part;
  };

  /** Separates what is not parsed from what was given away; called when all that has arrived is parsed. */
  settle(): void {
    if (!this.#isGivenAway) return;
    this.#isGivenAway = false;
    this.#moveTo(Buffer.allocUnsafeSlow(Math.max(2 * READ_LEN, this.end - this.start)));
  }

  /** Makes room for this much behind the unparsed bytes, and for the rest of a long message. */
  #reserve(length: number): void {
    const unparsed = this.end - this.start;
    // Whatever a message says about its length, its memory is at most doubled.
    const needed = unparsed + Math.max(length, Math.min(this.wanted || Infinity, unparsed));
    this.wanted = 0;
    if (unparsed === 0) {
      this.start = this.end = 0;
      // A long message has passed.
      if (this.bytes.length > 8 * READ_LEN && length <= READ_LEN) this.bytes = Buffer.allocUnsafeSlow(2 * READ_LEN);
    }
    if (this.start + needed <= this.bytes.length) return;
    this.#moveTo(needed <= this.bytes.length ? this.bytes : Buffer.allocUnsafeSlow(needed));
  }

  #moveTo(memory: Buffer): void {
    this.bytes.copy(memory, 0, this.start, this.end);
    this.bytes = memory;
    this.end -= this.start;
    this.start = 0;
  }
}

/** The bytes behind the base64 of a notification of output: `"}}`. */
const TAIL = Buffer.from('"}}');

/** Delivers a message that has arrived as bytes. */
export function deliverBytes(bytes: Buffer, start: number, end: number, receiver: Receiver): void {
  // `process/output` and nothing else has a `p` and an `o` there.
  if (end - start > 20 && bytes[start + 11] === 0x70 && bytes[start + 19] === 0x6f && bytes.compare(TAIL, 0, 3, end - 3, end) === 0) {
    const head = outputHead(bytes.toString("latin1", start, Math.min(end, start + OUTPUT_HEAD_LEN)));
    const chunk = head && decodeBase64(bytes.toString("latin1", start + head.length, end - TAIL.length));
    if (chunk) {
      receiver.onOutput(head.processId, { type: "output", stream: head.stream, seq: head.seq, bytes: chunk }, head.incarnation);
      return;
    }
  }
  receiver.onMessage(bytes.toString("utf8", start, end));
}
