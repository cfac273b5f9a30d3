/**
 * A process on the remote host.
 *
 * @module
 */
import { onAbort } from "./abort.js";
import { concat, toText, wholeCharacters } from "./bytes.js";
import type { Method, Params, Result } from "./calls.js";
import type { CallOptions, Engine } from "./engine.js";
import { sleep } from "./engine.js";
import { GapError, ProtocolError, isRefused } from "./errors.js";
import type { Consumer, EventQueue } from "./event-queue.js";
import { READ_BYTES } from "./event-queue.js";
import type { Chunk, Exit, ProcessEvent, ReadBatch } from "./events.js";
import { base64, readBatch, toExit } from "./events.js";
import type { Line } from "./lines.js";
import { Lines } from "./lines.js";
import { checkTime, checkWhole } from "./numbers.js";
import type { ProcessEntry, ProcessSeekPosition, ProcessSeekResult, ProcessSignalName } from "./protocol.js";
import { Stdin } from "./stdin.js";

/** The size of a terminal, in characters. */
export interface TerminalSize {
  rows: number;
  cols: number;
}

/** All output of a process, and how it ended. */
export interface Output extends Exit {
  readonly stdout: Uint8Array;
  readonly stderr: Uint8Array;
  /** The output of a terminal, which has no separate streams. */
  readonly terminal: Uint8Array;
  /** Whether it exited with status 0. */
  readonly ok: boolean;
  /** `stdout`, or that of the terminal, as text. */
  readonly text: string;
  /** `stderr` as text. */
  readonly errorText: string;
}

/** Output that matched. */
export interface Match {
  /** The event whose output completed the match. */
  readonly seq: number;
  readonly stream: string;
  /** The match and its groups. */
  readonly match: RegExpExecArray;
  /** What had arrived behind it in its stream: text, and the beginning of a character. */
  readonly rest: { readonly text: string; readonly bytes: Uint8Array };
}

/** The beginning and the end of the output of a process. */
export interface Snapshot {
  readonly stdout: Uint8Array;
  readonly stderr: Uint8Array;
  readonly terminal: Uint8Array;
  /** Bytes that were produced and are not here. */
  readonly omittedBytes: number;
  readonly exitCode: number | undefined;
  readonly isRunning: boolean;
}

/** Options of something that reads events. */
export interface EventOptions extends CallOptions {
  /** Begin after this event; 0, the default, is the beginning. */
  afterSeq?: number | undefined;
}

/** Options of {@link Process.waitFor}. */
export interface WaitForOptions extends EventOptions {
  /** Begin behind this match, also within the output that completed it; instead of `afterSeq`. */
  after?: Match | undefined;
}

/** How much of the output a search for an expression looks at, in characters. */
const SEARCH_LEN = 128 << 10;

/** How long one read of a process of another session waits for more. */
const POLL_MS = 20_000;

/** Stops following processes whose handles are gone, so that their output does not block them. */
const handles = new FinalizationRegistry<{ engine: Engine; queue: EventQueue }>(({ engine, queue }) => {
  engine.releaseQueue(queue);
});

/**
 * A process on the remote host.
 *
 * Its output is buffered for the first consumer: {@link Process.events}, {@link Process.stdout} and so on. When the
 * buffer is full, the process waits as on a full pipe; the slowest consumer decides. {@link Process.wait} and
 * {@link Process.release} lift that.
 *
 * `await using` kills the process at the end of the scope if it still runs; otherwise it goes on until its session ends.
 *
 * ```ts
 * const process = await host.start(["make", "test"]);
 * for await (const line of process.lines()) console.log(line.stream, line.text);
 * const { exitCode } = await process.wait();
 * ```
 */
export class Process implements AsyncDisposable {
  /** Its id in its session. */
  readonly id: string;
  /** Its process id on the remote host, if the server said so. */
  readonly pid: number | undefined;
  /** The session that it belongs to, if that is not the one of the client. */
  readonly sessionId: string | undefined;
  /** Its standard input; writes fail if it has none. */
  readonly stdin: Stdin;
  readonly #engine: Engine;
  readonly #queue: EventQueue | undefined;
  readonly #ids: { processId: string; sessionId?: string | undefined };
  readonly #streams = new Map<string, ReadableStream<Uint8Array>>();

  /** @internal */
  constructor(engine: Engine, ids: { processId: string; sessionId?: string | undefined }, queue: EventQueue | undefined, pid: number | undefined) {
    this.#engine = engine;
    this.#ids = ids;
    this.#queue = queue;
    this.id = ids.processId;
    this.sessionId = ids.sessionId;
    this.pid = pid;
    this.stdin = new Stdin(engine, ids);
    if (queue) {
      queue.handles += 1;
      handles.register(this, { engine, queue }, this);
    }
  }

  // Output.

  /**
   * Returns its events in order, each once: output, gaps, the exit and the close.
   *
   * Each call makes an independent consumer that begins now to hold events; end it with `break`, `return()` or the signal.
   */
  events(options?: EventOptions): AsyncIterableIterator<ProcessEvent> {
    const afterSeq = options?.afterSeq ?? 0;
    checkWhole("afterSeq", afterSeq);
    if (this.#queue) return new Events(this.#engine, this, this.#queue, afterSeq, options?.signal);
    return this.#polledEvents(afterSeq, options?.signal);
  }

  /**
   * Its output as chunks of bytes; fails with {@link GapError} where output is missing.
   *
   * ```ts
   * for await (const { stream, seq, bytes } of build.output()) console.log(stream, seq, bytes.length);
   * ```
   *
   * It is a consumer from when it is first read.
   */
  async *output(options?: EventOptions): AsyncGenerator<Chunk, void, void> {
    for await (const event of this.events(options)) {
      if (event.type === "gap") throw new GapError(event.bytes);
      if (event.type === "output") yield event;
    }
  }

  /**
   * Its standard output as a stream of bytes; like {@link Process.stderr} and {@link Process.terminal}, a consumer from
   * when it is first read.
   */
  get stdout(): ReadableStream<Uint8Array> {
    return this.#stream("stdout");
  }

  /** Its standard error as a stream of bytes. */
  get stderr(): ReadableStream<Uint8Array> {
    return this.#stream("stderr");
  }

  /** The output of its terminal as a stream of bytes. */
  get terminal(): ReadableStream<Uint8Array> {
    return this.#stream("pty");
  }

  /** Its output as lines of text; fails with {@link GapError} where output is missing. */
  lines(options?: EventOptions & {
    /** Longer lines come in pieces; 64 KiB by default. */
    maxLen?: number | undefined;
  }): AsyncIterableIterator<Line> {
    if (options?.maxLen !== undefined) checkWhole("maxLen", options.maxLen, 1);
    return new Lines(this.events(options), options?.maxLen);
  }

  /** Collects all of its output until it is closed; fails with {@link GapError} if some is missing. */
  async collect(options?: CallOptions): Promise<Output> {
    const streams: Record<string, Uint8Array[]> = {};
    let exit: Exit | undefined;
    for await (const event of this.events(options)) {
      if (event.type === "output") (streams[event.stream] ??= []).push(event.bytes);
      else if (event.type === "exited") ({ exit } = event);
      else if (event.type === "gap") throw new GapError(event.bytes);
    }
    if (!exit) throw new ProtocolError(`process \`${this.id}\` is closed but has not exited`);
    return toOutput(exit, streams);
  }

  /** Reads retained output once, without consuming it; waits up to `waitMs` if there is none. */
  async read(options?: EventOptions & { maxBytes?: number | undefined; waitMs?: number | undefined }): Promise<ReadBatch> {
    this.release();
    const { afterSeq = 0, maxBytes = READ_BYTES, waitMs, signal } = options ?? {};
    return readBatch(await this.#call("process/read", { afterSeq, maxBytes, waitMs }, { signal }));
  }

  /** Finds a position in its output by time, offset or distance from the end. */
  seek(to: ProcessSeekPosition, options?: CallOptions): Promise<ProcessSeekResult> {
    return this.#call("process/seek", { to }, options);
  }

  /** Returns the beginning and the end of its output so far. */
  async snapshot(options?: CallOptions & { maxBytes?: number | undefined }): Promise<Snapshot> {
    const reply = await this.#call("process/snapshot", { maxBytes: options?.maxBytes }, options);
    return {
      stdout: base64(reply.stdout, "stdout"),
      stderr: base64(reply.stderr, "stderr"),
      terminal: base64(reply.terminal, "terminal"),
      omittedBytes: reply.omittedBytes,
      exitCode: reply.exitCode ?? undefined,
      isRunning: reply.running,
    };
  }

  // Waiting.

  /** Waits until it has exited; unread output does not block it from here on, unless another consumer holds it. */
  async wait(options?: CallOptions): Promise<Exit> {
    if (!this.#queue) return toExit(await this.#call("process/wait", { until: "exit" }, options));
    const queue = this.#queue;
    queue.release();
    if (queue.exit) return queue.exit.exit;
    const events = Events.atEnd(this.#engine, this, queue, options?.signal);
    for await (const event of events) if (event.type === "exited") return event.exit;
    throw new ProtocolError(`process \`${this.id}\` is closed but has not exited`);
  }

  /**
   * Waits for output, old or new, that matches an expression, in each stream separately.
   *
   * Returns `undefined` if the process is closed and nothing matched. The expression is tried whenever output arrives:
   * `$` is the end of what has arrived. At most the last 128 KiB are searched.
   *
   * ```ts
   * const prompt = await shell.waitFor(/\$ $/);
   * await shell.stdin.write("make\n");
   * await shell.waitFor(/\$ $/, { after: prompt });
   * ```
   */
  async waitFor(pattern: RegExp | string, options?: WaitForOptions): Promise<Match | undefined> {
    const expression = typeof pattern === "string" ? new RegExp(escapeRegExp(pattern)) : new RegExp(pattern.source, pattern.flags.replace(/[gy]/g, ""));
    const find = (seq: number, stream: string, { text, bytes }: Match["rest"]): Match | undefined => {
      const match = expression.exec(text);
      return match ? { seq, stream, match, rest: { text: text.slice(match.index + match[0].length), bytes } } : undefined;
    };
    const searched = new Map<string, Match["rest"]>();
    const { after, signal } = options ?? {};
    if (after) {
      signal?.throwIfAborted();
      const found = find(after.seq, after.stream, after.rest);
      if (found) return found;
      searched.set(after.stream, after.rest);
    }
    for await (const event of this.events({ signal, afterSeq: after?.seq ?? options?.afterSeq })) {
      if (event.type === "gap") searched.clear();
      if (event.type !== "output") continue;
      const before = searched.get(event.stream);
      const bytes = before ? concat([before.bytes, event.bytes]) : event.bytes;
      const whole = wholeCharacters(bytes);
      const text = ((before?.text ?? "") + toText(bytes.subarray(0, whole))).slice(-SEARCH_LEN);
      const search = { text, bytes: bytes.subarray(whole) };
      const found = find(event.seq, event.stream, search);
      if (found) return found;
      searched.set(event.stream, search);
    }
    return undefined;
  }

  /** Waits until it has written nothing for this long; returns its exit if that comes first. */
  async waitForSilence(ms: number, options?: CallOptions): Promise<Exit | undefined> {
    checkTime("ms", ms);
    const queue = this.#queue;
    if (!queue) {
      const reply = await this.#call("process/wait", { until: { idleMs: ms } }, options);
      return reply.reason === "idle" ? undefined : toExit(reply);
    }
    queue.release();
    for (;;) {
      if (queue.exit) return queue.exit.exit;
      if (queue.failed) throw queue.failed;
      const left = queue.lastOutputAt + ms - performance.now();
      if (left <= 0) return undefined;
      const ended = new AbortController();
      const signal = options?.signal ? AbortSignal.any([ended.signal, options.signal]) : ended.signal;
      const exited = this.wait({ signal });
      await Promise.race([sleep(left, signal), exited]).finally(() => ended.abort());
      exited.catch(() => undefined);
    }
  }

  // Control.

  /** Sends a signal to its process group; never twice, so a disconnect meanwhile is an `RequestInterruptedError`. */
  async signal(signal: ProcessSignalName, options?: CallOptions): Promise<void> {
    await this.#call("process/signal", { signal }, options);
  }

  /** Sends SIGTERM to the process and all its descendants, and SIGKILL to what is left after `graceMs`. */
  async terminate(options?: CallOptions & { graceMs?: number | undefined }): Promise<void> {
    await this.#call("process/terminate", { mode: { graceful: { timeoutMs: options?.graceMs ?? 5000 } } }, options);
  }

  /** Kills the process and all its descendants at once; does nothing if it has ended. */
  async kill(options?: CallOptions): Promise<void> {
    await this.#call("process/terminate", { mode: "force" }, options);
  }

  /** Sets the size of its terminal. */
  async resize(size: TerminalSize, options?: CallOptions): Promise<void> {
    await this.#call("process/resize", { ...size }, options);
  }

  /** Stops keeping output for a first consumer, so that unread output does not block the process. */
  release(): void {
    this.#queue?.release();
  }

  /** Makes the server forget a closed process and its output now. */
  async forget(options?: CallOptions): Promise<void> {
    await this.#call("process/forget", {}, options);
  }

  /** Returns what `process/list` says about it; `undefined` if the server has forgotten it. */
  async info(options?: CallOptions): Promise<ProcessEntry | undefined> {
    const { processes } = await this.#call("process/list", {}, options);
    return processes.find((entry) => entry.processId === this.id);
  }

  /** Stops following the process, which goes on; its output stays readable as far as it is retained. */
  detach(): void {
    if (this.#queue && handles.unregister(this)) this.#engine.releaseQueue(this.#queue);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    try {
      if (!this.#queue?.closed && this.#engine.state !== "lost") await this.kill();
    } finally {
      this.detach();
    }
  }

  #stream(name: string): ReadableStream<Uint8Array> {
    let stream = this.#streams.get(name);
    if (!stream) this.#streams.set(name, (stream = streamOf(() => this.events(), name)));
    return stream;
  }

  #call<M extends Method>(method: M, params: Omit<Params<M>, "processId" | "sessionId">, options?: CallOptions): Promise<Result<M>> {
    return this.#engine.call(method, { ...this.#ids, ...params } as Params<M>, options);
  }

  /** Reads the events of a process of another session. */
  async *#polledEvents(afterSeq: number, signal: AbortSignal | undefined): AsyncGenerator<ProcessEvent, void, void> {
    let [cursor, hasExited] = [afterSeq, false];
    for (;;) {
      const batch = await this.read({ afterSeq: cursor, waitMs: POLL_MS, signal });
      if (batch.gap) yield batch.gap;
      yield* batch.chunks;
      const last = batch.chunks.at(-1)?.seq ?? batch.gap?.toSeq ?? cursor;
      cursor = Math.max(cursor, batch.nextSeq - 1);
      // A limited answer does not say what follows its last chunk.
      if (batch.chunks.length > 0 && !(batch.closed && cursor > last)) continue;
      if (batch.exit && !hasExited) {
        hasExited = true;
        yield { type: "exited", seq: batch.closed ? cursor - 1 : cursor, exit: batch.exit };
      }
      if (batch.closed) {
        yield { ...batch.closed, seq: cursor };
        return;
      }
    }
  }
}

/** The events of a process of this session: first those that have to be read back, then those of the queue. */
class Events implements AsyncIterableIterator<ProcessEvent> {
  readonly #engine: Engine;
  /** Keeps the handle alive while its events are read. */
  readonly process: Process;
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

  constructor(engine: Engine, process: Process, queue: EventQueue, after: number | "end", signal: AbortSignal | undefined) {
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

  static atEnd(engine: Engine, process: Process, queue: EventQueue, signal: AbortSignal | undefined): Events {
    return new Events(engine, process, queue, "end", signal);
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  next(): Promise<IteratorResult<ProcessEvent, undefined>> {
    if (this.#step === undefined && this.#past.length === 0 && this.#historyUpTo <= this.#after && !this.#hasEnded) {
      // Usually the event is there.
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
    const params = { processId: this.#queue.id, afterSeq: began, maxBytes: READ_BYTES };
    let batch: ReadBatch;
    try {
      batch = readBatch(await this.#engine.call("process/read", params, { signal: this.#signal }));
    } catch (error) {
      if (!isRefused(error, "unknownProcess")) throw error;
      return this.#passUnlisted(upTo);
    }
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

/** Returns one stream of output as a `ReadableStream`; nothing is read ahead, and nothing before it is read. */
function streamOf(open: () => AsyncIterableIterator<ProcessEvent>, name: string): ReadableStream<Uint8Array> {
  let events: AsyncIterableIterator<ProcessEvent> | undefined;
  return new ReadableStream<Uint8Array>({
    async pull(controller) {
      events ??= open();
      for (;;) {
        const { done, value } = await events.next();
        if (done) return controller.close();
        if (value.type === "gap") {
          await events.return?.();
          throw new GapError(value.bytes);
        }
        if (value.type === "output" && value.stream === name && value.bytes.length > 0) return controller.enqueue(value.bytes);
      }
    },
    async cancel() {
      await events?.return?.();
    },
  }, { highWaterMark: 0 });
}

function toOutput(exit: Exit, streams: Record<string, Uint8Array[]>): Output {
  const [stdout, stderr, terminal] = [concat(streams["stdout"] ?? []), concat(streams["stderr"] ?? []), concat(streams["pty"] ?? [])];
  return {
    ...exit, stdout, stderr, terminal,
    ok: exit.exitCode === 0 && exit.signal === undefined,
    get text() {
      return toText(stdout.length > 0 ? stdout : terminal);
    },
    get errorText() {
      return toText(stderr);
    },
  };
}

function escapeRegExp(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
}
