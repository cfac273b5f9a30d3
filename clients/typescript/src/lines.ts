/**
 * Output as lines of text.
 *
 * @module
 */
import { concat, toText, wholeCharacters } from "./bytes.js";
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

/** The lines of events; fails with {@link GapError} where output is missing. Many lines come with one event. */
export class Lines implements AsyncIterableIterator<Line> {
  readonly #events: AsyncIterableIterator<ProcessEvent>;
  readonly #maxLen: number;
  readonly #splitters = new Map<string, LineSplitter>();
  #ready: Line[] = [];
  #taken = 0;
  #gap: GapError | undefined;

  constructor(events: AsyncIterableIterator<ProcessEvent>, maxLen = MAX_LINE_LEN) {
    this.#events = events;
    this.#maxLen = Math.max(maxLen, 4);
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  next(): Promise<IteratorResult<Line, undefined>> {
    const line = this.#take();
    return line ? Promise.resolve({ done: false, value: line }) : this.#next();
  }

  async return(): Promise<IteratorResult<Line, undefined>> {
    await this.#events.return?.();
    return { done: true, value: undefined };
  }

  #take(): Line | undefined {
    const line = this.#ready[this.#taken];
    if (line) this.#taken += 1;
    return line;
  }

  async #next(): Promise<IteratorResult<Line, undefined>> {
    for (;;) {
      const line = this.#take();
      if (line) return { done: false, value: line };
      if (this.#gap) {
        await this.return();
        throw this.#gap;
      }
      const { done, value: event } = await this.#events.next();
      if (done) return { done: true, value: undefined };
      if (this.#taken === this.#ready.length) [this.#ready, this.#taken] = [[], 0];
      if (event.type === "output") {
        let splitter = this.#splitters.get(event.stream);
        if (!splitter) this.#splitters.set(event.stream, (splitter = new LineSplitter(event.stream, this.#maxLen)));
        splitter.push(event.bytes, event.seq, this.#ready);
      } else if (event.type !== "exited") {
        for (const splitter of this.#splitters.values()) splitter.finish(event.seq, this.#ready);
        if (event.type === "gap") this.#gap = new GapError(event.bytes);
      }
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

  push(bytes: Uint8Array, seq: number, lines: Line[]): void {
    const end = bytes.lastIndexOf(0x0a);
    // Decoding all lines at once is much faster; a line feed is never a part of another character.
    const texts = end < 0 ? [] : toText(concat([...this.#partial, bytes.subarray(0, end)])).split("\n");
    if (end < 0 || texts.some((text) => 3 * text.length > this.#maxLen)) return this.#pushSlowly(bytes, seq, lines);
    this.#partial = [];
    this.#partialLen = 0;
    for (const text of texts) {
      lines.push({ stream: this.#stream, seq, text: text.endsWith("\r") ? text.slice(0, -1) : text, isContinued: false });
    }
    if (end + 1 < bytes.length) this.#keep(bytes.slice(end + 1));
  }

  /** Splits line by line, and long lines into pieces. */
  #pushSlowly(bytes: Uint8Array, seq: number, lines: Line[]): void {
    let start = 0;
    while (start < bytes.length) {
      const at = bytes.indexOf(0x0a, start);
      const end = at < 0 ? bytes.length : at;
      if (this.#partialLen + end - start > this.#maxLen) {
        const taken = start + this.#maxLen - this.#partialLen;
        this.#keep(bytes.subarray(start, taken));
        lines.push(this.#continued(seq));
        start = taken;
      } else if (at < 0) {
        // The memory of the chunk is not kept for a short rest.
        this.#keep(bytes.slice(start));
        return;
      } else {
        const whole = this.#partialLen === 0 ? bytes.subarray(start, at) : this.#take(bytes.subarray(start, at));
        const len = whole[whole.length - 1] === 0x0d ? whole.length - 1 : whole.length;
        lines.push(this.#line(whole.subarray(0, len), seq, false));
        start = at + 1;
      }
    }
  }

  finish(seq: number, lines: Line[]): void {
    if (this.#partialLen > 0) lines.push(this.#line(this.#take(), seq, false));
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
    const cut = wholeCharacters(whole) || whole.length;
    if (cut < whole.length) this.#keep(whole.slice(cut));
    return this.#line(whole.subarray(0, cut), seq, true);
  }

  #line(bytes: Uint8Array, seq: number, isContinued: boolean): Line {
    return { stream: this.#stream, seq, text: toText(bytes), isContinued };
  }
}
