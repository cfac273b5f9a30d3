/**
 * Messages to send, before they become base64 or binary messages.
 *
 * @module
 */

/** JSON without its members with bytes: they are sent beside it, or as base64 within it. */
export interface OutgoingWithBytes {
  /** The JSON before, between and behind them. */
  readonly texts: readonly string[];
  readonly bytes: readonly Uint8Array[];
}

/** A message to send. */
export type Outgoing = string | OutgoingWithBytes;

/** Returns the length of a message in bytes. */
export function outgoingLength(message: Outgoing, isBinary: boolean): number {
  if (typeof message === "string") return utf8Length(message);
  if (isBinary) {
    const { json, attachedLen } = binaryParts(message);
    return MESSAGE_HEAD_LEN + utf8Length(json) + attachedLen;
  }
  const base64Len = message.bytes.reduce((sum, { length }) => sum + 2 + base64Length(length), 0);
  return message.texts.reduce((sum, text) => sum + utf8Length(text), base64Len);
}

function utf8Length(text: string): number {
  return /[^\0-\x7f]/.test(text) ? new TextEncoder().encode(text).length : text.length;
}

/** Returns how long base64 is, between its quotes. */
export function base64Length(length: number): number {
  return Math.ceil(length / 3) * 4;
}

const MESSAGE_HEAD = [2, 0, 0, 0];

/** The length of the head of a binary message with JSON. */
export const MESSAGE_HEAD_LEN = 8;

/** Writes the head of a binary message whose JSON has this length in bytes. */
export function writeMessageHead(out: Uint8Array, at: number, jsonLen: number): void {
  out.set(MESSAGE_HEAD, at);
  writeUint32(out, at + MESSAGE_HEAD.length, jsonLen);
}

/** Returns the JSON of a binary message, in which places stand for its bytes, and how many bytes follow it. */
export function binaryParts({ texts, bytes }: OutgoingWithBytes): { json: string; attachedLen: number } {
  let [json, attachedLen] = [texts[0]!, 0];
  bytes.forEach(({ length }, index) => {
    json += length === 0 ? '""' : `[${attachedLen},${length}]`;
    json += texts[index + 1]!;
    attachedLen += length;
  });
  return { json, attachedLen };
}

/** Writes an unsigned integer of four bytes. */
export function writeUint32(out: Uint8Array, at: number, value: number): void {
  for (let index = 0; index < 4; index++) out[at + index] = value >>> (24 - 8 * index);
}
