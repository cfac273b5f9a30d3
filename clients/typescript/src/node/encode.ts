/**
 * Messages as bytes.
 *
 * @module
 */
import type { Outgoing, OutgoingWithBytes } from "../outgoing.js";
import { MESSAGE_HEAD_LEN, base64Length, binaryParts, writeMessageHead } from "../outgoing.js";

/** Base64 is made in pieces of this many bytes: a multiple of three, whose text V8 need not treat as a large object. */
const PIECE_LEN = 48 << 10;

const QUOTE = 0x22;

/** A message that is ready to be sent. */
export interface Encoded {
  /** Whether it is a binary message; otherwise it is JSON. */
  readonly isBinary: boolean;
  readonly length: number;
  /** Writes it, and returns where it ends. */
  write(out: Buffer, at: number): number;
}

/** Encodes a message; one with bytes as a binary message where the server takes them. */
export function encode(message: Outgoing, acceptsBinary: boolean): Encoded {
  if (typeof message === "string") {
    const length = Buffer.byteLength(message);
    return { isBinary: false, length, write: (out, at) => writeText(out, at, message, length) };
  }
  return acceptsBinary ? encodeBinary(message) : encodeBase64(message);
}

function encodeBinary(message: OutgoingWithBytes): Encoded {
  const { json, attachedLen } = binaryParts(message);
  const jsonLen = Buffer.byteLength(json);
  return {
    isBinary: true,
    length: MESSAGE_HEAD_LEN + jsonLen + attachedLen,
    write(out, at) {
      writeMessageHead(out, at, jsonLen);
      let end = writeText(out, at + MESSAGE_HEAD_LEN, json, jsonLen);
      for (const bytes of message.bytes) {
        out.set(bytes, end);
        end += bytes.length;
      }
      return end;
    },
  };
}

function encodeBase64({ texts, bytes }: OutgoingWithBytes): Encoded {
  const lengths = texts.map((text) => Buffer.byteLength(text));
  const length = bytes.reduce((sum, item) => sum + 2 + base64Length(item.length), lengths.reduce((sum, textLen) => sum + textLen));
  return {
    isBinary: false,
    length,
    write(out, at) {
      let end = at;
      texts.forEach((text, index) => {
        end = writeText(out, end, text, lengths[index]!);
        const item = bytes[index];
        if (item !== undefined) end = writeBase64(out, end, item);
      });
      return end;
    },
  };
}

function writeText(out: Buffer, at: number, text: string, length: number): number {
  return at + out.write(text, at, length === text.length ? "latin1" : "utf8");
}

function writeBase64(out: Buffer, at: number, item: Uint8Array): number {
  const bytes = Buffer.from(item.buffer, item.byteOffset, item.byteLength);
  let end = at;
  out[end++] = QUOTE;
  for (let from = 0; from < bytes.length; from += PIECE_LEN) {
    end += out.write(bytes.toString("base64", from, from + PIECE_LEN), end, "latin1");
  }
  out[end++] = QUOTE;
  return end;
}
