/**
 * One connection: the handshake, then messages until the end, and pings that notice a silent server.
 *
 * @module
 */
import { isObject } from "./decode.js";
import type { RemexError } from "./errors.js";
import { ProtocolError, SessionLostError, UnreachableError, asRemexError } from "./errors.js";
import type { OutputEvent } from "./events.js";
import type { Link, Receiver } from "./link.js";
import { Notes } from "./notes.js";
import type { Outgoing } from "./outgoing.js";
import type { InitializeResult } from "./protocol.js";
import { toRefusal } from "./refusal.js";
import type { EngineOptions } from "./session.js";
import { closedError } from "./session.js";

/** The id of the handshake and of pings; those of calls begin at 1. */
export const HANDSHAKE_ID = 0;
/** The id under which the server answers what it could not read. */
const MALFORMED_ID = -1;
const TAKEN_OVER = "another client took the session over";
/** A server that sends but never answers counts as unresponsive after this many keep-alive timeouts. */
const UNRESPONSIVE = 6;

/** Waits for the answer to `initialize`. */
export interface Handshake {
  /** Takes the connection over; returns false if the handshake has already been abandoned. */
  onWelcome(welcome: InitializeResult): boolean;
  onFailure(error: unknown): void;
}

/** What a connection is for: it gets what arrives after the handshake. */
export interface ConnectionOwner {
  /** The address, for messages to people. */
  readonly target: string;
  readonly options: Pick<EngineOptions, "keepAliveIntervalMs" | "keepAliveTimeoutMs">;
  /** Handles the output of a process of this session. */
  onOutput(processId: string, event: OutputEvent, incarnation: number | undefined): void;
  /** Handles an answer. */
  onAnswer(id: unknown, message: { result?: unknown; error?: unknown }, attached: Uint8Array | undefined): void;
  /** Handles a notification; one that is invalid fails what it names, and nothing else. */
  onNotification(method: string, params: Record<string, unknown>, attached: Uint8Array | undefined): void;
  /** Counts a message that names nothing that it could fail; returns the error that ends the connection. */
  protocolError(error: ProtocolError): RemexError;
}

/** One connection: the handshake, then messages until the end. */
export class Connection implements Receiver {
  /** Why it ended. */
  readonly ended: Promise<RemexError>;
  /** What acknowledges and refuses on it. */
  readonly notes: Notes;
  readonly #owner: ConnectionOwner;
  readonly #link: Link;
  #handshake: Handshake | undefined;
  #end!: (error: RemexError) => void;
  #hasEnded = false;
  #received = 0;
  #answers = 0;
  #keepAlive: ReturnType<typeof setTimeout> | undefined;

  constructor(owner: ConnectionOwner, link: Link, handshake: Handshake) {
    this.#owner = owner;
    this.#link = link;
    this.notes = new Notes(link);
    this.#handshake = handshake;
    this.ended = new Promise((resolve) => (this.#end = resolve));
  }

  start(initialize: string): void {
    this.#link.start(this);
    this.#link.send(initialize);
  }

  send(message: Outgoing): void {
    if (!this.#hasEnded) this.#link.send(message);
  }

  async close(): Promise<void> {
    this.notes.flush();
    this.#stop();
    await this.#link.close();
    this.#end(closedError());
  }

  onOutput(processId: string, event: OutputEvent, incarnation: number | undefined, sessionId?: string): void {
    this.#received += 1;
    // An observed session has processes of its own; this client observes none.
    if (sessionId !== undefined) return;
    if (!this.#handshake && !this.#hasEnded) this.#owner.onOutput(processId, event, incarnation);
  }

  onDrain(): void {
    if (!this.#hasEnded) this.notes.flush();
  }

  onPong(): void {
    this.#received += 1;
    this.#answers += 1;
  }

  onMessage(json: string, attached?: Uint8Array): void {
    if (this.#hasEnded) return;
    this.#received += 1;
    try {
      this.#onMessage(parse(json), attached);
    } catch (error) {
      const failure = asRemexError(error);
      this.#drop(failure instanceof ProtocolError ? this.#owner.protocolError(failure) : failure);
    }
  }

  onMalformed(error: ProtocolError): void {
    if (!this.#hasEnded) this.#drop(this.#owner.protocolError(error));
  }

  #onMessage(message: Record<string, unknown>, attached: Uint8Array | undefined): void {
    const { id, method } = message;
    if (typeof method !== "string") {
      if (this.#handshake) return this.#onHandshakeAnswer(this.#handshake, id, message);
      this.#answers += 1;
      const error = message["error"] as { message?: unknown } | undefined;
      // Lines have no other way to say why the server closes the connection.
      if (id === MALFORMED_ID && error?.message === TAKEN_OVER) throw takenOver();
      this.#owner.onAnswer(id, message, attached);
    } else if (id !== undefined && id !== null) {
      this.notes.refuse(id);
    } else if (!this.#handshake) {
      const params = message["params"] ?? {};
      if (typeof params === "object") this.#owner.onNotification(method, params as Record<string, unknown>, attached);
    }
  }

  #onHandshakeAnswer(handshake: Handshake, id: unknown, message: Record<string, unknown>): void {
    if (id !== HANDSHAKE_ID && id !== MALFORMED_ID) return;
    if (message["error"] != null) {
      this.#stop();
      return handshake.onFailure(toRefusal(message["error"]));
    }
    const welcome = withSessionId(message["result"]);
    if (!isWelcome(welcome)) {
      this.#stop();
      return handshake.onFailure(new ProtocolError("cannot decode the answer to `initialize`"));
    }
    // What follows the answer may be binary, and so may what the new owner sends at once.
    if (welcome.capabilities?.enabled?.includes("binaryFrames")) this.#link.acceptBinary();
    if (!handshake.onWelcome(welcome)) return this.#stop();
    this.#handshake = undefined;
    this.#scheduleKeepAlive();
  }

  onEnd(reason: string): void {
    if (this.#hasEnded) return;
    this.#drop(reason.includes(TAKEN_OVER) ? takenOver() : new UnreachableError(`${this.#owner.target}: ${reason}`), reason);
  }

  /** Drops the connection because of an error. */
  #drop(error: RemexError, reason?: string): void {
    this.#stop();
    const handshake = this.#handshake;
    if (handshake && reason !== undefined && this.#link.explainEnd) {
      this.#link.explainEnd(reason).then(handshake.onFailure, handshake.onFailure);
      return;
    }
    this.#link.destroy();
    handshake?.onFailure(error);
    this.#end(error);
  }

  #stop(): void {
    this.#hasEnded = true;
    clearTimeout(this.#keepAlive);
  }

  /** Pings the server after a while, and ends the connection if it does not answer. */
  #scheduleKeepAlive(): void {
    const { keepAliveIntervalMs, keepAliveTimeoutMs } = this.#owner.options;
    this.#after(keepAliveIntervalMs, () => {
      const [answers, asked] = [this.#answers, performance.now()];
      if (this.#link.ping) this.#link.ping();
      else this.send(`{"id":${HANDSHAKE_ID},"method":"environment/status"}`);
      const check = (received: number): void => {
        if (this.#answers !== answers) return this.#scheduleKeepAlive();
        // Other messages show that the server is alive, not that it receives: they extend the time, but not forever.
        const silence = performance.now() - asked;
        if (this.#received === received || silence >= keepAliveTimeoutMs * UNRESPONSIVE) {
          return this.#drop(new UnreachableError(`${this.#owner.target}: the server did not respond for ${Math.round(silence)} ms`));
        }
        wait();
      };
      const wait = (): void => {
        const received = this.#received;
        // If this program was busy, what has arrived meanwhile is read between the two.
        this.#after(keepAliveTimeoutMs, () => this.#after(1, () => check(received)));
      };
      wait();
    });
  }

  #after(ms: number, then: () => void): void {
    this.#keepAlive = setTimeout(then, ms);
    // In Node the socket keeps the program alive, not this timer.
    (this.#keepAlive as { unref?(): void }).unref?.();
  }
}

function parse(text: string): Record<string, unknown> {
  let message: unknown;
  try {
    message = JSON.parse(text);
  } catch (error) {
    throw new ProtocolError(`a message is not JSON: ${(error as Error).message}`);
  }
  if (isObject(message) && ("method" in message || "result" in message || "error" in message)) return message;
  throw new ProtocolError("a message is neither a request nor an answer");
}

/** Adds an empty id to the answer of a server of the oldest dialect, which has no sessions and says its version only. */
function withSessionId(result: unknown): unknown {
  const isOldest = isObject(result) && result["sessionId"] == null && result["protocolVersion"] === "exec-server.v0";
  return isOldest ? { ...result, sessionId: "" } : result;
}

/** Returns whether this is an answer to `initialize`, as far as the client uses it. */
function isWelcome(result: unknown): result is InitializeResult {
  if (!isObject(result) || typeof result["sessionId"] !== "string") return false;
  const { capabilities, limits, environmentInfo } = result as { [member: string]: Record<string, unknown> | null | undefined };
  const isLimit = (value: unknown): boolean => value == null || typeof value === "number";
  return (capabilities?.["enabled"] == null || Array.isArray(capabilities["enabled"]))
    && isLimit(limits?.["messageBytes"]) && isLimit(limits?.["retainBytes"])
    && (environmentInfo?.["cwd"] == null || typeof environmentInfo["cwd"] === "string");
}

function takenOver(): SessionLostError {
  return new SessionLostError("takenOver", TAKEN_OVER);
}
