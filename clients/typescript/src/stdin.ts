/**
 * Writing to the standard input of a process.
 *
 * @module
 */
import { onAbort } from "./abort.js";
import type { BytesLike } from "./bytes.js";
import { toBytes } from "./bytes.js";
import type { CallOptions, ProcessIds } from "./calls.js";
import type { Engine } from "./engine.js";
import { RefusedError } from "./errors.js";
import type { ProcessWriteResult } from "./protocol.js";

/** The longest single write, in bytes. */
const WRITE_LEN = 64 << 10;

/** How many writes of one process may be unanswered. */
export const MAX_UNANSWERED = 8;

/** A write, or the close, that has to wait for those before it. */
interface Queued {
  readonly kind: "write" | "close";
  /** Makes the call; settles when it is answered, and never rejects. */
  send(): Promise<void>;
}

/**
 * The standard input of a process.
 *
 * Bytes arrive in order and exactly once, also across disconnects.
 *
 * ```ts
 * const upper = await host.start(["tr", "a-z", "A-Z"], { stdin: "pipe" });
 * await upper.stdin.write("hello\n");
 * await upper.stdin.close();
 * ```
 */
export class Stdin {
  readonly #engine: Engine;
  readonly #ids: ProcessIds;
  readonly #isTerminal: boolean;
  readonly #queue: Queued[] = [];
  #unanswered = 0;
  /** The last byte that was written. */
  #last: number | undefined;

  /** @internal */
  constructor(engine: Engine, ids: ProcessIds, isTerminal: boolean) {
    this.#engine = engine;
    this.#ids = ids;
    this.#isTerminal = isTerminal;
  }

  /**
   * Writes, and returns when the server has accepted all of it; waits while the process does not read.
   *
   * Without `await`, several writes are on their way at once and arrive in the order of the calls. A signal cancels
   * what the server has not accepted yet.
   */
  async write(data: BytesLike, options?: CallOptions): Promise<void> {
    const bytes = toBytes(data);
    this.#last = bytes.at(-1) ?? this.#last;
    const parts: Promise<void>[] = [];
    for (let at = 0; at < bytes.length || at === 0; at += WRITE_LEN) {
      const part = bytes.subarray(at, at + WRITE_LEN);
      parts.push(this.#enqueue("write", options?.signal, () => this.#write(part, options?.signal)));
    }
    // All of them are looked at, so that none fails without a listener.
    const failed = (await Promise.allSettled(parts)).find((part) => part.status === "rejected");
    if (failed) throw failed.reason;
  }

  /** Closes the input after everything written; on a terminal, which has no such end, types its end-of-file key. */
  async close(options?: CallOptions): Promise<void> {
    if (this.#isTerminal) return this.write(endOfFile(this.#last), options);
    await this.#enqueue("close", options?.signal, () => this.#engine.call("process/closeStdin", this.#ids, options));
  }

  /** A `WritableStream` of the input: `await response.body.pipeTo(upper.stdin.writable())`. */
  writable(): WritableStream<BytesLike> {
    const unanswered = new Set<Promise<void>>();
    let failure: { error: unknown } | undefined;
    return new WritableStream<BytesLike>({
      write: async (data) => {
        if (failure) throw failure.error;
        // The stream may reuse its buffer before the server has accepted it.
        const write = this.write(toBytes(data).slice())
          .catch((error: unknown) => void (failure ??= { error }))
          .finally(() => unanswered.delete(write));
        unanswered.add(write);
        // The stream continues while there is room.
        while (unanswered.size >= MAX_UNANSWERED) await Promise.race(unanswered);
      },
      close: async () => {
        await Promise.all(unanswered);
        if (failure) throw failure.error;
        await this.close();
      },
      abort: () => this.close(),
    });
  }

  #enqueue(kind: Queued["kind"], signal: AbortSignal | undefined, call: () => Promise<unknown>): Promise<void> {
    return new Promise((resolve, reject) => {
      if (signal?.aborted) return reject(signal.reason);
      const queued: Queued = {
        kind,
        send: () => {
          // From here on, the call itself listens to the signal.
          stop?.();
          return call().then(() => resolve(), reject);
        },
      };
      const stop = signal && onAbort(signal, () => {
        this.#queue.splice(this.#queue.indexOf(queued), 1);
        reject(signal.reason);
        this.#pump();
      });
      this.#queue.push(queued);
      this.#pump();
    });
  }

  /** Sends what may be sent. */
  #pump(): void {
    while (this.#unanswered < MAX_UNANSWERED) {
      // A close is sent at once, but a write may wait in the engine, so all of them have to be answered before it.
      if (this.#queue[0]?.kind === "close" && this.#unanswered > 0) return;
      const queued = this.#queue.shift();
      if (queued === undefined) return;
      const sent = queued.send();
      this.#unanswered += 1;
      void sent.finally(() => {
        this.#unanswered -= 1;
        this.#pump();
      });
    }
  }

  async #write(bytes: Uint8Array, signal: AbortSignal | undefined): Promise<void> {
    const params = { ...this.#ids, writeId: this.#engine.name("w") };
    // The first write of each process never waits for those of other processes, which may be blocked.
    const lane = this.#unanswered === 0 ? "control" : "parked";
    checkAccepted(await this.#engine.callWithBytes("process/write", params, { chunk: bytes }, { lane, signal }), this.#ids.processId);
  }
}

const NEWLINE = 0x0a;
/** The end-of-file key of a terminal. */
const END_OF_FILE = "\x04";

/** Returns what ends the input of a terminal behind a last byte: the first of these keys only ends a line that has no end. */
function endOfFile(last: number | undefined): string {
  return last === undefined || last === NEWLINE || last === END_OF_FILE.charCodeAt(0) ? END_OF_FILE : END_OF_FILE + END_OF_FILE;
}

function checkAccepted(reply: ProcessWriteResult, processId: string): void {
  // A newer server may have another word for it.
  if (reply.status === "accepted" || reply.accepted) return;
  const [kind, message] =
    reply.status === "unknownProcess" ? ["unknownProcess", `the server does not know process \`${processId}\``]
    : reply.status === "stdinClosed" ? ["stdinClosed", `the input of process \`${processId}\` is closed`]
    : ["internal", `process \`${processId}\` did not accept a write (${reply.status})`];
  throw new RefusedError({ code: -32600, kind: kind!, message: message! });
}
