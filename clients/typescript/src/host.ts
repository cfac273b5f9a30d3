/**
 * A client: one session with one server.
 *
 * @module
 */
import { attachedToBase64 } from "./attached.js";
import { kindOf, toText } from "./bytes.js";
import type { CallOptions, Method, Params, Result } from "./calls.js";
import { Engine } from "./engine.js";
import { CommandFailedError, SessionLostError, UsageError, isRefused } from "./errors.js";
import type { Output } from "./events.js";
import { Files } from "./files.js";
import { Http } from "./http.js";
import type { Dial } from "./link.js";
import { checkTime, checkWhole } from "./numbers.js";
import { Process } from "./process.js";
import type { EnvironmentInfo, InitializeResult, ProcessEntry, ProcessScope, SessionEntry } from "./protocol.js";
import type { ConnectionState, EngineOptions, ResumedSession } from "./session.js";
import type { Source } from "./source.js";
import { checkSource, chunksOf, isWhole } from "./source.js";
import type { Stdin } from "./stdin.js";
import { MAX_UNANSWERED } from "./stdin.js";
import type { Argv, RunOptions, StartOptions } from "./start.js";
import { start } from "./start.js";
import { sleep } from "./timing.js";

/** Options of a connection, on every platform. */
export interface HostOptions extends CallOptions {
  /** The name that the client sends to the server; `remex-client` by default. */
  clientName?: string | undefined;
  /**
   * The session: a name for the one with this name, which is created if there is none, or {@link resume} for one that
   * must exist. By default a new one, which ends at the end of `await using`.
   */
  session?: string | ResumedSession | undefined;
  /** How long the session survives without a connection; the server's default, 80 s, unless set. */
  detachTtlMs?: number | undefined;
  /** The timeout for establishing one connection; 10 s by default. */
  connectTimeoutMs?: number | undefined;
  /** The timeout for the handshake on a new connection; 10 s by default. */
  handshakeTimeoutMs?: number | undefined;
  /** How long to try again when the first connection fails in a way that may pass; not at all by default. */
  connectRetryMs?: number | undefined;
  /** The timeout of a call, including the time spent reconnecting; none by default. */
  requestTimeoutMs?: number | undefined;
  /** How long to try to reconnect after a disconnect; 60 s by default. */
  reconnectTimeoutMs?: number | undefined;
  /** The interval of keep-alive pings; 15 s by default. */
  keepAliveIntervalMs?: number | undefined;
  /** How long to wait for the answer to a ping before the connection counts as lost; 10 s by default. */
  keepAliveTimeoutMs?: number | undefined;
}

/** How long the end of `await using` waits for the end of a session. */
const END_TIMEOUT_MS = 5000;

/** How much of a command is in a message, in characters. */
const COMMAND_LEN = 200;

/** How often to try to attach to a process or start it while other clients do the same. */
const MAX_ATTEMPTS = 3;

/** The options that are times: those that nothing could be done in if they were zero, and those that may be endless. */
const TIME_LIMITS = ["connectTimeoutMs", "handshakeTimeoutMs", "requestTimeoutMs", "keepAliveIntervalMs", "keepAliveTimeoutMs"] as const;
const RETRY_TIMES = ["connectRetryMs", "reconnectTimeoutMs"] as const;

/**
 * One session with one server.
 *
 * After a disconnect it reconnects and resumes the session: calls and consumers notice only a pause, unless a call cannot
 * be repeated ({@link RequestInterruptedError}) or the session is lost ({@link SessionLostError}).
 *
 * {@link Host.close} closes the connection; the session and its processes survive for its time to live. {@link Host.end}
 * ends them. `await using` ends a new session without a name, which nothing can resume by name, and closes others.
 */
export class Host implements AsyncDisposable {
  /** The files of the remote host. */
  readonly files: Files;
  /** HTTP requests from the remote host. */
  readonly http: Http;
  /** @internal */
  readonly engine: Engine;

  /** @internal Use {@link connect}. */
  constructor(engine: Engine, files: Files) {
    this.engine = engine;
    this.files = files;
    this.http = new Http(engine);
  }

  /** The id of the session; another client resumes it with `session: resume(id)`. Empty on a server without sessions. */
  get sessionId(): string {
    return this.engine.welcome.sessionId;
  }

  /** The server's answer to the handshake: its name, version, capabilities and limits. */
  get welcome(): InitializeResult {
    return this.engine.welcome;
  }

  /** The state of the connection. */
  get state(): ConnectionState {
    return this.engine.state;
  }

  /** How often the connection was lost so far. */
  get disconnects(): number {
    return this.engine.disconnects;
  }

  /** Calls a function whenever the state of the connection changes; returns how to stop that. */
  onStateChange(listener: (state: ConnectionState) => void): () => void {
    this.engine.stateListeners.add(listener);
    return () => void this.engine.stateListeners.delete(listener);
  }

  /**
   * Runs a command to its end, and returns its output and how it ended.
   *
   * A command that fails is an error only with `check`; otherwise look at `ok` or `exitCode`. A signal kills the process
   * tree.
   *
   * ```ts
   * const { ok, stdoutText, stderrText } = await host.run(["make", "test"], { cwd: "src", timeoutMs: 60_000 });
   * ```
   */
  async run(argv: Argv, options: RunOptions = {}): Promise<Output> {
    const { check, ...unchecked } = options;
    const output = await this.#run(argv, unchecked);
    if (check && !output.ok) throw new CommandFailedError(commandOf(argv), output);
    return output;
  }

  /**
   * Runs a line of a shell, `sh -c`, like {@link Host.run}.
   *
   * ```ts
   * const { stdoutText } = await host.sh("git log --oneline | head -3", { cwd: "~/src", check: true });
   * ```
   */
  sh(line: string, options?: RunOptions): Promise<Output> {
    return this.run(["sh", "-c", line], options);
  }

  async #run(argv: Argv, options: RunOptions): Promise<Output> {
    const { input, ...rest } = options;
    if (input !== undefined) checkSource("input", input);
    const process = await start(this.engine, argv, input === undefined ? rest : { ...rest, stdin: "pipe" });
    const over = new AbortController();
    const signal = options.signal ? AbortSignal.any([options.signal, over.signal]) : over.signal;
    try {
      const collected = process.collect({ signal });
      if (input === undefined) return await collected;
      // Input that cannot be read or written fails the run; otherwise the process decides how it ends.
      const failed = feed(process.stdin, input, signal).then(() => new Promise<never>(() => undefined));
      return await Promise.race([collected, failed]);
    } catch (error) {
      process.kill().catch(() => undefined);
      throw error;
    } finally {
      over.abort();
      process.detach();
    }
  }

  /**
   * Starts a process; at most once, also if the connection is lost meanwhile.
   *
   * If the call is aborted or takes too long, and the process was started all the same, it is terminated.
   *
   * ```ts
   * const shell = await host.start(["bash"], { tty: { rows: 24, cols: 80 } });
   * await shell.stdin.write("ls\n");
   * ```
   */
  start(argv: Argv, options: StartOptions = {}): Promise<Process> {
    return start(this.engine, argv, options);
  }

  /**
   * Returns a handle of the process with this id, running or not, and starts it if there is none.
   *
   * ```ts
   * const host = await connect("build", { session: "nightly" });
   * const build = await host.attachOrStart("build", ["make", "-j8"]); // the same one, however often this runs
   * ```
   */
  async attachOrStart(id: string, argv: Argv, options: StartOptions = {}): Promise<Process> {
    // Between an attempt and the next the process may be started by another client, or forgotten.
    for (let attempt = 1; ; attempt++) {
      // A start would first take the output that is held for the client of the session, and be refused.
      try {
        return await this.attach(id, { signal: options.signal });
      } catch (error) {
        // A server of the base dialect lists no processes.
        const isUnknown = error instanceof UsageError || isRefused(error, "unknownMethod");
        if (!isUnknown || attempt > MAX_ATTEMPTS) throw error;
      }
      // Another call may be starting it.
      if (this.engine.queues.get(id)) continue;
      try {
        return await this.start(argv, { ...options, id });
      } catch (error) {
        if (!isRefused(error, "processExists") && !isRefused(error, "startIdMismatch")) throw error;
      }
    }
  }

  /**
   * Returns a handle of a process that exists: of this session, for example after a resume, or of another one of the
   * same owner, by the id or name of that session. After a restart that is the process that runs now.
   */
  async attach(processId: string, options?: CallOptions & { sessionId?: string | undefined }): Promise<Process> {
    const { session } = this.engine.options;
    const isOwn = [this.sessionId, typeof session === "object" ? session.resume : session].includes(options?.sessionId);
    const sessionId = isOwn ? undefined : options?.sessionId;
    for (;;) {
      const { processes } = await this.engine.call("process/list", { sessionId }, options);
      const entry = processes.find((process) => process.processId === processId);
      if (!entry) throw new UsageError(`there is no process \`${processId}\``, { hint: "list the processes" });
      const facts = { pid: entry.pid ?? undefined, isTerminal: entry.tty };
      const incarnation = entry.incarnation ?? undefined;
      if (sessionId !== undefined) return new Process(this.engine, { processId, sessionId, incarnation }, undefined, facts);
      let queue = this.engine.queues.get(processId);
      if (!queue) {
        queue = this.engine.queues.add(processId);
        queue.onStarted({ hasHistory: true, incarnation });
      }
      const isAnother = queue.incarnation !== undefined && incarnation !== undefined && queue.incarnation !== incarnation;
      if (!isAnother) return new Process(this.engine, { processId, incarnation }, queue, facts);
      // Either the process of the queue was restarted, or the list is from before a restart.
      await this.engine.queues.check(queue, options);
    }
  }

  /** Lists processes, the oldest first: those of this session, of all sessions of this identity, or of everyone. */
  async processes(options?: CallOptions & { scope?: ProcessScope | undefined; sessionId?: string | undefined }): Promise<ProcessEntry[]> {
    const { signal, ...params } = options ?? {};
    return (await this.engine.call("process/list", params, { signal })).processes;
  }

  /** Lists the sessions of this identity, the oldest first. */
  async sessions(options?: CallOptions): Promise<SessionEntry[]> {
    return (await this.engine.call("session/list", {}, options)).sessions;
  }

  /** Ends another session of this identity with all its processes. */
  async endSession(sessionId: string, options?: CallOptions): Promise<void> {
    await this.engine.call("session/end", { sessionId }, options);
  }

  /** Returns information about the remote host. */
  info(options?: CallOptions): Promise<EnvironmentInfo> {
    return this.engine.call("environment/info", {}, options);
  }

  /** Makes any call of the protocol; the other methods are usually more convenient. */
  async call<M extends Method>(method: M, params: Params<M>, options?: CallOptions): Promise<Result<M>> {
    const result = await this.engine.call(method, params, options);
    // However the bytes travelled.
    attachedToBase64(result);
    return result;
  }

  /** Closes the connection; the session survives for its time to live, `detachTtlMs`. */
  close(): Promise<void> {
    return this.engine.close();
  }

  /** Ends the session and all its processes, and closes the connection. */
  end(): Promise<void> {
    return this.engine.end();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.state === "lost" || this.engine.options.session !== undefined) return this.close();
    const over = new AbortController();
    try {
      await Promise.race([this.end(), sleep(END_TIMEOUT_MS, over.signal)]);
    } catch (error) {
      if (!(error instanceof SessionLostError)) throw error;
    } finally {
      over.abort();
      // A session that cannot be reached ends when its time to live is over.
      await this.close();
    }
  }
}

/** Returns a command for messages to people. */
function commandOf(argv: Argv): string {
  const line = argv.map((word) => (typeof word === "string" ? word : toText(word))).join(" ");
  return line.length > COMMAND_LEN ? `${line.slice(0, COMMAND_LEN)}…` : line;
}

/** Writes all input and ends it; fails unless the process has ended without reading it. */
async function feed(stdin: Stdin, input: Source, signal: AbortSignal): Promise<void> {
  try {
    if (isWhole(input)) await stdin.write(input);
    else await writeStream(stdin, input, signal);
    await stdin.close();
  } catch (error) {
    // A process may exit without reading; its exit status says more than the broken pipe.
    if (signal.aborted || isRefused(error, "stdinClosed") || isRefused(error, "unknownProcess")) return;
    throw error;
  }
}

/** Writes what a source yields, several pieces at once. */
async function writeStream(stdin: Stdin, source: Source, signal: AbortSignal): Promise<void> {
  const unanswered: Promise<void>[] = [];
  for await (const bytes of chunksOf(source)) {
    signal.throwIfAborted();
    // The source may reuse its buffer.
    const write = stdin.write(bytes.slice());
    write.catch(() => undefined);
    if (unanswered.push(write) >= MAX_UNANSWERED) await unanswered.shift();
  }
  await Promise.all(unanswered);
}

/** Connects and performs the handshake. */
export async function openHost<H extends Host>(dial: Dial, options: HostOptions, make: (engine: Engine) => H): Promise<H> {
  const { signal, ...rest } = options;
  const { session } = rest;
  if (session === "" || (session !== undefined && typeof session !== "string" && typeof session?.resume !== "string")) {
    throw new UsageError(`\`session\` is ${session === "" ? "empty" : kindOf(session)}`, { hint: "pass a name, or `resume(…)`" });
  }
  if (rest.detachTtlMs !== undefined) checkWhole("detachTtlMs", rest.detachTtlMs);
  for (const name of TIME_LIMITS) if (rest[name] !== undefined) checkTime(name, rest[name], { min: 1 });
  for (const name of RETRY_TIMES) if (rest[name] !== undefined) checkTime(name, rest[name], { isEndless: true });
  const defined = Object.fromEntries(Object.entries(rest).filter(([, value]) => value !== undefined));
  const defaults: EngineOptions = {
    clientName: "remex-client",
    connectTimeoutMs: 10_000,
    handshakeTimeoutMs: 10_000,
    connectRetryMs: 0,
    reconnectTimeoutMs: 60_000,
    keepAliveIntervalMs: 15_000,
    keepAliveTimeoutMs: 10_000,
  };
  const engine = new Engine(dial, { ...defaults, ...defined });
  await engine.connect(signal);
  return make(engine);
}
