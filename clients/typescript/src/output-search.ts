/**
 * Searching for an expression in output that arrives in pieces.
 *
 * Pure: no I/O, no clock.
 *
 * @module
 */
import { concat, toText, wholeCharacters } from "./bytes.js";
import type { Chunk } from "./events.js";

/** Output that matched. */
export interface Match {
  /** The event whose output completed the match. */
  readonly seq: number;
  readonly stream: string;
  /** The match and its groups. */
  readonly match: RegExpExecArray;
  /** What was before it in its stream: from the beginning of the search, at most the last 128 KiB. */
  readonly before: string;
  /** What had arrived behind it in its stream: text, and the beginning of a character. */
  readonly rest: Rest;
}

/** Output of one stream that was searched without a match. */
interface Rest {
  readonly text: string;
  readonly bytes: Uint8Array;
}

/** How much of the output is searched, in characters. */
const SEARCH_LEN = 128 << 10;

/** The search for one expression, in each stream separately. */
export class OutputSearch {
  readonly #expression: RegExp;
  readonly #searched = new Map<string, Rest>();

  constructor(pattern: RegExp | string) {
    this.#expression = typeof pattern === "string" ? new RegExp(escapeRegExp(pattern)) : new RegExp(pattern.source, pattern.flags.replace(/[gy]/g, ""));
  }

  /** Continues right after a match, even within the output that completed it. */
  continueAfter({ seq, stream, rest }: Match): Match | undefined {
    return this.#find(seq, stream, rest);
  }

  /** Searches the next output. */
  push({ seq, stream, bytes: next }: Chunk): Match | undefined {
    const before = this.#searched.get(stream);
    const bytes = before ? concat([before.bytes, next]) : next;
    const whole = wholeCharacters(bytes);
    const text = ((before?.text ?? "") + toText(bytes.subarray(0, whole))).slice(-SEARCH_LEN);
    return this.#find(seq, stream, { text, bytes: bytes.subarray(whole) });
  }

  /** Forgets what came before missing output, because nothing matches across it. */
  onGap(): void {
    this.#searched.clear();
  }

  #find(seq: number, stream: string, output: Rest): Match | undefined {
    const { text, bytes } = output;
    const match = this.#expression.exec(text);
    if (!match) {
      this.#searched.set(stream, output);
      return undefined;
    }
    const end = match.index + match[0].length;
    return { seq, stream, match, before: text.slice(0, match.index), rest: { text: text.slice(end), bytes } };
  }
}

function escapeRegExp(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
}
