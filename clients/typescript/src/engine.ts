/**
 * One session with one server, over one connection at a time: calls, routing of notifications, reconnects.
 *
 * Start at {@link Engine}. It does no I/O itself: a {@link Dial} makes connections.
 *
 * @module
 */
import { onAbort } from "./abort.js";
import { placeAttached } from "./attached.js";
import { randomWord } from "./bytes.js";
import { CallTable } from "./call-table.js";
import type { InnerCallOptions, Method, Params, Result } from "./calls.js";
import { WITHOUT_TIMEOUT, isRepeatable, laneOf } from "./calls.js";
import type { ConnectionOwner } from "./connection.js";
import { Connection, HANDSHAKE_ID } from "./connection.js";
import { chunkEvent, closedEvent, exitedEvent, gapEvent, incarnationOf } from "./decode.js";
import {
  ProtocolError, RefusedError, RemexError, SessionLostError, TimedOutError, UnauthorizedError, UnreachableError, UsageError,
  asRemexError, isRefused,
} from "./errors.js";
import type { OutputEvent, ProcessEvent } from "./events.js";
import type { Dial, Link } from "./link.js";
import type { Due } from "./notes.js";
import { checkParams } from "./numbers.js";
import type { Outgoing } from "./outgoing.js";
import { outgoingLength } from "./outgoing.js";
import { fromWirePath, resolvePath, toUri } from "./path.js";
import type { InitializeResult } from "./protocol.js";
import type { QueuesOwner } from "./queues.js";
import { Queues } from "./queues.js";
import type { BytesParams } from "./request.js";
import { request, withPaths } from "./request.js";
import { Routes } from "./routes.js";
import type { ConnectionState, EngineOptions } from "./session.js";
import { closedError, forgotten } from "./session.js";
import { jittered, sleep } from "./timing.js";

const FIRST_BACKOFF_MS = 50;
const MAX_BACKOFF_MS = 2000;
/** This many protocol errors within a minute end the session. */
const MAX_PROTOCOL_ERRORS = 8;

/** The connection, its calls and its queues. */
export class Engine implements ConnectionOwner, QueuesOwner {
  readonly options: EngineOptions;
  readonly target: string;
  /** How often the connection was lost so far. */
  disconnects = 0;
  state: ConnectionState = "reconnecting";
  readonly stateListeners = new Set<(state: ConnectionState) => void>();

  readonly #dial: Dial;
  readonly #names = randomWord();
  #nameCount = 0;
  #welcome: InitializeResult | undefined;
  #connection: Connection | undefined;
  #lost: SessionLostError | undefined;
  /** Whether the session is asked to end, or has ended. */
  #end: "no" | "requested" | "done" = "no";
  readonly #closing = new AbortController();
  #running: Promise<void> = Promise.resolve();
  readonly #calls = new CallTable({
    send: (message) => this.#connection?.send(message),
    isConnected: () => this.#connection !== undefined,
    cancel: (id) => this.cancel(id),
    tooLong: ({ method, message }) => this.#tooLong(method, message),
  });
  readonly queues = new Queues(this);
  readonly routes = new Routes();
  readonly #enabled = { cancel: false, consumed: false, binaryFrames: false };
  #protocolErrors: number[] = [];
  /** When the connection was lost the last time, in milliseconds of `performance.now()`. */
  #disconnectedAt = 0;

  constructor(dial: Dial, options: EngineOptions) {
    this.#dial = dial;
    this.target = dial.target;
    this.options = options;
  }

  /** The answer of the server to the first handshake. */
  get welcome(): InitializeResult {
    if (this.#welcome === undefined) throw new UsageError("there is no session yet");
    return this.#welcome;
  }

  /** Whether the server has sessions; one of the oldest dialect has none, and knows plain paths only. */
  get hasSessions(): boolean {
    return this.welcome.sessionId !== "";
  }

  /** Returns a name that no other client of the session uses. */
  name(prefix: string): string {
    return `${prefix}-${this.#names}-${++this.#nameCount}`;
  }

  // Calls.

  /** Makes a call, with a timeout if the options have one. */
  call<M extends Method>(method: M, params: Params<M>, options?: InnerCallOptions<Result<M>>): Promise<Result<M>> {
    return this.#withRequestTimeout(method, options?.signal, (signal) => this.#call(method, params, { ...options, signal }));
  }

  /** Makes a call with bytes among its params: whether they travel as base64 is decided when they are sent. */
  callWithBytes<M extends Method, K extends keyof Params<M> & string>(
    method: M, params: Omit<Params<M>, K>, bytes: { readonly [member in K]: BytesParams[string] }, options?: InnerCallOptions<Result<M>>,
  ): Promise<Result<M>> {
    return this.#withRequestTimeout(method, options?.signal, (signal) => this.#call(method, params as Params<M>, { ...options, signal }, bytes));
  }

  #withRequestTimeout<T>(method: Method, given: AbortSignal | undefined, call: (signal: AbortSignal | undefined) => Promise<T>): Promise<T> {
    const limit = WITHOUT_TIMEOUT.has(method) ? undefined : this.options.requestTimeoutMs;
    if (limit === undefined) return call(given);
    const timeout = AbortSignal.timeout(limit);
    return call(given ? AbortSignal.any([given, timeout]) : timeout).catch((error: unknown) => {
      throw error === timeout.reason ? new TimedOutError(`\`${method}\``, limit, { isCall: true }) : error;
    });
  }

  /** Returns an absolute path for one that is relative, or begins in the home directory. */
  absolute(path: string): string {
    return resolvePath(path, this.welcome.environmentInfo ?? {});
  }

  /** Spells paths as the server knows them: remex knows all, the base dialect URIs only, the oldest none. */
  #withPaths(params: object): object {
    const { server, environmentInfo } = this.welcome as Partial<InitializeResult>;
    // A server of the base dialect says what its host is, but not what it is itself.
    const isBase = server == null && environmentInfo != null;
    const spell = !this.hasSessions ? fromWirePath : isBase ? toUri : (path: string): string => path;
    return withPaths(params, (path) => spell(this.absolute(path)));
  }

  #call<M extends Method>(
    method: M, params: Params<M>, options?: InnerCallOptions<Result<M>>, bytes?: BytesParams,
  ): Promise<Result<M>> {
    return new Promise((resolve, reject) => {
      const signal = options?.signal;
      if (signal?.aborted) return reject(signal.reason);
      if (this.#lost) return reject(this.#lost);
      checkParams(params);
      const id = this.#calls.takeId();
      const message = request(id, method, this.#withPaths(params), bytes);
      const tooLong = this.#tooLong(method, message);
      if (tooLong) return reject(tooLong);
      this.#calls.add({
        id, method, message, isRepeatable: options?.isRepeatable ?? isRepeatable(method, params), lane: options?.lane ?? laneOf(method, params),
        state: "waiting",
        isGivenUp: false,
        onResult: options?.onResult,
        onInterrupted: options?.onInterrupted,
        resolve: resolve as (result: unknown) => void,
        reject,
      }, signal, options?.onGivenUp as ((outcome: Promise<unknown>) => void) | undefined);
    });
  }

  #tooLong(method: Method, message: Outgoing): UsageError | undefined {
    const [length, limit] = [outgoingLength(message, this.#enabled.binaryFrames), this.welcome.limits?.messageBytes];
    if (!limit || length <= limit) return undefined;
    const hint = "send less at once";
    return new UsageError(`\`${method}\` needs a message of ${length} bytes, but the server accepts at most ${limit}`, { hint });
  }

  /** Asks the server to cancel a request or the stream that it opened. */
  cancel(id: number): void {
    if (this.#enabled.cancel) this.#notify("request/cancel", { id });
  }

  /** Returns the id that the next call will have. */
  get nextCallId(): number {
    return this.#calls.nextId;
  }

  #notify(method: string, params: object): void {
    this.#connection?.send(`{"method":"${method}","params":${JSON.stringify(params)}}`);
  }

  // Queues and routes.

  /** Reads a process, without a timeout. */
  read(params: Params<"process/read">, options?: InnerCallOptions<Result<"process/read">>): Promise<Result<"process/read">> {
    return this.#call("process/read", params, { ...options, lane: "control" });
  }

  /** Whether the server holds output back until it is reported as consumed. */
  get reportsConsumed(): boolean {
    return this.#enabled.consumed;
  }

  /** Reports how far a process is consumed; without an incarnation, whichever runs now. */
  consumed(processId: string, seq: number, incarnation?: number, due?: Due): void {
    if (this.#enabled.consumed) this.#connection?.notes.addConsumed(processId, seq, incarnation, due);
  }

  /** Reports an event that nobody follows. */
  discarded(processId: string, seq: number, incarnation: number | undefined, isKnown: boolean): void {
    if (this.#enabled.consumed) this.#connection?.notes.addDiscarded(processId, seq, incarnation, isKnown);
  }

  /** Drops reports that wait and name no start of a process that was restarted. */
  dropUnnamed(processId: string): void {
    this.#connection?.notes.dropUnnamed(processId);
  }

  /** Reports how far a body is consumed. */
  bodyConsumed(requestId: string, seq: number): void {
    if (this.#enabled.consumed) this.#connection?.notes.addBodyConsumed(requestId, seq);
  }

  // Connections.

  /** Makes the first connection, with retries if the options ask for them. */
  async connect(signal?: AbortSignal): Promise<void> {
    const began = performance.now();
    let backoff = FIRST_BACKOFF_MS;
    for (;;) {
      try {
        await this.#connectSession(signal);
        break;
      } catch (error) {
        const left = this.options.connectRetryMs - (performance.now() - began);
        if (!(error instanceof RemexError && error.isRetryable) || left <= 0) throw error;
        // The last attempt begins at the end of the time.
        await sleep(Math.min(jittered(backoff), left), signal);
        backoff = Math.min(backoff * 2, MAX_BACKOFF_MS);
      }
    }
    this.#running = this.#run();
  }

  async #connectSession(signal?: AbortSignal): Promise<void> {
    const { session: name } = this.options;
    if (typeof name !== "string") return this.#connectOnce(name?.resume, undefined, signal);
    // Between a resume and a start another client may create the session, so a resume may be needed twice.
    for (let isLast = false; ; isLast = true) {
      try {
        return await this.#connectOnce(name, undefined, signal);
      } catch (error) {
        if (!isRefused(error, "unknownSession")) throw error;
      }
      try {
        return await this.#connectOnce(undefined, name, signal);
      } catch (error) {
        if (isLast || !isRefused(error, "sessionNameTaken")) throw error;
      }
    }
  }

  /** Connects and performs the handshake; afterwards {@link Engine.#connection} is set. */
  async #connectOnce(resume: string | undefined, sessionName: string | undefined, signal?: AbortSignal): Promise<void> {
    const { connectTimeoutMs, handshakeTimeoutMs } = this.options;
    const link = await this.#withTimeout(`connecting to ${this.target}`, connectTimeoutMs, signal, (ended) => this.#dial(ended));
    const { session } = this.options;
    const isTakeover = typeof session === "object" && session.takeover && this.#welcome === undefined;
    const params: Params<"initialize"> = {
      clientName: this.options.clientName,
      resumeSessionId: resume ?? null,
      capabilities: ["processGap", "cancel", "consumed", "binaryFrames", ...(link.hasServerPings ? [] : ["acks" as const])],
      takeover: isTakeover || undefined,
      detachTtlMs: this.options.detachTtlMs,
      sessionName,
    };
    try {
      await this.#withTimeout("the handshake", handshakeTimeoutMs, signal, (ended) => this.#handshake(link, params, ended));
    } catch (error) {
      link.destroy();
      throw error;
    }
  }

  #handshake(link: Link, params: Params<"initialize">, ended: AbortSignal): Promise<void> {
    const { session } = this.options;
    return new Promise((resolve, reject) => {
      const stop = onAbort(ended, () => reject(ended.reason));
      const connection = new Connection(this, link, {
        // What follows the answer may arrive with it, so the connection is taken over before anything is awaited.
        onWelcome: (welcome) => {
          stop();
          if (ended.aborted) return false;
          if (welcome.sessionId === "" && params.resumeSessionId != null && typeof session === "object") {
            const message = `cannot resume session \`${params.resumeSessionId}\`: a server of the oldest dialect has no sessions`;
            reject(new UsageError(message, { hint: "start a new session, or use `remex serve` there" }));
            return false;
          }
          if (this.#welcome !== undefined && welcome.sessionId !== this.#welcome.sessionId) {
            reject(forgotten(this.#welcome, performance.now() - this.#disconnectedAt));
            return false;
          }
          this.#onConnected(connection, welcome);
          resolve();
          return true;
        },
        onFailure: (error) => {
          stop();
          reject(error);
        },
      });
      connection.start(JSON.stringify({ id: HANDSHAKE_ID, method: "initialize", params }));
    });
  }

  /** Runs a step of connecting until it is done, the time is over, or the client is closed. */
  async #withTimeout<T>(what: string, ms: number, signal: AbortSignal | undefined, step: (ended: AbortSignal) => Promise<T>): Promise<T> {
    const timeout = AbortSignal.timeout(ms);
    const ended = AbortSignal.any([timeout, this.#closing.signal, ...(signal ? [signal] : [])]);
    try {
      return await step(ended);
    } catch (error) {
      if (!ended.aborted) throw error;
      throw ended.reason === timeout.reason ? new TimedOutError(what, ms) : ended.reason;
    }
  }

  #onConnected(connection: Connection, welcome: InitializeResult): void {
    connection.send('{"method":"initialized"}');
    const enabled = welcome.capabilities?.enabled ?? [];
    this.#enabled.cancel = enabled.includes("cancel");
    this.#enabled.consumed = enabled.includes("consumed");
    this.#enabled.binaryFrames = enabled.includes("binaryFrames");
    this.#welcome ??= welcome;
    this.#connection = connection;
    // First what is missed: if the connection is cut again soon, that is progress, and repeated writes may be long.
    this.queues.onConnected();
    this.#calls.resend();
    this.queues.discardAgain();
    this.#setState("connected");
  }

  /** Watches the connection, and reconnects until the session is lost. */
  async #run(): Promise<void> {
    let backoff = 0;
    for (;;) {
      const connection = this.#connection!;
      const connectedAt = performance.now();
      const error = await connection.ended;
      this.#connection = undefined;
      if (this.#end === "done" || this.#closing.signal.aborted) return this.#onLost(closedError());
      if (error instanceof SessionLostError) return this.#onLost(error);
      if (!this.hasSessions) {
        const message = `${error.message}; a server of the oldest dialect has no sessions, so its processes have ended`;
        return this.#onLost(new SessionLostError("notResumable", message, { cause: error }));
      }
      this.#onDisconnected();
      backoff = Math.max(0, backoff - (performance.now() - connectedAt));
      const outcome = await this.#reconnect(error, backoff);
      if (outcome instanceof SessionLostError) return this.#onLost(outcome);
      backoff = outcome;
    }
  }

  /** Reconnects and resumes the session; returns the next backoff, or why the session is lost. */
  async #reconnect(cause: RemexError, firstBackoff: number): Promise<number | SessionLostError> {
    const began = performance.now();
    const limit = this.options.reconnectTimeoutMs;
    const left = (): number => limit - (performance.now() - began);
    let [backoff, last] = [firstBackoff, cause];
    for (;;) {
      try {
        // There is time for an attempt afterwards, however little is left.
        await sleep(Math.min(jittered(backoff), Math.max(0, left()) / 2), this.#closing.signal);
        backoff = Math.min(Math.max(backoff * 2, FIRST_BACKOFF_MS), MAX_BACKOFF_MS);
        await this.#connectOnce(this.welcome.sessionId, undefined, left() === Infinity ? undefined : AbortSignal.timeout(Math.max(1, Math.ceil(left()))));
        return backoff;
      } catch (error) {
        if (this.#closing.signal.aborted) return closedError();
        if (error instanceof SessionLostError) return error;
        if (isRefused(error, "unknownSession")) return forgotten(this.welcome, performance.now() - this.#disconnectedAt, error);
        // The server may not have detected the disconnect yet.
        const isFinal = error instanceof UnauthorizedError || error instanceof ProtocolError || error instanceof UsageError
          || (error instanceof RefusedError && !isRefused(error, "sessionAttached") && !isRefused(error, "shuttingDown"));
        if (isFinal) return new SessionLostError("rejected", `the server rejected the client: ${error.message}`, { cause: error });
        if (error instanceof RemexError) last = error;
      }
      if (left() <= FIRST_BACKOFF_MS) {
        const message = `cannot reconnect to ${this.target} within ${limit} ms: ${last.message}`;
        const hint = "when the host can be reached again, connect with `session: resume(…)` within its `detachTtlMs`";
        return new SessionLostError("reconnectTimedOut", message, { hint, cause: last });
      }
    }
  }

  #onDisconnected(): void {
    this.disconnects += 1;
    this.#disconnectedAt = performance.now();
    this.queues.onDisconnected();
    this.#calls.onDisconnected();
    this.routes.failAll(new UnreachableError("the connection was lost"));
    this.#setState("reconnecting");
  }

  #onLost(error: SessionLostError): void {
    this.#lost = error;
    this.#connection = undefined;
    this.#calls.failAll(error);
    this.queues.onLost(error);
    this.routes.failAll(error);
    this.#setState("lost");
  }

  #setState(state: ConnectionState): void {
    this.state = state;
    // A listener that fails must not stop the engine.
    for (const listener of this.stateListeners) queueMicrotask(() => listener(state));
  }

  /** Closes the connection and waits until it is closed; the session survives for its time to live. */
  async close(): Promise<void> {
    const connection = this.#connection;
    this.#closing.abort(closedError());
    if (connection) {
      await connection.close();
    }
    await this.#running;
  }

  /** Ends the session and its processes, and closes the connection. */
  async end(): Promise<void> {
    try {
      this.#end = "requested";
      await this.call("session/end", { sessionId: this.welcome.sessionId });
    } catch (error) {
      // The connection was lost after the server had ended the session, or it is of the base dialect.
      const isGone = error instanceof SessionLostError && (error.reason === "forgotten" || error.reason === "closed");
      const isEnded = isGone || isRefused(error, "unknownSession") || isRefused(error, "unknownMethod");
      if (!isEnded) throw error;
    } finally {
      await this.close();
    }
  }

  // What arrives.

  /** Handles the output of a process of this session. */
  onOutput(processId: string, event: OutputEvent, incarnation: number | undefined): void {
    this.queues.onEvent(processId, event, incarnation);
  }

  /** Handles an answer. */
  onAnswer(id: unknown, message: { result?: unknown; error?: unknown }, attached: Uint8Array | undefined): void {
    const method = this.#calls.answer(id, message, attached);
    // The server disconnects its client next, which is no reason to reconnect.
    if (method === "session/end" && this.#end === "requested") this.#end = "done";
  }

  /** Handles a notification; one that is invalid fails what it names, and nothing else. */
  onNotification(method: string, params: Record<string, unknown>, attached: Uint8Array | undefined): void {
    try {
      if (attached) placeAttached(params, attached);
      this.#dispatch(method, params);
    } catch (error) {
      this.#onInvalid(method, params, asRemexError(error));
    }
  }

  #dispatch(method: string, params: Record<string, unknown>): void {
    switch (method) {
      case "process/output":
        return this.#ownEvent(params, () => chunkEvent(params as never));
      case "process/exited":
        return this.#ownEvent(params, () => exitedEvent(params as never));
      case "process/closed":
        return this.#ownEvent(params, () => closedEvent(params as never));
      case "process/gap":
        return this.#ownEvent(params, () => gapEvent(params as never));
      case "flow/mark":
        return this.#connection?.notes.acknowledge(params["mark"]);
      case "http/request/bodyDelta":
        return this.routes.onBody(params as never);
      case "fs/changed":
        return this.routes.onChanged(params as never);
      default:
        // A newer server may send notifications that this client does not know.
        return undefined;
    }
  }

  #ownEvent(params: Record<string, unknown>, decode: () => ProcessEvent): void {
    // An observed session has processes of its own, with ids of its own; this client observes none.
    if (params["sessionId"] != null) return;
    if (typeof params["processId"] !== "string") throw new ProtocolError("`processId` is not a string");
    this.queues.onEvent(params["processId"], decode(), incarnationOf(params));
  }

  #onInvalid(method: string, params: Record<string, unknown>, error: RemexError): void {
    const wrong = new ProtocolError(`cannot decode \`${method}\`: ${error.message}`);
    const { processId } = params;
    if (typeof processId === "string") {
      const incarnation = Number.isInteger(params["incarnation"]) ? (params["incarnation"] as number) : undefined;
      this.queues.onInvalid(processId, wrong, incarnation);
    } else if (!this.routes.fail(params, wrong)) throw wrong;
  }

  /** Counts a message that names nothing that it could fail; returns the error that ends the connection. */
  protocolError(error: ProtocolError): RemexError {
    const now = performance.now();
    this.#protocolErrors = [...this.#protocolErrors.filter((at) => now - at < 60_000), now];
    if (this.#protocolErrors.length < MAX_PROTOCOL_ERRORS) return error;
    return new SessionLostError("protocol", error.message, { cause: error });
  }
}
