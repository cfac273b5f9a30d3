/**
 * Output as lines of text.
 *
 * @module
 */
import { concat, toText } from "./bytes.js";
import { GapError } from "./errors.js";
import type { ProcessEvent } from "./events.js";

/** A line of output, without its end. */
export interface Line {
  readonly stream: string;
  /** The event that completed it. */
  readonly seq: number;
  readonly text: string;
  /** Whether the line was too long and continues with the next one. */
  readonly isContinued: boolean;
}

/** The default of the longest line, in bytes. */
const MAX_LINE_LEN = 64 << 10;

/** Returns the lines of events; fails with {@link GapError} where output is missing. */
export async function* linesOf(events: AsyncIterable<ProcessEvent>, maxLen = MAX_LINE_LEN): AsyncGenerator<Line, void, void> {
  const splitters = new Map<string, LineSplitter>();
  for await (const event of events) {
    if (event.type === "output") {
      let splitter = splitters.get(event.stream);
      if (!splitter) splitters.set(event.stream, (splitter = new LineSplitter(event.stream, Math.max(maxLen, 4))));
      yield* splitter.push(event.bytes, event.seq);
    } else if (event.type !== "exited") {
      for (const splitter of splitters.values()) yield* splitter.finish(event.seq);
      if (event.type === "gap") throw new GapError(event.bytes);
    }
  }
}

/** Splits the bytes of one stream into lines. */
class LineSplitter {
  readonly #stream: string;
  readonly #maxLen: number;
  #partial: Uint8Array[] = [];
  #partialLen = 0;

  constructor(stream: string, maxLen: number) {
    this.#stream = stream;
    this.#maxLen = maxLen;
  }

  *push(bytes: Uint8Array, seq: number): Generator<Line, void, void> {
    let start = 0;
    while (start < bytes.length) {
      const at = bytes.indexOf(0x0a, start);
      const end = at < 0 ? bytes.length : at;
      if (this.#partialLen + end - start > this.#maxLen) {
        const taken = start + this.#maxLen - this.#partialLen;
        this.#keep(bytes.subarray(start, taken));
        yield this.#continued(seq);
        start = taken;
      } else if (at < 0) {
        // The memory of the chunk is not kept for a short rest.
        this.#keep(bytes.slice(start));
        return;
      } else {
        const whole = this.#partialLen === 0 ? bytes.subarray(start, at) : this.#take(bytes.subarray(start, at));
        const len = whole[whole.length - 1] === 0x0d ? whole.length - 1 : whole.length;
        yield this.#line(whole.subarray(0, len), seq, false);
        start = at + 1;
      }
    }
  }

  *finish(seq: number): Generator<Line, void, void> {
    if (this.#partialLen > 0) yield this.#line(this.#take(), seq, false);
  }

  #keep(bytes: Uint8Array): void {
    this.#partial.push(bytes);
    this.#partialLen += bytes.length;
  }

  #take(last?: Uint8Array): Uint8Array {
    if (last) this.#partial.push(last);
    const whole = concat(this.#partial);
    this.#partial = [];
    this.#partialLen = 0;
    return whole;
  }

  /** Returns the beginning of a line that is too long; it ends between two characters. */
  #continued(seq: number): Line {
    const whole = this.#take();
    let end = whole.length;
    while (end > whole.length - 3 && end > 1 && (whole[end - 1]! & 0xc0) === 0x80) end--;
    const lead = whole[end - 1]!;
    const needed = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
    const isComplete = end - 1 + needed <= whole.length || needed === 1;
    const cut = isComplete || end <= 1 ? whole.length : end - 1;
    if (cut < whole.length) this.#keep(whole.slice(cut));
    return this.#line(whole.subarray(0, cut), seq, true);
  }

  #line(bytes: Uint8Array, seq: number, isContinued: boolean): Line {
    return { stream: this.#stream, seq, text: toText(bytes), isContinued };
  }
}
