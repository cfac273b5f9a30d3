/**
 * Output for a language model: without control sequences, truncated to a budget.
 *
 * Pure: no I/O, no clock.
 *
 * @module
 */
import { concat, toText } from "./bytes.js";

/** Text that fits a budget. */
export interface TruncatedText {
  /** The beginning and the end of the output, with a notice between them if something was left out. */
  readonly text: string;
  /** Bytes that were left out. */
  readonly omittedBytes: number;
  /** Bytes that there were. */
  readonly totalBytes: number;
  /** Whether the numbers are exact; output that the server has dropped may have an unknown size. */
  readonly count: "exact" | "atLeast";
}

const encoder = new TextEncoder();
const NEWLINE = 0x0a;

/** Keeps the beginning and the end of text, in constant memory. */
export class Truncator {
  /** All bytes so far, including those that the server has dropped. */
  totalBytes = 0;
  readonly #budget: number;
  readonly #head: Uint8Array[] = [];
  #headLen = 0;
  #tail: Uint8Array[] = [];
  #tailLen = 0;
  #gap: "none" | "known" | "unknown" = "none";

  constructor(budget: number) {
    this.#budget = budget;
  }

  push(text: string): void {
    const bytes = encoder.encode(text);
    this.totalBytes += bytes.length;
    const room = this.#gap === "none" ? this.#budget - this.#headLen : 0;
    const first = bytes.subarray(0, room);
    if (first.length > 0) this.#head.push(first);
    this.#headLen += first.length;
    const rest = bytes.subarray(first.length);
    if (rest.length === 0) return;
    this.#tail.push(rest);
    this.#tailLen += rest.length;
    while (this.#tailLen - this.#tail[0]!.length >= this.#budget) this.#tailLen -= this.#tail.shift()!.length;
  }

  /** Records output that the server has dropped. */
  skip(bytes: number | undefined): void {
    if (bytes === 0) return;
    this.totalBytes += bytes ?? 0;
    if (bytes === undefined) this.#gap = "unknown";
    else if (this.#gap === "none") this.#gap = "known";
    this.#tail = [];
    this.#tailLen = 0;
  }

  /** Returns the text within a budget, in bytes. */
  finish(limit: number): TruncatedText {
    const budget = Math.min(limit, this.#budget);
    const { totalBytes } = this;
    const head = concat(this.#head);
    if (this.#gap === "none" && totalBytes === head.length && totalBytes <= budget) {
      return { text: toText(head), omittedBytes: 0, totalBytes, count: "exact" };
    }
    const count = this.#gap === "unknown" ? "atLeast" : "exact";
    // The omitted count has at most as many digits as the total; the notice may need a newline before and after it.
    const room = budget - encoder.encode(notice(totalBytes, count)).length - 2;
    if (room < 0) return { text: notice(totalBytes, count), omittedBytes: totalBytes, totalBytes, count };
    const first = beginning(head, Math.floor(room / 2));
    // The tail continues the head only if there is no gap.
    const all = this.#gap === "none" ? concat([head, ...this.#tail]) : concat(this.#tail);
    const last = ending(all, room - first.length);
    const omittedBytes = totalBytes - first.length - last.length;
    const before = first.length === 0 || first[first.length - 1] === NEWLINE ? "" : "\n";
    return { text: `${toText(first)}${before}${notice(omittedBytes, count)}\n${toText(last)}`, omittedBytes, totalBytes, count };
  }
}

function notice(bytes: number, count: "exact" | "atLeast"): string {
  return `[… ${count === "exact" ? "" : "more than "}${bytes} ${bytes === 1 ? "byte" : "bytes"} omitted …]`;
}

/** Returns as much of the beginning as fits, up to the end of a line if one is near. */
function beginning(bytes: Uint8Array, room: number): Uint8Array {
  let len = Math.min(bytes.length, room);
  while (len < bytes.length && len > 0 && isContinuation(bytes[len]!)) len--;
  if (len === bytes.length) return bytes;
  const lineEnd = bytes.subarray(0, len).lastIndexOf(NEWLINE) + 1;
  return bytes.subarray(0, lineEnd > 0 && isNear(len - lineEnd, room) ? lineEnd : len);
}

/** Returns as much of the end as fits, from the beginning of a line if one is near. */
function ending(bytes: Uint8Array, room: number): Uint8Array {
  let start = Math.max(0, bytes.length - room);
  while (start > 0 && start < bytes.length && isContinuation(bytes[start]!)) start++;
  if (start === 0 || bytes[start - 1] === NEWLINE) return bytes.subarray(start);
  const lineStart = bytes.indexOf(NEWLINE, start) + 1;
  return bytes.subarray(lineStart > 0 && isNear(lineStart - start, room) && lineStart < bytes.length ? lineStart : start);
}

function isContinuation(byte: number): boolean {
  return (byte & 0xc0) === 0x80;
}

function isNear(lost: number, room: number): boolean {
  return lost <= Math.floor(room / 4);
}

/** The longest line that can still be overwritten, and the longest sequence, in characters. */
const MAX_LINE_LEN = 16 << 10;
const MAX_SEQUENCE_LEN = 1 << 20;

/** An escape sequence from its beginning: CSI, a string such as a title, or another one. */
const SEQUENCE = /^\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)|[ -/]*[0-OQ-WYZ\\`-~])/;
/** One that the next chunk may continue. */
const PARTIAL = /^\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b\x9c]*\x1b?|[ -/]*)?$/;

/**
 * Removes control sequences from text that arrives in pieces.
 *
 * A line that a carriage return, a backspace or an erasure overwrites, such as a progress bar, appears as it was last.
 */
export class ControlFilter {
  /** The beginning of a sequence that is not complete. */
  #partial = "";
  #line: string[] = [];
  #column = 0;

  /** Returns the lines that are complete. */
  push(text: string): string {
    let rest = this.#partial + text;
    this.#partial = "";
    let out = "";
    while (rest !== "") {
      const at = rest.search(/[\x00-\x08\x0a-\x1f\x7f]/);
      const plain = at < 0 ? rest : rest.slice(0, at);
      for (const character of plain) this.#line[this.#column++] = character;
      if (this.#line.length > MAX_LINE_LEN) out += this.finish();
      if (at < 0) break;
      rest = rest.slice(at);
      const [control] = rest;
      if (control === "\x1b") {
        if (PARTIAL.test(rest) && rest.length < MAX_SEQUENCE_LEN) {
          this.#partial = rest;
          break;
        }
        const sequence = SEQUENCE.exec(rest)?.[0] ?? "\x1b";
        this.#erase(sequence);
        rest = rest.slice(sequence.length);
        continue;
      }
      if (control === "\n") out += `${this.finish()}\n`;
      else if (control === "\r") this.#column = 0;
      else if (control === "\b") this.#column = Math.max(0, this.#column - 1);
      rest = rest.slice(1);
    }
    return out;
  }

  /** Returns the current line, which can no longer be overwritten. */
  finish(): string {
    const line = Array.from(this.#line, (character) => character ?? " ").join("");
    this.#line = [];
    this.#column = 0;
    return line;
  }

  #erase(sequence: string): void {
    const part = /^\x1b\[([012]?)K$/.exec(sequence)?.[1];
    if (part === undefined) return;
    if (part === "1") this.#line.fill(" ", 0, this.#column + 1);
    else this.#line.length = part === "2" ? 0 : Math.min(this.#line.length, this.#column);
    if (part === "2") this.#line = [];
  }
}
