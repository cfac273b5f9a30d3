/**
 * The queues of a session: which of them gets an event, and what becomes of the output of processes without one.
 *
 * Nothing here does I/O: {@link QueuesOwner} sends. Start at {@link Queues}.
 *
 * @module
 */
import type { CallOptions, InnerCallOptions, Params, Result } from "./calls.js";
import { incarnationOf, readBatch } from "./decode.js";
import { RestartedError, UsageError, asRemexError, isRefused } from "./errors.js";
import type { RemexError } from "./errors.js";
import type { QueueOutlet } from "./event-queue.js";
import { AFTER_EVERYTHING, EventQueue, READ_BYTES } from "./event-queue.js";
import type { ProcessEvent } from "./events.js";
import type { Due } from "./notes.js";

/** What the queues need of the engine. */
export interface QueuesOwner {
  /** Whether the server has sessions; one of the oldest dialect has none. */
  readonly hasSessions: boolean;
  /** Whether the server holds output back until it is reported as consumed. */
  readonly reportsConsumed: boolean;
  /** Reads a process, without a timeout. */
  read(params: Params<"process/read">, options?: InnerCallOptions<Result<"process/read">>): Promise<Result<"process/read">>;
  /** Reads a process for a caller who waits. */
  call(method: "process/read", params: Params<"process/read">, options?: CallOptions): Promise<Result<"process/read">>;
  /** Reports how far a process is consumed; without an incarnation, whichever runs now. */
  consumed(processId: string, seq: number, incarnation?: number, due?: Due): void;
  /** Reports an event that nobody follows; `isKnown` says whether this client has given its process up. */
  discarded(processId: string, seq: number, incarnation: number | undefined, isKnown: boolean): void;
  /** Drops reports that wait and name no start of a process that was restarted. */
  dropUnnamed(processId: string): void;
}

/** The key of one start of a process. */
function startOf(processId: string, incarnation: number | undefined): string {
  return `${incarnation ?? ""} ${processId}`;
}

/** The queues of all processes that have handles. */
export class Queues implements QueueOutlet {
  readonly #owner: QueuesOwner;
  readonly #queues = new Map<string, EventQueue>();
  /** The queues of processes that were restarted, by {@link startOf}: the rest of their events is on its way. */
  readonly #ending = new Map<string, EventQueue>();
  /** The queues with handles that have nothing more to take, until another process has the id. */
  readonly #finished = new Map<string, EventQueue>();
  /** Processes of the session that run without a queue, and their incarnations if known; their output is discarded. */
  readonly #unfollowed = new Map<string, number | undefined>();

  constructor(owner: QueuesOwner) {
    this.#owner = owner;
  }

  /** Adds the queue of a process. */
  add(id: string, retainBytes?: number): EventQueue {
    const taken = this.#queues.get(id);
    if (taken && !taken.closed) throw new UsageError(`process \`${id}\` already has a handle`, { hint: "use that handle" });
    const queue = new EventQueue(id, this, retainBytes, this.#owner.hasSessions);
    this.#queues.set(id, queue);
    this.#finished.delete(id);
    this.#unfollowed.delete(id);
    return queue;
  }

  /** Adds a queue in place of that of a process that was restarted. */
  replace(id: string, isRestSent: boolean): EventQueue {
    const old = this.#queues.get(id);
    this.#queues.delete(id);
    this.#owner.dropUnnamed(id);
    if (!isRestSent) old?.onReplaced();
    else if (old?.onEnding()) this.#ending.set(startOf(id, old.incarnation), old);
    return this.add(id);
  }

  /** Returns the queue of a process that has one. */
  get(id: string): EventQueue | undefined {
    return this.#queues.get(id);
  }

  /** Whether a process was given up by this client, so that its output is discarded. */
  isUnfollowed(id: string): boolean {
    return this.#unfollowed.has(id);
  }

  /** Removes the queue of a handle that is gone, unless another handle has it. */
  release(queue: EventQueue): void {
    queue.handles -= 1;
    if (queue.handles > 0) return;
    if (this.#finished.get(queue.id) === queue) this.#finished.delete(queue.id);
    this.remove(queue, { isRunning: true });
  }

  /** Removes a queue; a process that still runs continues, and its output is discarded. */
  remove(queue: EventQueue, options: { isRunning: boolean }): void {
    const start = startOf(queue.id, queue.incarnation);
    if (this.#ending.get(start) === queue) {
      this.#ending.delete(start);
      return queue.fail(RestartedError.of(queue.id));
    }
    if (this.#queues.get(queue.id) !== queue) return;
    this.#queues.delete(queue.id);
    if (options.isRunning && !queue.closed) this.#discard(queue.id, queue.confirmedIncarnation);
  }

  finished(queue: EventQueue): void {
    if (this.#queues.get(queue.id) === queue && queue.incarnation !== undefined) this.#finished.set(queue.id, queue);
    this.remove(queue, { isRunning: false });
  }

  restarted(queue: EventQueue): void {
    this.remove(queue, { isRunning: true });
  }

  read(queue: EventQueue, afterSeq: number, waitMs?: number): void {
    const { id: processId, incarnation } = queue;
    this.#owner.read({ processId, incarnation, afterSeq, maxBytes: READ_BYTES, waitMs })
      .then((reply) => {
        const named = incarnationOf(reply);
        if (incarnation !== undefined && named !== undefined && named !== incarnation) throw RestartedError.of(processId);
        return readBatch(reply);
      })
      .then(
        (batch) => queue.onRead(batch, afterSeq),
        (error: unknown) => queue.onReadError(asRemexError(error)),
      );
  }

  consumed(processId: string, seq: number, incarnation?: number, due?: Due): void {
    this.#owner.consumed(processId, seq, incarnation, due);
  }

  /** Ends the queue of a process that was restarted, and leaves any other as it is. */
  async check(queue: EventQueue, options?: CallOptions): Promise<void> {
    const { id: processId, incarnation } = queue;
    try {
      await this.#owner.call("process/read", { processId, incarnation, afterSeq: AFTER_EVERYTHING, maxBytes: 0 }, options);
    } catch (error) {
      if (!isRefused(error, "unknownProcess")) throw error;
      queue.onReplaced();
      const isAnother = error instanceof RestartedError;
      if (this.#finished.get(processId) === queue) {
        this.#finished.delete(processId);
        // Others have started it again, and nobody here follows that one.
        if (isAnother && !this.#unfollowed.has(processId)) this.#discard(processId, undefined);
      }
      this.remove(queue, { isRunning: isAnother });
    }
  }

  /** Discards the output of a process without a queue; without an incarnation, of whichever runs. */
  #discard(processId: string, incarnation: number | undefined): void {
    this.#unfollowed.set(processId, incarnation);
    // A read would miss a process that is just being restarted.
    if (incarnation !== undefined) return this.consumed(processId, AFTER_EVERYTHING, incarnation);
    if (!this.#owner.reportsConsumed) return;
    // A report that names none would be for the process before a restart, whose rest is still sent.
    const onReply = (reply: Result<"process/read">): void => {
      const found = incarnationOf(reply);
      const known = this.#unfollowed.get(processId);
      if (!this.#unfollowed.has(processId) || (known !== undefined && known !== found)) return;
      this.#unfollowed.set(processId, found);
      this.consumed(processId, AFTER_EVERYTHING, found);
      if (reply.closed) this.#onClosed(processId, found);
    };
    this.#owner.read({ processId, afterSeq: AFTER_EVERYTHING, maxBytes: 0 }, { isRepeatable: false }).then(onReply).catch((error: unknown) => {
      // After a disconnect, the next connection asks again.
      if (isRefused(error, "unknownProcess") && this.#unfollowed.get(processId) === undefined) this.#unfollowed.delete(processId);
    });
  }

  // Connections.

  onConnected(): void {
    for (const queue of [...this.#queues.values(), ...this.#finished.values()]) {
      const isFinished = this.#finished.get(queue.id) === queue;
      if (!isFinished) queue.onReconnect();
      if (isFinished || !queue.isChecked) this.check(queue).catch(() => undefined);
    }
  }

  /** Discards again what nobody follows, which may be another process by now. */
  discardAgain(): void {
    for (const id of [...this.#unfollowed.keys()]) this.#discard(id, undefined);
  }

  onDisconnected(): void {
    for (const queue of this.#queues.values()) queue.onDisconnect();
    this.#failEnding();
  }

  onLost(error: RemexError): void {
    for (const queue of this.#queues.values()) queue.fail(error);
    this.#failEnding();
    this.#queues.clear();
    this.#finished.clear();
  }

  /** Ends the queues of restarted processes: nobody is sent their rest any more. */
  #failEnding(): void {
    for (const queue of this.#ending.values()) queue.onReplaced();
    this.#ending.clear();
  }

  // What arrives.

  onEvent(processId: string, event: ProcessEvent, incarnation: number | undefined): void {
    const queue = this.#queueFor(processId, incarnation);
    const isKnown = queue === undefined && this.#isKnown(processId, incarnation);
    if (event.type === "closed") this.#onClosed(processId, incarnation);
    if (queue) return queue.onEvent(event, incarnation);
    // A process without a handle keeps running, and its output is discarded.
    this.#owner.discarded(processId, event.seq, incarnation, isKnown);
  }

  /** Handles a notification about a process that cannot be decoded. */
  onInvalid(processId: string, error: RemexError, incarnation: number | undefined): void {
    const queue = this.#queueFor(processId, incarnation);
    if (queue) queue.fail(error);
    else this.#owner.discarded(processId, AFTER_EVERYTHING, incarnation, this.#isKnown(processId, incarnation));
  }

  /** Returns the queue that takes an event; only those of a process that can be restarted name their incarnation. */
  #queueFor(processId: string, incarnation: number | undefined): EventQueue | undefined {
    let queue = incarnation === undefined ? undefined : this.#ending.get(startOf(processId, incarnation));
    if (queue === undefined) {
      queue = this.#queues.get(processId);
      if (queue === undefined || (incarnation !== undefined && !queue.mayHave(incarnation))) return undefined;
    }
    return queue.hasEnded ? undefined : queue;
  }

  #isKnown(processId: string, incarnation: number | undefined): boolean {
    return this.#unfollowed.has(processId) && (incarnation === undefined || this.#unfollowed.get(processId) === incarnation);
  }

  #onClosed(processId: string, incarnation: number | undefined): void {
    this.#ending.delete(startOf(processId, incarnation));
    // It may be the one before a restart.
    if (incarnation === undefined || this.#unfollowed.get(processId) === incarnation) this.#unfollowed.delete(processId);
  }
}
