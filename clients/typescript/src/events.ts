/**
 * The events of a process, its exit and its output, as callers see them.
 *
 * @module
 */
import type { ProcessDeniedHost, ProcessExitCause, ProcessGapCause, ProcessProduced, ProcessStream, ProcessUsage } from "./protocol.js";

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

/** All output of a process, and how it ended. */
export interface Output extends Exit {
  readonly stdout: Uint8Array;
  readonly stderr: Uint8Array;
  /** The output of a terminal, which has no separate streams. */
  readonly terminal: Uint8Array;
  /** `stdout` as text; invalid bytes become U+FFFD. */
  readonly stdoutText: string;
  /** `stderr` as text. */
  readonly stderrText: string;
  /** `terminal` as text. */
  readonly terminalText: string;
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

/** The events and states in an answer to `process/read`. */
export interface ReadBatch {
  readonly gap: GapEvent | undefined;
  readonly chunks: readonly OutputEvent[];
  readonly nextSeq: number;
  readonly exit: Exit | undefined;
  /** Its `seq` is unknown. */
  readonly closed: ClosedEvent | undefined;
}
