/**
 * The events of a process, and how they are decoded.
 *
 * @module
 */
import { decodeBase64 } from "./bytes.js";
import { ProtocolError } from "./errors.js";
import type {
  ProcessClosedParams, ProcessDeniedHost, ProcessExitCause, ProcessExitedParams, ProcessGapCause, ProcessGapRange,
  ProcessProduced, ProcessReadResult, ProcessStream, ProcessUsage,
} from "./protocol.js";

/** A piece of output; characters and lines may be split. */
export interface Chunk {
  /** `stdout`, `stderr` or `pty`; a newer server may have others. */
  readonly stream: ProcessStream;
  /** Its number among the events of the process, from 1. */
  readonly seq: number;
  readonly bytes: Uint8Array;
}

/** How a process ended. */
export interface Exit {
  /** Whether it exited with code 0. */
  readonly ok: boolean;
  /** The exit status, or 128 + the number of the signal. */
  readonly exitCode: number;
  /** The signal that ended it, such as `SIGKILL`. */
  readonly signal: string | undefined;
  /** Why it ended, if the server says so. */
  readonly cause: ProcessExitCause | undefined;
  /** The resources that it used, if the server says so. */
  readonly usage: ProcessUsage | undefined;
  /** A hint that its sandbox was the reason of a failure. */
  readonly sandboxDenied: boolean;
  /** The hosts that its sandbox has refused. */
  readonly networkDenied: readonly ProcessDeniedHost[];
}

/** The process wrote output. */
export interface OutputEvent extends Chunk {
  readonly type: "output";
}

/** The process exited; a background process may still write output. */
export interface ExitedEvent {
  readonly type: "exited";
  readonly seq: number;
  readonly exit: Exit;
}

/** All output has been delivered; the last event. */
export interface ClosedEvent {
  readonly type: "closed";
  readonly seq: number;
  /** Bytes written per stream, if the server says so. */
  readonly produced: ProcessProduced | undefined;
  /** Bytes that were dropped before this client got them, if the server says so. */
  readonly evictedBytes: number | undefined;
}

/** Events that the server no longer had. */
export interface GapEvent {
  readonly type: "gap";
  /** The last missing event, like {@link GapEvent.toSeq}. */
  readonly seq: number;
  /** The first missing event. */
  readonly fromSeq: number;
  /** The last missing event. */
  readonly toSeq: number;
  /** Missing bytes of output, if the server knows. */
  readonly bytes: number | undefined;
  /** Why they are missing, if they were not evicted. */
  readonly cause: ProcessGapCause | undefined;
}

/** An event of a process; `seq` of the last one seen is where {@link Process.events} continues. */
export type ProcessEvent = OutputEvent | ExitedEvent | ClosedEvent | GapEvent;

/** Returns a number that is an integer, or fails. */
export function integer(value: unknown, what: string): number {
  if (typeof value === "number" && Number.isInteger(value)) return value;
  throw new ProtocolError(`\`${what}\` is not an integer`);
}

/** Returns a text, or fails. */
export function text(value: unknown, what: string): string {
  if (typeof value === "string") return value;
  throw new ProtocolError(`\`${what}\` is not a string`);
}

/** Returns the bytes of base64, or fails. */
export function base64(value: unknown, what: string): Uint8Array {
  const bytes = decodeBase64(text(value, what));
  if (bytes !== undefined) return bytes;
  throw new ProtocolError(`\`${what}\` is not base64`);
}

export function chunkEvent(chunk: { seq: number; stream: string; chunk: string }): OutputEvent {
  return {
    type: "output",
    stream: text(chunk.stream, "stream"),
    seq: integer(chunk.seq, "seq"),
    bytes: base64(chunk.chunk, "chunk"),
  };
}

export function exitedEvent(note: ProcessExitedParams): ExitedEvent {
  return { type: "exited", seq: integer(note.seq, "seq"), exit: toExit(note) };
}

type Loose<T> = { [K in keyof T]?: T[K] | null | undefined };

/** Returns the exit that an answer or a notification describes. */
export function toExit(state: Loose<Pick<ProcessExitedParams, "exitCode" | "signal" | "cause" | "usage" | "sandboxDenied" | "networkDenied">>): Exit {
  const exitCode = integer(state.exitCode, "exitCode");
  return {
    ok: exitCode === 0 && state.signal == null,
    exitCode,
    signal: state.signal ?? undefined,
    cause: state.cause ?? undefined,
    usage: state.usage ?? undefined,
    sandboxDenied: state.sandboxDenied ?? false,
    networkDenied: state.networkDenied ?? [],
  };
}

export function closedEvent(note: Loose<Pick<ProcessClosedParams, "seq" | "produced" | "evictedBytes">>): ClosedEvent {
  const seq = integer(note.seq, "seq");
  return { type: "closed", seq, produced: note.produced ?? undefined, evictedBytes: note.evictedBytes ?? undefined };
}

export function gapEvent(gap: ProcessGapRange): GapEvent {
  const [fromSeq, toSeq] = [integer(gap.fromSeq, "fromSeq"), integer(gap.toSeq, "toSeq")];
  return { type: "gap", seq: toSeq, fromSeq, toSeq, bytes: gap.bytes ?? undefined, cause: gap.cause ?? undefined };
}

/** The events and states in an answer to `process/read`. */
export interface ReadBatch {
  readonly gap: GapEvent | undefined;
  readonly chunks: readonly OutputEvent[];
  readonly nextSeq: number;
  readonly exit: Exit | undefined;
  /** Its `seq` is unknown. */
  readonly closed: ClosedEvent | undefined;
}

export function readBatch(reply: ProcessReadResult): ReadBatch {
  if (!Array.isArray(reply.chunks)) throw new ProtocolError("`chunks` is not an array");
  return {
    gap: reply.gap ? gapEvent(reply.gap) : undefined,
    chunks: reply.chunks.map(chunkEvent),
    nextSeq: integer(reply.nextSeq, "nextSeq"),
    // A server of the base dialect may know that it exited, and not how.
    exit: reply.exited ? toExit({ ...reply, exitCode: reply.exitCode ?? -1 }) : undefined,
    closed: reply.closed ? closedEvent({ ...reply, seq: 0 }) : undefined,
  };
}
