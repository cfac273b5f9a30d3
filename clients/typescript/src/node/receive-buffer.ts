/**
 * The bytes of a connection that are not parsed yet, in one piece.
 *
 * @module
 */
import { decodeBase64 } from "../bytes.js";
import type { Receiver } from "../link.js";
import { OUTPUT_HEAD_LEN, outputHead } from "../link.js";

/** The system reads at most this much at once; larger reads cost fewer calls. */
const READ_LEN = 256 << 10;

/**
 * A growing buffer that the system reads into directly.
 *
 * It is rearranged only when the next bytes are about to arrive: until then the system holds a view of it.
 */
export class ReceiveBuffer {
  bytes = Buffer.allocUnsafeSlow(2 * READ_LEN);
  /** Where the unparsed bytes begin; the parser moves it on. */
  start = 0;
  /** Where they end. */
  end = 0;
  /** How many more bytes the parser knows to need. */
  wanted = 0;

  /** Returns where the next bytes go; {@link ReceiveBuffer.filled} follows. */
  space(): Buffer {
    this.#reserve(Math.max(READ_LEN, this.wanted));
    return this.bytes.subarray(this.end);
  }

  filled(length: number): void {
    this.end += length;
  }

  push(chunk: Uint8Array): void {
    this.#reserve(Math.max(chunk.length, this.wanted));
    this.bytes.set(chunk, this.end);
    this.end += chunk.length;
  }

  /** Makes room for this much behind the unparsed bytes. */
  #reserve(length: number): void {
    this.wanted = 0;
    const unparsed = this.end - this.start;
    const isLarge = this.bytes.length > 8 * READ_LEN;
    if (unparsed === 0) {
      this.start = this.end = 0;
      // A long message has passed.
      if (isLarge && length <= READ_LEN) this.bytes = Buffer.allocUnsafeSlow(2 * READ_LEN);
    }
    if (this.bytes.length - this.end >= length) return;
    if (unparsed + length <= this.bytes.length) {
      this.bytes.copyWithin(0, this.start, this.end);
    } else {
      const larger = Buffer.allocUnsafeSlow(Math.max(2 * this.bytes.length, unparsed + length));
      this.bytes.copy(larger, 0, this.start, this.end);
      this.bytes = larger;
    }
    this.start = 0;
    this.end = unparsed;
  }
}

/** The bytes behind the base64 of a notification of output: `"}}`. */
const TAIL = Buffer.from('"}}');

/** Delivers a message that has arrived as bytes. */
export function deliverBytes(bytes: Buffer, start: number, end: number, receiver: Receiver): void {
  // `process/output` and nothing else has a `p` and an `o` there.
  if (bytes[start + 11] === 0x70 && bytes[start + 19] === 0x6f && bytes.compare(TAIL, 0, 3, end - 3, end) === 0) {
    const head = outputHead(bytes.toString("latin1", start, Math.min(end, start + OUTPUT_HEAD_LEN)));
    const chunk = head && decodeBase64(bytes.toString("latin1", start + head.length, end - TAIL.length));
    if (chunk) {
      receiver.onOutput(head.processId, { type: "output", stream: head.stream, seq: head.seq, bytes: chunk }, head.incarnation);
      return;
    }
  }
  receiver.onMessage(bytes.toString("utf8", start, end));
}
