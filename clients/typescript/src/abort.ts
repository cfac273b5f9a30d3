/**
 * Listening to the signals of callers.
 *
 * @module
 */

interface Listener {
  readonly callbacks: Set<() => void>;
  call(): void;
}

const listeners = new WeakMap<AbortSignal, Listener>();

/**
 * Calls a function once when a signal aborts; returns how to stop that.
 *
 * However many calls share a signal, it has one listener: Node warns of a leak when there are many.
 */
export function onAbort(signal: AbortSignal, callback: () => void): () => void {
  const listener = listeners.get(signal) ?? listen(signal);
  listener.callbacks.add(callback);
  return () => {
    if (!listener.callbacks.delete(callback) || listener.callbacks.size > 0) return;
    // Node keeps a combined signal in memory while it has a listener.
    listeners.delete(signal);
    signal.removeEventListener("abort", listener.call);
  };
}

function listen(signal: AbortSignal): Listener {
  const callbacks = new Set<() => void>();
  const listener: Listener = {
    callbacks,
    call: () => {
      listeners.delete(signal);
      for (const callback of callbacks) callback();
    },
  };
  listeners.set(signal, listener);
  signal.addEventListener("abort", listener.call, { once: true });
  return listener;
}
