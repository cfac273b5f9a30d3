/**
 * Bytes, base64 and text, with the fastest means of the platform and without imports from Node.
 *
 * @module
 */
import { UsageError } from "./errors.js";

/** What can be sent as bytes; text is encoded as UTF-8. */
export type BytesLike = string | ArrayBuffer | ArrayBufferView;

const NodeBuffer = (globalThis as { Buffer?: typeof Buffer }).Buffer;
const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { ignoreBOM: true });

interface Base64Array {
  toBase64(): string;
}
interface Base64Constructor {
  fromBase64?(text: string, options?: { lastChunkHandling?: "strict" }): Uint8Array;
}

/** Returns the bytes of standard base64 with padding; `undefined` if it is anything else. */
export function decodeBase64(text: string): Uint8Array | undefined {
  const length = text.length;
  if (length % 4 !== 0) return undefined;
  if (length === 0) return new Uint8Array(0);
  const padding = text.charCodeAt(length - 1) !== 0x3d ? 0 : text.charCodeAt(length - 2) !== 0x3d ? 1 : 2;
  const bytes = NodeBuffer ? NodeBuffer.from(text, "base64") : decodeWithoutBuffer(text);
  // `Buffer` skips foreign symbols and accepts the URL alphabet.
  const isStandard = bytes?.length === (length / 4) * 3 - padding && !text.includes("-") && !text.includes("_");
  return isStandard ? bytes : undefined;
}

function decodeWithoutBuffer(text: string): Uint8Array | undefined {
  const native = Uint8Array as unknown as Base64Constructor;
  try {
    if (native.fromBase64) return native.fromBase64(text, { lastChunkHandling: "strict" });
    const binary = atob(text);
    const bytes = new Uint8Array(binary.length);
    for (let at = 0; at < binary.length; at++) bytes[at] = binary.charCodeAt(at);
    return bytes;
  } catch {
    return undefined;
  }
}

/** Returns standard base64 with padding. */
export function encodeBase64(bytes: Uint8Array): string {
  if (NodeBuffer) return NodeBuffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString("base64");
  if ("toBase64" in bytes) return (bytes as unknown as Base64Array).toBase64();
  let binary = "";
  // The arguments of a call are limited.
  for (let at = 0; at < bytes.length; at += 0x8000) {
    binary += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  }
  return btoa(binary);
}

/** Returns data as bytes, without a copy if it is bytes already; fails if it is anything else. */
export function toBytes(data: BytesLike): Uint8Array {
  if (typeof data === "string") return encoder.encode(data);
  if (data instanceof Uint8Array) return data;
  if (data instanceof ArrayBuffer) return new Uint8Array(data);
  if (ArrayBuffer.isView(data)) return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  throw new UsageError(`cannot send ${kindOf(data)} as bytes`, { hint: "pass a string, a `Uint8Array` or an `ArrayBuffer`" });
}

/** Returns what a value is, for messages to people. */
export function kindOf(value: unknown): string {
  if (value === null || value === undefined) return String(value);
  const name = typeof value === "object" ? value.constructor?.name : undefined;
  return name === undefined || name === "" ? `a value of type ${typeof value}` : `a value of type ${name}`;
}

/** Returns UTF-8 as text; invalid bytes become U+FFFD. */
export function toText(bytes: Uint8Array): string {
  // Several times faster for short texts.
  if (NodeBuffer && bytes instanceof NodeBuffer) return bytes.toString("utf8");
  return decoder.decode(bytes);
}

/** Returns the length of UTF-8 without a character at its end of which a part is missing. */
export function wholeCharacters(bytes: Uint8Array): number {
  for (let at = bytes.length - 1; at >= Math.max(0, bytes.length - 3); at--) {
    const byte = bytes[at]!;
    // In the middle of a character.
    if ((byte & 0xc0) === 0x80) continue;
    const length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return at + length > bytes.length ? at : bytes.length;
  }
  return bytes.length;
}

/** Returns all chunks in one array. */
export function concat(chunks: readonly Uint8Array[]): Uint8Array {
  const [first] = chunks;
  if (first !== undefined && chunks.length === 1) return first;
  const all = new Uint8Array(chunks.reduce((sum, chunk) => sum + chunk.length, 0));
  let at = 0;
  for (const chunk of chunks) {
    all.set(chunk, at);
    at += chunk.length;
  }
  return all;
}

/**
 * Returns a part of bytes that is kept longer than the whole: a view, or a copy if a view would keep more than twice its
 * length in memory.
 */
export function keptPart(bytes: Uint8Array, start: number, end: number): Uint8Array {
  const part = bytes.subarray(start, end);
  if (2 * part.length >= bytes.buffer.byteLength) return part;
  // It clears no memory first, and `slice` of a `Buffer` would be a view.
  if (!NodeBuffer) return part.slice();
  const copy = NodeBuffer.allocUnsafe(part.length);
  copy.set(part);
  return copy;
}

/** Returns a random word that is unique in practice. */
export function randomWord(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(8));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
