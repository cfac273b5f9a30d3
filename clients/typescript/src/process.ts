/**
 * A process on the remote host.
 *
 * @module
 */
import { concat, toText } from "./bytes.js";
import type { CallOptions, Method, Params, ProcessIds, Result } from "./calls.js";
import { bytesOf, readBatch, toExit } from "./decode.js";
import type { Engine } from "./engine.js";
import { GapError, NoMatchError, ProtocolError, RestartedError, UsageError } from "./errors.js";
import type { EventQueue } from "./event-queue.js";
import { READ_BYTES } from "./event-queue.js";
import type { Chunk, Exit, Output, ProcessEvent, ReadBatch } from "./events.js";
import type { Line } from "./lines.js";
import { Lines } from "./lines.js";
import { checkTime, checkWhole } from "./numbers.js";
import type { Match } from "./output-search.js";
import { OutputSearch } from "./output-search.js";
import type { ProcessEntry, ProcessSeekPosition, ProcessSeekResult, ProcessSignalName } from "./protocol.js";
import { Events } from "./process-events.js";
import type { RestartOptions } from "./restart.js";
import { restart } from "./restart.js";
import { Stdin } from "./stdin.js";
import { sleep } from "./timing.js";

/** What is known about a process from its start. */
interface ProcessFacts {
  readonly pid: number | undefined;
  readonly isTerminal: boolean;
}

/** The size of a terminal, in characters. */
export interface TerminalSize {
  rows: number;
  cols: number;
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

/** How long one read of a process of another session waits for more. */
const POLL_MS = 20_000;

/** Stops following processes whose handles are gone, so that their output does not block them. */
const handles = new FinalizationRegistry<{ engine: Engine; queue: EventQueue }>(({ engine, queue }) => {
  engine.queues.release(queue);
});

/**
 * A process on the remote host.
 *
 * Its output is buffered for the first consumer: {@link Process.events}, {@link Process.stdout} and so on. When the
 * buffer is full, the process waits as on a full pipe; the slowest consumer decides. {@link Process.wait} and
 * {@link Process.discardOutput} lift that.
 *
 * `await using` kills the process at the end of the scope if it still runs; otherwise it keeps running until its session ends.
 *
 * ```ts
 * const build = await host.start(["make", "test"]);
 * for await (const line of build.lines()) console.log(line.stream, line.text);
 * const { exitCode } = await build.wait();
 * ```
 */
export class Process implements AsyncDisposable {
  /** Its id in its session. */
  readonly id: string;
  /** Its process id on the remote host, if the server said so. */
  readonly pid: number | undefined;
  /** The session that it belongs to, if that is not the one of the client. */
  readonly sessionId: string | undefined;
  /** Tells this start of the process from those before and after a restart, if the server says so. */
  readonly incarnation: number | undefined;
  /** Its standard input; writes fail if it has none. */
  readonly stdin: Stdin;
  readonly #engine: Engine;
  readonly #queue: EventQueue | undefined;
  readonly #ids: ProcessIds;
  readonly #isTerminal: boolean;
  readonly #streams = new Map<string, ReadableStream<Uint8Array>>();

  /** @internal */
  constructor(engine: Engine, ids: ProcessIds, queue: EventQueue | undefined, { pid, isTerminal }: ProcessFacts) {
    this.#engine = engine;
    this.#ids = ids;
    this.#queue = queue;
    this.#isTerminal = isTerminal;
    this.id = ids.processId;
    this.sessionId = ids.sessionId;
    this.incarnation = ids.incarnation;
    this.pid = pid;
    this.stdin = new Stdin(engine, ids, isTerminal);
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
    this.discardOutput();
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
      stdout: bytesOf(reply.stdout, "stdout"),
      stderr: bytesOf(reply.stderr, "stderr"),
      terminal: bytesOf(reply.terminal, "terminal"),
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
   * Fails with {@link NoMatchError} if the process is closed and nothing matched. The expression is tried whenever output
   * arrives: `$` is the end of what has arrived. At most the last 128 KiB are searched.
   *
   * ```ts
   * const prompt = await shell.waitFor(/\$ $/);
   * await shell.stdin.write("make\n");
   * const { before } = await shell.waitFor(/\$ $/, { after: prompt }); // what make has written
   * ```
   */
  async waitFor(pattern: RegExp | string, options: WaitForOptions = {}): Promise<Match> {
    const { after, signal } = options;
    if ("after" in options && after === undefined) {
      throw new UsageError("`after` is undefined", { hint: "leave it out to search from the beginning" });
    }
    const search = new OutputSearch(pattern);
    if (after) {
      signal?.throwIfAborted();
      const found = search.continueAfter(after);
      if (found) return found;
    }
    let exit: Exit | undefined;
    for await (const event of this.events({ signal, afterSeq: after?.seq ?? options.afterSeq })) {
      if (event.type === "gap") search.onGap();
      if (event.type === "exited") ({ exit } = event);
      const found = event.type === "output" ? search.push(event) : undefined;
      if (found) return found;
    }
    throw new NoMatchError(`process \`${this.id}\` ended before its output matched ${String(pattern)}`, exit ?? this.#queue?.exit?.exit);
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

  /**
   * Ends the process with all its descendants, if it still runs, and starts it again under its id, as it was started: with
   * its environment, terminal, sandbox and limits. Returns a handle of the new process; this one ends with the old one.
   *
   * It must have been started with `restartable`, and no other client may hold its session. It happens once, also across
   * disconnects; the error of a failed start says that the process has ended. An aborted restart may be carried out.
   * What a consumer of this handle has not read yet holds up the output of the new process; without a consumer, up to
   * 1 MiB of the rest of the old output is kept here, and beyond that the handle fails with {@link RestartedError}.
   *
   * ```ts
   * const web = await host.start(["npm", "start"], { restartable: true });
   * const again = await web.restart();
   * await again.waitFor("listening");
   * ```
   */
  async restart(options: RestartOptions = {}): Promise<Process> {
    const { pid, incarnation, queue } = await restart(this.#engine, this.#ids, options);
    const process = new Process(this.#engine, { ...this.#ids, incarnation }, queue, { pid, isTerminal: this.#isTerminal });
    if (queue) this.#engine.queues.release(queue);
    return process;
  }

  /** Sets the size of its terminal. */
  async resize(size: TerminalSize, options?: CallOptions): Promise<void> {
    await this.#call("process/resize", { ...size }, options);
  }

  /** Stops keeping output for a first consumer, so that unread output does not block the process. */
  discardOutput(): void {
    this.#queue?.release();
  }

  /** Lets the process continue while this client is disconnected: a full log then drops the oldest output. */
  async release(options?: CallOptions): Promise<void> {
    await this.#call("process/release", {}, options);
  }

  /** Makes the server forget a closed process and its output now. */
  async forget(options?: CallOptions): Promise<void> {
    await this.#call("process/forget", {}, options);
  }

  /** Returns what `process/list` says about it; `undefined` if the server has forgotten it, or has restarted it since. */
  async info(options?: CallOptions): Promise<ProcessEntry | undefined> {
    const { processes } = await this.#engine.call("process/list", { sessionId: this.sessionId }, options);
    const isMeant = ({ incarnation }: ProcessEntry): boolean => this.incarnation === undefined || incarnation === this.incarnation;
    return processes.find((entry) => entry.processId === this.id && isMeant(entry));
  }

  /** Stops following the process, which keeps running; its retained output stays readable. */
  detach(): void {
    if (this.#queue && handles.unregister(this)) this.#engine.queues.release(this.#queue);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    try {
      const isOver = this.#queue && (this.#queue.closed || !this.#queue.ownsId);
      if (!isOver && this.#engine.state !== "lost") await this.kill();
    } catch (error) {
      if (!(error instanceof RestartedError)) throw error;
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
    get stdoutText() {
      return toText(stdout);
    },
    get stderrText() {
      return toText(stderr);
    },
    get terminalText() {
      return toText(terminal);
    },
  };
}

