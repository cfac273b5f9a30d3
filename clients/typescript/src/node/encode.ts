/**
 * Messages as bytes.
 *
 * @module
 */
import type { Outgoing } from "../link.js";
import { outgoingLength } from "../link.js";

/** Base64 is made in pieces of this many bytes: a multiple of three, whose text V8 need not treat as a large object. */
const PIECE_LEN = 48 << 10;

/** Returns the length of a message, in bytes. */
export function encodedLength(message: Outgoing): number {
  if (typeof message === "string") return Buffer.byteLength(message);
  return outgoingLength(message) - message.head.length + Buffer.byteLength(message.head);
}

/** Writes a message of this length, and returns where it ends. */
export function writeMessage(out: Buffer, at: number, message: Outgoing, length: number): number {
  if (typeof message === "string") return at + out.write(message, at, length === message.length ? "latin1" : "utf8");
  let end = at + out.write(message.head, at, "utf8");
  const bytes = Buffer.from(message.bytes.buffer, message.bytes.byteOffset, message.bytes.byteLength);
  for (let from = 0; from < bytes.length; from += PIECE_LEN) {
    end += out.write(bytes.toString("base64", from, from + PIECE_LEN), end, "latin1");
  }
  return end + out.write(message.tail, end, "latin1");
}
