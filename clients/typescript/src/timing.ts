/**
 * Pauses.
 *
 * @module
 */
import { onAbort } from "./abort.js";

/** Returns between half of the pause and all of it, so that the clients of one server do not reconnect at once. */
export function jittered(ms: number): number {
  return ms * (0.5 + Math.random() / 2);
}

/**
 * Calls a function when what has arrived is handled, so that what follows from all of it is sent at once.
 *
 * Only Node can tell; the timers of pages may be much later.
 */
export const soon: (then: () => void) => void = globalThis.setImmediate ?? queueMicrotask;

/** Waits; rejects with the reason of the signal. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const timer = setTimeout(() => {
      stop?.();
      resolve();
    }, ms);
    const stop = signal && onAbort(signal, () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}
