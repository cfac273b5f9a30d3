/**
 * The errors of the client: one hierarchy below {@link RemexError}.
 *
 * @module
 */
import type { Exit, Output } from "./events.js";
import type { RpcErrorKind } from "./protocol.js";

/** How much output of a failed command is in the message, in characters. */
const SAID_LEN = 1000;

/** The word in `data.kind` of a refusal; a newer server may send others. */
export type ErrorKind = RpcErrorKind;

/** Why a session is lost. */
export type SessionLostReason =
  /** The client was closed by its owner. */
  | "closed"
  /** The session no longer exists on the server: it expired, was ended, or the server restarted. */
  | "forgotten"
  /** The connection was lost, and a server of the oldest dialect has no sessions to resume. */
  | "notResumable"
  /** The client could not reconnect in time. */
  | "reconnectTimedOut"
  /** Another client took the session over. */
  | "takenOver"
  /** The server violated the protocol repeatedly. */
  | "protocol"
  /** The server rejected the client when it reconnected. */
  | "rejected";

/** Any failure of this library; its subclasses say what failed. */
export class RemexError extends Error {
  /** What to do about it, if that is known. */
  readonly hint: string | undefined;

  constructor(message: string, options?: { hint?: string | undefined; cause?: unknown }) {
    super(message, options?.cause === undefined ? undefined : { cause: options.cause });
    this.name = new.target.name;
    this.hint = options?.hint;
  }

  /** Whether the same may succeed later without anything being changed. */
  get isRetryable(): boolean {
    return false;
  }

  /** Whether the call may have taken effect on the remote host all the same. */
  get mayHaveHappened(): boolean {
    return false;
  }
}

const RETRYABLE_KINDS = new Set<ErrorKind>([
  "sessionAttached", "processStarting", "tooManyProcesses", "limitExceeded", "contentChanged", "noSpace", "shuttingDown",
]);

/**
 * The server refused the call.
 *
 * ```ts
 * try {
 *   await host.files.read("/no/such/file");
 * } catch (error) {
 *   if (error instanceof RefusedError && error.kind === "notFound") console.log("there is none");
 *   else throw error;
 * }
 * ```
 */
export class RefusedError extends RemexError {
  /** The stable number of the error. */
  readonly code: number;
  /** The stable word of the error. */
  readonly kind: ErrorKind;

  constructor(refusal: { code: number; message: string; kind: ErrorKind; hint?: string | undefined }) {
    super(refusal.message, { hint: refusal.hint });
    this.code = refusal.code;
    this.kind = refusal.kind;
  }

  override get isRetryable(): boolean {
    return RETRYABLE_KINDS.has(this.kind);
  }

  override get mayHaveHappened(): boolean {
    return this.kind === "cancelled" || this.kind === "internal" || this.kind === "io";
  }
}

/**
 * The process was restarted since its handle was made: what was asked of it was not done, and how it ended is unknown.
 *
 * ```ts
 * try {
 *   await web.wait();
 * } catch (error) {
 *   if (!(error instanceof RestartedError)) throw error;
 *   web = await host.attach(web.id); // the process that runs now
 * }
 * ```
 */
export class RestartedError extends RefusedError {
  constructor(message: string) {
    super({ code: -32600, message, kind: "unknownProcess", hint: "use `host.attach` for a handle of the process that runs now" });
  }

  /** Returns the error that ends the events of a process that was restarted. */
  static of(processId: string): RestartedError {
    return new RestartedError(`process \`${processId}\` was restarted; how the one before ended, and the rest of its output, are unknown`);
  }
}

/** The arguments of the call are invalid; nothing was sent. */
export class UsageError extends RemexError {}

/** The server cannot be reached, or is not a remex server. */
export class UnreachableError extends RemexError {
  override get isRetryable(): boolean {
    return true;
  }
}

/** The server requires a token, or rejected the one presented. */
export class UnauthorizedError extends RemexError {
  /** The HTTP status: 401 or 403. */
  readonly status: number;

  /** `said` is the reason that the server gives; a hint may follow it after a semicolon. */
  constructor(target: string, status: number, isTokenPresented: boolean, said?: string) {
    const cut = said?.indexOf("; ") ?? -1;
    // If only a token is missing, the line adds nothing to the status.
    const reason = cut >= 0 ? said?.slice(0, cut) : status === 403 ? said : undefined;
    const advice = cut >= 0 ? said?.slice(cut + 2) : undefined;
    const guess = isTokenPresented ? "refused the token" : "requires a token";
    const what = reason === undefined ? `${guess} (status ${status})` : `refuses this client (status ${status}): ${reason}`;
    super(`${target} ${what}`, { hint: advice ?? (isTokenPresented ? "get a valid token" : "pass a token") });
    this.status = status;
  }
}

/** The program of the connection exited before the handshake was complete. */
export class ProgramEndedError extends RemexError {
  /** The end of its standard error. */
  readonly stderr: string;

  constructor(program: string, status: string, stderr: string) {
    const said = stderr.trim();
    super(`${program} exited before it responded (${status})${said === "" ? "" : `: ${said}`}`);
    this.stderr = stderr;
  }

  override get isRetryable(): boolean {
    return true;
  }
}

/** A timeout of the client expired. */
export class TimedOutError extends RemexError {
  readonly #isCall: boolean;

  constructor(what: string, afterMs: number, options?: { isCall?: boolean }) {
    super(`${what} timed out after ${afterMs} ms`);
    this.#isCall = options?.isCall ?? false;
  }

  override get isRetryable(): boolean {
    return true;
  }

  override get mayHaveHappened(): boolean {
    return this.#isCall;
  }
}

/** The server violated the protocol. */
export class ProtocolError extends RemexError {
  constructor(what: string) {
    super(`protocol error: ${what}`, { hint: "check that this is a remex server, and its version" });
  }

  override get mayHaveHappened(): boolean {
    return true;
  }
}

/**
 * The connection was lost during the call, so it is unknown whether the call took effect.
 *
 * Only calls that cannot be repeated safely fail like this; the others are sent again.
 */
export class RequestInterruptedError extends RemexError {
  /** The method of the call. */
  readonly method: string;

  constructor(method: string) {
    super(`the connection was lost during \`${method}\`, so it is unknown whether it took effect`, {
      hint: "check whether it took effect, then repeat it if not",
    });
    this.method = method;
  }

  override get isRetryable(): boolean {
    return true;
  }

  override get mayHaveHappened(): boolean {
    return true;
  }
}

/** The session is lost, and everything in it as far as this client is concerned. */
export class SessionLostError extends RemexError {
  /** Why it is lost; `cause` has the error behind it, if there is one. */
  readonly reason: SessionLostReason;

  constructor(reason: SessionLostReason, message: string, options?: { hint?: string | undefined; cause?: unknown }) {
    super(reason === "closed" ? message : `the session is lost: ${message}`, options);
    this.reason = reason;
  }

  /** Whether another client may resume the session later. */
  override get isRetryable(): boolean {
    return this.reason === "reconnectTimedOut";
  }

  override get mayHaveHappened(): boolean {
    return true;
  }
}

/** A command of a run with `check` failed; the message has the end of what it wrote. */
export class CommandFailedError extends RemexError {
  /** Its output, and how it ended. */
  readonly output: Output;

  constructor(command: string, output: Output) {
    const { exitCode, signal, stderrText, stdoutText, terminalText } = output;
    const how = signal === undefined ? `exit code ${exitCode}` : `signal ${signal}`;
    const said = (stderrText.trim() || terminalText.trim() || stdoutText.trim()).slice(-SAID_LEN);
    super(`\`${command}\` failed with ${how}${said === "" ? "" : `: ${said}`}`);
    this.output = output;
  }

  override get mayHaveHappened(): boolean {
    return true;
  }
}

/** A process ended before its output matched what was waited for. */
export class NoMatchError extends RemexError {
  /** How it ended, if the server says so. */
  readonly exit: Exit | undefined;

  constructor(message: string, exit: Exit | undefined) {
    super(message, { hint: "look at its output" });
    this.exit = exit;
  }
}

/** Output is missing: the server dropped it before it was read. */
export class GapError extends RemexError {
  /** How much is missing, if the server knows. */
  readonly bytes: number | undefined;

  constructor(bytes: number | undefined) {
    const amount = bytes === undefined ? "an unknown number of bytes" : `${bytes} bytes`;
    super(`${amount} of output were dropped before they were read`, { hint: "retain more output, or read it sooner" });
    this.bytes = bytes;
  }
}

/** A file changed while it was being transferred. */
export class ChangedError extends RemexError {
  /** The file. */
  readonly path: string;

  constructor(path: string) {
    super(`\`${path}\` changed during the transfer`, { hint: "try again when nothing writes to it" });
    this.path = path;
  }

  override get isRetryable(): boolean {
    return true;
  }
}

/** A local read or write failed; `cause` is the error of the system. */
export class LocalError extends RemexError {
  constructor(action: string, cause: unknown) {
    super(`cannot ${action}: ${cause instanceof Error ? cause.message : String(cause)}`, { cause });
  }
}

/** Returns whether the server refused a call with this kind. */
export function isRefused(error: unknown, kind: ErrorKind): error is RefusedError {
  return error instanceof RefusedError && error.kind === kind;
}

/** Returns an error from handling a message; one of another library becomes a protocol error. */
export function asRemexError(error: unknown): RemexError {
  return error instanceof RemexError ? error : new ProtocolError(error instanceof Error ? error.message : String(error));
}
