/**
 * The errors that a server answers calls with.
 *
 * @module
 */
import type { RemexError } from "./errors.js";
import { ProtocolError, RefusedError, RestartedError } from "./errors.js";

/** What a server of the base dialect means, which sends no kinds. */
const KINDS_BY_CODE = new Map([[-32601, "unknownMethod"], [-32602, "invalidParams"], [-32004, "notFound"], [-32010, "sessionAttached"]]);

/** What an error carries besides its code and message; whatever a server may send. */
interface ErrorData {
  readonly kind?: unknown;
  readonly hint?: unknown;
  readonly program?: unknown;
  readonly cwd?: unknown;
  readonly restarted?: unknown;
}

/** Returns the error of an answer; one that does not decode is a protocol error of this call only. */
export function toRefusal(error: unknown): RemexError {
  const { code, message, data } = (error ?? {}) as { code?: unknown; message?: unknown; data?: ErrorData | null };
  if (typeof code !== "number" || typeof message !== "string") return new ProtocolError("cannot decode an error response");
  if (data?.restarted === true) return new RestartedError(message);
  const kind = typeof data?.kind === "string" ? data.kind : (KINDS_BY_CODE.get(code) ?? "internal");
  return new RefusedError({ code, message: failedStart(data) + message, kind, hint: typeof data?.hint === "string" ? data.hint : undefined });
}

/** Returns what the text of the operating system leaves out, if a program could not be started. */
function failedStart(data: ErrorData | null | undefined): string {
  if (typeof data?.program !== "string") return "";
  return `cannot start \`${data.program}\`${typeof data.cwd === "string" ? ` in \`${data.cwd}\`` : ""}: `;
}
