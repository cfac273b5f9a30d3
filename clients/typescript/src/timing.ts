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
