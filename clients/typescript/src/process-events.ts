/**
 * One consumer of the events of a process.
 *
 * @module
 */
import { onAbort } from "./abort.js";
import { readBatch } from "./decode.js";
import type { Engine } from "./engine.js";
import { RestartedError, isRefused } from "./errors.js";
import type { Consumer, EventQueue } from "./event-queue.js";
import { READ_BYTES } from "./event-queue.js";
import type { ProcessEvent, ReadBatch } from "./events.js";

/** The events of a process of this session: first those that have to be read back, then those of the queue. */
export class Events implements AsyncIterableIterator<ProcessEvent> {
  readonly #engine: Engine;
  /** Keeps the handle alive while its events are read. */
  readonly process: object;
  readonly #queue: EventQueue;
  readonly #consumer: Consumer;
  readonly #signal: AbortSignal | undefined;
  readonly #stopListening: (() => void) | undefined;
  readonly #past: ProcessEvent[] = [];
  #after: number;
  #historyUpTo: number;
  #hasEnded = false;
  /** The latest step, if it is not finished: steps are taken one after the other. */
  #step: Promise<unknown> | undefined;

  constructor(engine: Engine, process: object, queue: EventQueue, after: number | "end", signal: AbortSignal | undefined) {
    this.#engine = engine;
    this.process = process;
    this.#queue = queue;
    this.#signal = signal;
    if (after === "end") {
      this.#consumer = queue.subscribeAtEnd();
      this.#after = this.#historyUpTo = 0;
    } else {
      const { consumer, historyUpTo } = queue.subscribe(after);
      [this.#consumer, this.#historyUpTo, this.#after] = [consumer, historyUpTo, after];
    }
    if (signal?.aborted) this.#end();
    else this.#stopListening = signal && onAbort(signal, () => this.#end());
  }

  static atEnd(engine: Engine, process: object, queue: EventQueue, signal: AbortSignal | undefined): Events {
    return new Events(engine, process, queue, "end", signal);
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  next(): Promise<IteratorResult<ProcessEvent, undefined>> {
    if (this.#step === undefined && this.#past.length === 0 && this.#historyUpTo <= this.#after && !this.#hasEnded) {
      // The fast path: the event has already arrived.
      try {
        const event = this.#queue.take(this.#consumer);
        if (event && event.seq > this.#after) return Promise.resolve({ done: false, value: event });
        if (event === null) return this.return();
      } catch (error) {
        this.#end();
        return Promise.reject(error as Error);
      }
    }
    const step = (this.#step ?? Promise.resolve()).then(() => this.#next());
    const clear = (): void => {
      if (this.#step === settled) this.#step = undefined;
    };
    const settled: Promise<void> = step.then(clear, clear);
    this.#step = settled;
    return step;
  }

  return(): Promise<IteratorResult<ProcessEvent, undefined>> {
    this.#end();
    return Promise.resolve({ done: true, value: undefined });
  }

  async #next(): Promise<IteratorResult<ProcessEvent, undefined>> {
    try {
      for (;;) {
        if (this.#signal?.aborted) throw this.#signal.reason;
        if (this.#hasEnded) return { done: true, value: undefined };
        const past = this.#past.shift();
        if (past) return { done: false, value: past };
        if (this.#historyUpTo > this.#after) {
          await this.#readPast();
          continue;
        }
        const event = this.#queue.take(this.#consumer);
        if (event === null) return await this.return();
        if (event === undefined) await new Promise<void>((resolve) => (this.#consumer.wake = resolve));
        else if (event.seq > this.#after) return { done: false, value: event };
      }
    } catch (error) {
      this.#end();
      throw error;
    }
  }

  #end(): void {
    if (this.#hasEnded) return;
    this.#hasEnded = true;
    this.#stopListening?.();
    this.#queue.unsubscribe(this.#consumer);
    this.#consumer.wake?.();
  }

  /** Reads events that had left the queue before this consumer came. */
  async #readPast(): Promise<void> {
    const upTo = this.#historyUpTo;
    const began = this.#after;
    const { id: processId, incarnation } = this.#queue;
    if (!this.#queue.ownsId && incarnation === undefined) return this.#passUnlisted(upTo);
    const params = { processId, incarnation, afterSeq: began, maxBytes: READ_BYTES };
    let batch: ReadBatch;
    try {
      batch = readBatch(await this.#engine.call("process/read", params, { signal: this.#signal }));
    } catch (error) {
      const isEndUnknown = error instanceof RestartedError && !this.#queue.closed;
      if (!isRefused(error, "unknownProcess") || isEndUnknown) throw error;
      return this.#passUnlisted(upTo);
    }
    // It was restarted meanwhile, and this may be the output of the new process.
    if (!this.#queue.ownsId && incarnation === undefined) return this.#passUnlisted(upTo);
    if (batch.gap) {
      const toSeq = Math.min(batch.gap.toSeq, upTo);
      this.#past.push({ ...batch.gap, toSeq, seq: toSeq });
      this.#after = toSeq;
    }
    for (const chunk of batch.chunks) {
      if (chunk.seq > upTo) break;
      this.#passUnlisted(chunk.seq - 1);
      this.#past.push(chunk);
      this.#after = chunk.seq;
    }
    this.#passUnlisted(Math.min(upTo, batch.nextSeq - 1));
    // The server has no events in this range.
    if (this.#after === began) this.#passUnlisted(upTo);
  }

  /** Adds what the server does not list: the exit, the close, and what is lost. */
  #passUnlisted(upTo: number): void {
    const { exit, closed } = this.#queue;
    while (this.#after < upTo) {
      const next = this.#after + 1;
      const known = [exit, closed].find((event) => event?.seq === next);
      if (known) {
        this.#past.push(known);
        this.#after = next;
      } else {
        const later = [exit, closed].flatMap((event) => (event && event.seq > next ? [event.seq - 1] : []));
        const toSeq = Math.min(upTo, ...later);
        this.#past.push({ type: "gap", seq: toSeq, fromSeq: next, toSeq, bytes: undefined, cause: undefined });
        this.#after = toSeq;
      }
    }
  }
}
