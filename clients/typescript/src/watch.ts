/**
 * Watching files for changes.
 *
 * @module
 */
import { onAbort } from "./abort.js";
import type { CallOptions } from "./calls.js";
import { text } from "./decode.js";
import type { Engine } from "./engine.js";
import type { RemexError } from "./errors.js";
import { RequestInterruptedError, ProtocolError, UnreachableError } from "./errors.js";
import type { Path } from "./path.js";
import { fromWirePath, toWirePath } from "./path.js";
import type { FsChangeKind } from "./protocol.js";

/** What has changed since the previous batch. */
export interface Changes {
  /** Each path once, with its net change. */
  readonly changes: readonly { readonly path: string; readonly kind: FsChangeKind }[];
  /** Whether some changes are not reported: look at everything again. Also true after a reconnect. */
  readonly overflow: boolean;
}

let lastWatchId = 0;

/** A watch on a file or directory; it survives disconnects, which it reports as an overflow. */
export class Watch implements AsyncIterableIterator<Changes>, AsyncDisposable {
  readonly #engine: Engine;
  readonly #params: { path: string; recursive?: boolean | undefined };
  readonly #signal: AbortSignal | undefined;
  #id = 0;
  #changes: Changes[] = [];
  #failure: RemexError | undefined;
  #isEnded = false;
  #wake: (() => void) | undefined;
  readonly #stopListening: (() => void) | undefined;

  private constructor(engine: Engine, params: { path: string; recursive?: boolean | undefined }, signal: AbortSignal | undefined) {
    this.#engine = engine;
    this.#params = params;
    this.#signal = signal;
    this.#stopListening = signal && onAbort(signal, () => this.#end());
  }

  /** @internal */
  static async open(engine: Engine, path: Path, options: CallOptions & { recursive?: boolean | undefined }): Promise<Watch> {
    const watch = new Watch(engine, { path: toWirePath(path), recursive: options.recursive }, options.signal);
    try {
      await watch.#set();
    } catch (error) {
      watch.#stopListening?.();
      throw error;
    }
    return watch;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async next(): Promise<IteratorResult<Changes, undefined>> {
    for (;;) {
      this.#signal?.throwIfAborted();
      const changes = this.#changes.shift();
      if (changes) return { done: false, value: changes };
      if (this.#isEnded) return { done: true, value: undefined };
      if (this.#failure instanceof UnreachableError) {
        // The connection was lost, and the watch with it.
        this.#failure = undefined;
        await this.#set();
        return { done: false, value: { changes: [], overflow: true } };
      }
      if (this.#failure) throw this.#failure;
      await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }

  async return(): Promise<IteratorResult<Changes, undefined>> {
    this.#end();
    return { done: true, value: undefined };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#end();
  }

  async #set(): Promise<void> {
    for (;;) {
      const id = ++lastWatchId;
      this.#id = id;
      this.#engine.routes.add(`watch:${id}`, {
        onChanged: (changed) => {
          if (!Array.isArray(changed.changes)) throw new ProtocolError("`changes` is not an array");
          const changes = changed.changes.map(({ path, kind }) => ({ path: fromWirePath(path), kind: text(kind, "kind") }));
          this.#changes.push({ changes, overflow: changed.overflow ?? false });
          this.#wake?.();
        },
        onFailure: (error) => {
          this.#failure = error;
          this.#wake?.();
        },
      });
      try {
        await this.#engine.call("fs/watch", { ...this.#params, watchId: id }, { signal: this.#signal });
        return;
      } catch (error) {
        this.#engine.routes.remove(`watch:${id}`);
        // A watch ends with its connection; the next attempt waits for a new one.
        if (!(error instanceof RequestInterruptedError)) throw error;
        this.#failure = undefined;
      }
    }
  }

  #end(): void {
    if (this.#isEnded) return;
    this.#isEnded = true;
    this.#stopListening?.();
    this.#engine.routes.remove(`watch:${this.#id}`);
    this.#engine.call("fs/unwatch", { watchId: this.#id }).catch(() => undefined);
    this.#wake?.();
  }
}
