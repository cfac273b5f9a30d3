/**
 * What the engine has to know about each method: whether a call may be repeated, and how many may be unanswered.
 *
 * @module
 */
import type { Outgoing } from "./outgoing.js";
import type { Methods } from "./protocol.js";

/** The name of a method. */
export type Method = keyof Methods;

/** The params of a method. */
export type Params<M extends Method> = Methods[M]["params"];

/** The result of a method. */
export type Result<M extends Method> = Methods[M]["result"];

/** What requests for a process name. */
export interface ProcessIds {
  readonly processId: string;
  /** Its session, if that is not the one of the client. */
  readonly sessionId?: string | undefined;
  /** Tells this start of the process from those before and after a restart; without it, whichever runs now is meant. */
  readonly incarnation?: number | undefined;
}

const ALWAYS_REPEATABLE = new Set<Method>([
  "process/read", "process/seek", "process/wait", "process/snapshot", "process/list", "session/list", "process/collect",
  "process/terminate", "process/closeStdin", "process/release", "process/resize", "session/end", "fs/readFile",
  "fs/getMetadata", "fs/canonicalize", "fs/readDirectory", "fs/walk", "fs/readLink", "fs/hash", "fs/search", "fs/setPermissions",
  "fs/setTimes", "environment/info", "environment/status", "environmentConfig/read", "capabilityRoots/discoverV1",
  "capabilities/discoverV2",
]);

/** Waiting for these takes as long as a process, a web server or the end of everything takes. */
export const WITHOUT_TIMEOUT = new Set<Method>(["process/wait", "process/restart", "process/write", "process/closeStdin", "http/request", "session/end"]);

/** Returns whether carrying out a call twice has the same outcome as once: section 18.1 of the protocol. */
export function isRepeatable(method: Method, params: object): boolean {
  const members = params as Record<string, unknown>;
  switch (method) {
    case "process/start":
      return members["startId"] != null;
    case "process/restart":
      return members["restartId"] != null;
    case "process/write":
      return members["writeId"] != null;
    case "fs/writeFile":
      return members["ifMatch"] == null;
    case "fs/createDirectory":
      return members["recursive"] !== false;
    case "http/request":
      return members["streamResponse"] !== true && ["GET", "HEAD", "OPTIONS"].includes(String(members["method"]));
    default:
      return ALWAYS_REPEATABLE.has(method);
  }
}

/**
 * A group of calls that share a number of slots.
 *
 * The server stops reading at 1,024 unanswered requests, so calls that may take long must leave room for the others.
 */
export type Lane = "control" | "plain" | "files" | "parked";

/** How many calls of a lane may be unanswered; further ones wait in order. Control calls never wait. */
export const LANE_SLOTS: Readonly<Record<Lane, number>> = { control: Infinity, plain: 128, files: 256, parked: 384 };

/** Returns the lane of a call. */
export function laneOf(method: Method, params: object): Lane {
  switch (method) {
    case "process/write":
    case "process/wait":
    case "http/request":
      return "parked";
    case "process/read":
      return (params as Params<"process/read">).waitMs == null ? "plain" : "parked";
    case "process/start":
    case "process/snapshot":
    case "process/seek":
    case "environment/info":
    case "initialize":
      return "plain";
    default:
      return /^(fs|environmentConfig|capabilit)/.test(method) ? "files" : "control";
  }
}

/** Options of a call. */
export interface CallOptions {
  /** Cancels the call; what has begun on the server may still take effect. */
  signal?: AbortSignal | undefined;
}

/** Options of a call that are not for users. */
export interface InnerCallOptions<R> extends CallOptions {
  lane?: Lane;
  /** False for a call whose caller handles a disconnect itself. */
  isRepeatable?: boolean;
  /** Called when the call is aborted after it was sent: it is not cancelled, and its outcome can be awaited. */
  onGivenUp?(outcome: Promise<R>): void;
  /** Called with the result before anything that follows it is handled. */
  onResult?(result: R): void;
  /** Called when the connection is lost before the answer. */
  onInterrupted?(): void;
}

/** A call that is not answered. */
export interface PendingCall {
  readonly id: number;
  readonly method: Method;
  readonly message: Outgoing;
  readonly isRepeatable: boolean;
  readonly lane: Lane;
  /** An interrupted call was sent on a connection that is lost, and will be repeated. */
  state: "waiting" | "queued" | "sent" | "interrupted";
  /** The caller has given it up, so it is not repeated. */
  isGivenUp: boolean;
  readonly onResult: ((result: never) => void) | undefined;
  readonly onInterrupted: (() => void) | undefined;
  resolve(result: unknown): void;
  reject(error: unknown): void;
}
