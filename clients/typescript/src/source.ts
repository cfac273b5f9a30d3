/**
 * Data of any length that is sent: whole, or as it is produced.
 *
 * @module
 */
import type { BytesLike } from "./bytes.js";
import { kindOf, toBytes } from "./bytes.js";
import { UsageError } from "./errors.js";

/** Data of any length: bytes or text, a stream, or anything that yields bytes or text. */
export type Source = BytesLike | Blob | AsyncIterable<BytesLike> | Iterable<BytesLike> | ReadableStream<BytesLike>;

/** Returns whether data is there as a whole. */
export function isWhole(source: Source): source is BytesLike {
  return typeof source === "string" || source instanceof ArrayBuffer || ArrayBuffer.isView(source);
}

/** Fails if a value is no data. */
export function checkSource(name: string, source: Source): void {
  if (isWhole(source) || source instanceof Blob || isStream(source)) return;
  const isIterable = typeof source === "object" && source !== null && (Symbol.asyncIterator in source || Symbol.iterator in source);
  if (isIterable) return;
  throw new UsageError(`cannot use ${kindOf(source)} as \`${name}\``, { hint: "pass a string, bytes, a stream, or an iterable of those" });
}

/** Returns any source as chunks. */
export async function* chunksOf(source: Source): AsyncGenerator<Uint8Array, void, void> {
  if (isWhole(source)) yield toBytes(source);
  else if (source instanceof Blob) yield* readStream(source.stream());
  else if (Symbol.asyncIterator in source) for await (const chunk of source) yield toBytes(chunk);
  else if (Symbol.iterator in source) for (const chunk of source) yield toBytes(chunk);
  else yield* readStream(source);
}

function isStream(source: unknown): boolean {
  return typeof ReadableStream === "function" && source instanceof ReadableStream;
}

/** Not every browser can iterate over a stream. */
async function* readStream(stream: ReadableStream<BytesLike>): AsyncGenerator<Uint8Array, void, void> {
  const reader = stream.getReader();
  try {
    for (let step = await reader.read(); !step.done; step = await reader.read()) yield toBytes(step.value);
  } finally {
    reader.releaseLock();
  }
}
