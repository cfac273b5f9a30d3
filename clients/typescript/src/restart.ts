/**
 * Restarting processes.
 *
 * @module
 */
import type { CallOptions, ProcessIds } from "./calls.js";
import type { Engine } from "./engine.js";
import { RequestInterruptedError } from "./errors.js";
import type { EventQueue } from "./event-queue.js";
import { checkWhole } from "./numbers.js";

/** Options of a restart. */
export interface RestartOptions extends CallOptions {
  /** How long the process and its descendants may take to end after SIGTERM; 5 s by default, 0 kills them at once. */
  graceMs?: number | undefined;
}

/** A process that was started again. */
export interface Restarted {
  readonly pid: number | undefined;
  readonly incarnation: number | undefined;
  /** Its events, if it belongs to the session of the client and still runs, with one handle, which is the caller's. */
  readonly queue: EventQueue | undefined;
}

const GRACE_MS = 5000;

/** Ends a process and starts it again, once, also if the connection is lost meanwhile. */
export async function restart(
  engine: Engine, ids: ProcessIds, { signal, graceMs = GRACE_MS }: RestartOptions,
): Promise<Restarted> {
  checkWhole("graceMs", graceMs);
  const params = { ...ids, graceMs, restartId: engine.name("s") };
  if (ids.sessionId !== undefined) {
    const { pid, incarnation } = await engine.call("process/restart", params, { signal });
    return { pid: pid ?? undefined, incarnation: incarnation ?? undefined, queue: undefined };
  }
  const old = engine.queues.get(ids.processId);
  let queue: EventQueue | undefined;
  let isGivenUp = false;
  try {
    const { pid, incarnation } = await engine.call("process/restart", params, {
      signal,
      // After a disconnect, events may be those of either process until the answer to the repeated call is here.
      onInterrupted: () => old?.suspend(),
      onResult: ({ replayed, incarnation }) => {
        queue = engine.queues.get(ids.processId);
        const isOther = queue !== undefined && incarnation != null && queue.incarnation !== incarnation;
        if (replayed && isOther && queue !== old) {
          // The answer is late: a later restart has put that one in its place.
          queue = undefined;
          return;
        }
        // After a disconnect, there may be another handle of the new process.
        if (!queue || incarnation == null || queue.incarnation !== incarnation) {
          // A server without incarnations answers after the rest of the events.
          queue = engine.queues.replace(ids.processId, incarnation != null && !replayed);
          queue.onStarted({ hasHistory: replayed, incarnation });
        }
        // Other restarts with the same outcome share it.
        queue.handles += 1;
      },
      // The server carries out what it has begun.
      onGivenUp: (outcome) => {
        isGivenUp = true;
        outcome.then(() => queue && engine.queues.release(queue), (error: unknown) => {
          const isUnknown = error instanceof RequestInterruptedError && old?.incarnation === undefined;
          if (!isUnknown) return old?.resume();
          // Nothing would ever tell whose events arrive.
          old?.fail(error);
          if (old) engine.queues.remove(old, { isRunning: true });
        });
      },
    });
    return { pid: pid ?? undefined, incarnation: incarnation ?? undefined, queue };
  } catch (error) {
    if (!isGivenUp) old?.resume();
    throw error;
  }
}
