/**
 * The session of a client: which one it is, and how it is lost.
 *
 * @module
 */
import { SessionLostError, UsageError } from "./errors.js";
import type { InitializeResult } from "./protocol.js";

/** The state of the connection of a client. */
export type ConnectionState = "connected" | "reconnecting" | "lost";

/** A session that must exist: see {@link resume}. */
export interface ResumedSession {
  /** Its id or name. */
  readonly resume: string;
  /** Whether to take it from a client that holds it. */
  readonly takeover: boolean;
}

/**
 * Names a session that must exist, by its id or name, as the `session` of a connection; with `takeover` it is taken from
 * a client that holds it.
 *
 * ```ts
 * const host = await connect("build", { session: resume("nightly", { takeover: true }) });
 * ```
 */
export function resume(session: string, options?: { takeover?: boolean | undefined }): ResumedSession {
  if (typeof session !== "string" || session === "") throw new UsageError("the id or name of the session is missing");
  return { resume: session, takeover: options?.takeover ?? false };
}

/** Options of the engine; all of them have a default. */
export interface EngineOptions {
  /** The name that the client sends to the server. */
  clientName: string;
  /** The name of the session to resume or to create, or one that must exist; a new one without a name if it is absent. */
  session?: string | ResumedSession | undefined;
  detachTtlMs?: number | undefined;
  connectTimeoutMs: number;
  handshakeTimeoutMs: number;
  connectRetryMs: number;
  requestTimeoutMs?: number | undefined;
  reconnectTimeoutMs: number;
  keepAliveIntervalMs: number;
  keepAliveTimeoutMs: number;
}

/** Returns the error for a session that the server no longer knows. */
export function forgotten({ sessionId, detachTtlMs }: InitializeResult, awayMs: number, cause?: unknown): SessionLostError {
  const ttl = detachTtlMs == null ? "a while" : `${detachTtlMs} ms`;
  const message = `the server no longer knows \`${sessionId}\` after ${Math.round(awayMs)} ms without a connection: the session was ended, `
    + `it expired (it lives ${ttl} without a connection), or the server was restarted without \`--state\``;
  const hint = "connect again for a new session; `remex serve --state DIR` keeps sessions and processes when the server restarts, and `detachTtlMs` lets sessions live longer";
  return new SessionLostError("forgotten", message, { hint, cause });
}

/** Returns the error of everything that waits when the client is closed. */
export function closedError(): SessionLostError {
  return new SessionLostError("closed", "the client is closed");
}
