/**
 * The events of one process, between the connection and its consumers.
 *
 * The connection adds events in the order of arrival. {@link Replay} puts them in the order of their numbers, without
 * duplicates, and says what has to be read. Consumers take them, each at its own pace; what all of them have taken is
 * removed and reported to the server. Nothing here does I/O: {@link QueueOutlet} sends.
 *
 * @module
 */
import type { RemexError } from "./errors.js";
import { ProtocolError, RequestInterruptedError, RestartedError, isRefused } from "./errors.js";
import type { ClosedEvent, Exit, ExitedEvent, GapEvent, ProcessEvent, ReadBatch } from "./events.js";
import type { Due } from "./notes.js";

/** A server with the capability `consumed` streams at most this much beyond what is consumed. */
const WINDOW_BYTES = 256 << 10;
const WINDOW_EVENTS = 4096;

/** The limits for events that wait until earlier ones arrive. */
const AHEAD_BYTES = 2 * WINDOW_BYTES;
const AHEAD_EVENTS = 2 * WINDOW_EVENTS;

/** The limits for events that wait for the slowest consumer; a server with `consumed` never sends that much. */
const QUEUE_BYTES = 1 << 20;
const QUEUE_EVENTS = 16 << 10;

/** This many reads in a row that do not bring what is missing are a failure; one may have been sent before it was announced. */
const MAX_VAIN_READS = 4;

/** How long a process of the oldest dialect must be silent after its exit to count as closed. */
const SILENCE_MS = 250;

/** How much one `process/read` asks for. */
export const READ_BYTES = WINDOW_BYTES;

/** A position behind every event: the server takes it for the newest. */
export const AFTER_EVERYTHING = Number.MAX_SAFE_INTEGER;

type Unlisted = { readonly fromSeq: number; readonly toSeq: number };

function sizeOf(event: ProcessEvent): number {
  return event.type === "output" ? event.bytes.length : 0;
}

/** Returns the first number of an event. */
function firstSeq(event: ProcessEvent): number {
  return event.type === "gap" ? event.fromSeq : event.seq;
}

/** Merges streamed events with those that were read, as section 18.2 of the protocol describes. */
export class Replay {
  /** The last event that was given out. */
  cursor = 0;
  /** The newest event that is known. */
  #latest = 0;
  /** The last event that an answer to a read has covered. */
  #covered = 0;
  /** Events beyond the cursor, by their first number. */
  readonly #held: ProcessEvent[] = [];
  #heldBytes = 0;
  #reading: "idle" | "wanted" | "inProgress" = "idle";

  /** Returns whether this event is the next one, and nothing else is held or has to be given out before it. */
  isNext(seq: number): boolean {
    return seq === this.cursor + 1 && this.#held.length === 0 && this.#covered <= this.cursor;
  }

  /** Gives out an event for which {@link Replay.isNext} holds. */
  pass(seq: number): void {
    this.cursor = seq;
    if (seq > this.#latest) this.#latest = seq;
  }

  /** Adds an event or gap that was streamed. */
  add(event: ProcessEvent): void {
    this.#hold(event);
    // What is dropped here is read later.
    while (this.#held.length > 1 && (this.#held.length > AHEAD_EVENTS || this.#heldBytes > AHEAD_BYTES)) {
      const farthest = this.#held[this.#held.length - 1]!;
      if (firstSeq(farthest) <= this.#covered) break;
      this.#held.pop();
      this.#heldBytes -= sizeOf(farthest);
    }
  }

  /** Adds the answer to a read; `isNewest` says that nothing can be missing behind it. */
  addRead(batch: ReadBatch, isNewest: boolean): void {
    if (batch.gap) this.#hold(batch.gap);
    for (const chunk of batch.chunks) this.#hold(chunk);
    this.#covered = Math.max(this.#covered, batch.nextSeq - 1);
    this.#latest = Math.max(this.#latest, this.#covered);
    this.#reading = isNewest ? "idle" : "wanted";
  }

  /** Takes the next event, or a range of numbers that an answer covered without listing them: an exit or a close. */
  next(): ProcessEvent | Unlisted | undefined {
    for (;;) {
      const fromSeq = this.cursor + 1;
      const first = this.#held[0];
      if (first === undefined || firstSeq(first) > fromSeq) {
        if (this.#covered < fromSeq) return undefined;
        const toSeq = first === undefined ? this.#covered : Math.min(this.#covered, firstSeq(first) - 1);
        this.cursor = toSeq;
        return { fromSeq, toSeq };
      }
      this.#held.shift();
      this.#heldBytes -= sizeOf(first);
      if (firstSeq(first) < fromSeq) {
        // A gap that ends beyond the cursor has a wrong size: its rest has to be read.
        if (first.seq >= fromSeq) this.#covered = this.cursor;
        continue;
      }
      this.cursor = first.seq;
      return first;
    }
  }

  /** The newest event that is known. */
  get latest(): number {
    return this.#latest;
  }

  /** Whether there are events to read. */
  get isMissing(): boolean {
    return this.#reading === "wanted" || this.#latest > this.cursor;
  }

  /** Returns after which event to read, if something is missing and no read is on its way; the caller then reads. */
  takeRead(): number | undefined {
    if (!this.isMissing || this.#reading === "inProgress") return undefined;
    this.#reading = "inProgress";
    return this.cursor;
  }

  /** Records that events may be missing that no later one would reveal. */
  interrupt(): void {
    this.#reading = "wanted";
  }

  #hold(event: ProcessEvent): void {
    const from = firstSeq(event);
    if (event.seq <= this.cursor || event.seq < from) return;
    this.#latest = Math.max(this.#latest, event.seq);
    let at = this.#held.length;
    while (at > 0 && firstSeq(this.#held[at - 1]!) >= from) at--;
    const same = this.#held[at];
    let replaced = 0;
    if (same !== undefined && firstSeq(same) === from) {
      if (same.seq >= event.seq) return;
      this.#heldBytes -= sizeOf(same);
      replaced = 1;
    }
    this.#heldBytes += sizeOf(event);
    this.#held.splice(at, replaced, event);
  }
}

/** Sends requests and notifications for a queue. */
export interface QueueOutlet {
  /** Reads events after this one, and hands the answer to {@link EventQueue.onRead} or {@link EventQueue.onReadError}. */
  read(queue: EventQueue, afterSeq: number, waitMs?: number): void;
  /** Reports that everything up to this event is consumed; without an incarnation, of whichever process runs now. */
  consumed(processId: string, seq: number, incarnation?: number, due?: Due): void;
  /** The process is closed, and everything is consumed. */
  finished(queue: EventQueue): void;
  /** The process was restarted, so what arrives from now on is of another one. */
  restarted(queue: EventQueue): void;
}

/** The position of one consumer in a queue. */
export interface Consumer {
  /** The index of the next event, counted from the first event ever queued. */
  next: number;
  /** Called once when there may be something to take. */
  wake: (() => void) | undefined;
}

/** The ordered events of one process. */
export class EventQueue {
  readonly id: string;
  exit: ExitedEvent | undefined;
  closed: ClosedEvent | undefined;
  failed: RemexError | undefined;
  /** When output last arrived, in milliseconds of `performance.now()`. */
  lastOutputAt = performance.now();
  /** How many handles share it. */
  handles = 0;
  /** Tells this start of the process from those before and after a restart, if the server says so. */
  incarnation: number | undefined;

  readonly #outlet: QueueOutlet;
  readonly #replay = new Replay();
  readonly #queue: ProcessEvent[] = [];
  #queuedBytes = 0;
  /** How many events have left the queue: the index of its first. */
  #removed = 0;
  #removedSeq = 0;
  readonly #consumers = new Set<Consumer>();
  /** Until the first consumer arrives, events are kept for it. */
  #isFirstAwaited = true;
  #unreportedBytes = 0;
  #unreportedEvents = 0;
  readonly #reportBytes: number;
  /** The first event that this connection streamed; the server streams all later ones too. */
  #liveFrom: number | undefined;
  /** Whether the server has confirmed the process, so that it can be read. */
  #isStarted = false;
  #isResumed = false;
  /** Whether what is streamed may be of the process after a restart, until a read that names the incarnation succeeds. */
  #isUnconfirmed = false;
  /** Whose id it is: after a restart, another process has it; while one is interrupted, either may. */
  #idIs: "own" | "unknown" | "another" = "own";
  /** Whether it was restarted, and the rest of its events is on its way. */
  #isEnding = false;
  /** Whether this connection streams the rest of it and its close, even if it is restarted. */
  #isStreamed = true;
  /** Whether this connection has streamed its close. */
  #isCloseStreamed = false;
  /** How many reads in a row did not bring what is missing. */
  #vainReads = 0;
  #isFinished = false;
  /** Whether the server says that a process is closed; in the oldest dialect only silence after the exit does. */
  readonly #isCloseAnnounced: boolean;
  /** How many reads are on their way, and whether the last of them waits for output after the exit. */
  #reads = 0;
  #listens = false;

  constructor(id: string, outlet: QueueOutlet, retainBytes?: number, isCloseAnnounced = true) {
    this.id = id;
    this.#outlet = outlet;
    this.#isCloseAnnounced = isCloseAnnounced;
    this.#reportBytes = Math.min(WINDOW_BYTES / 2, Math.ceil((retainBytes ?? WINDOW_BYTES) / 4));
  }

  /** Records that the server has the process; with a history, it may have earlier output. */
  onStarted({ hasHistory, incarnation }: { hasHistory: boolean; incarnation: number | null | undefined }): void {
    this.#isStarted = true;
    this.incarnation = incarnation ?? undefined;
    this.#isUnconfirmed = hasHistory && this.incarnation !== undefined;
    if (hasHistory) {
      // It may have closed before.
      this.#isStreamed = false;
      this.#interrupt();
    }
    if (!this.#isUnconfirmed) this.#deliver(undefined);
    this.#act();
  }

  /** Handles a streamed event; that of a process that can be restarted names its incarnation. */
  onEvent(event: ProcessEvent, incarnation?: number): void {
    if (this.#idIs !== "own" || this.hasEnded) return;
    // What names none may be of another one after a disconnect.
    if (incarnation !== undefined || !this.#isUnconfirmed) this.#isStreamed = true;
    if (event.type === "closed") this.#isCloseStreamed = true;
    if (this.#queuedBytes >= QUEUE_BYTES || this.#queue.length >= QUEUE_EVENTS) {
      if (this.#isEnding) return this.fail(RestartedError.of(this.id));
      // Only a server of the base dialect sends beyond the window; a read fetches the event later.
      this.#interrupt();
      return;
    }
    this.#liveFrom ??= event.seq;
    if (event.type === "output") this.lastOutputAt = performance.now();
    const hadExited = this.exit !== undefined;
    if (this.#isUnconfirmed) {
      this.#replay.add(event);
    } else if (event.type !== "gap" && this.#replay.isNext(event.seq)) {
      this.#replay.pass(event.seq);
      this.#push(event);
      this.#afterPush();
    } else {
      this.#replay.add(event);
      this.#deliver(undefined);
    }
    if (!hadExited && this.#awaitsSilence && this.#reads === 0) this.#interrupt();
    this.#act();
  }

  /** Handles the answer to a read after an event. */
  onRead(batch: ReadBatch, afterSeq: number): void {
    this.#reads -= 1;
    const isSilent = this.#listens && batch.chunks.length === 0;
    this.#listens = false;
    if (!this.ownsId) return this.#interrupt();
    if (this.failed) return;
    this.#isUnconfirmed = false;
    if (batch.closed === undefined) this.#isStreamed = true;
    if (batch.chunks.length > 0) this.lastOutputAt = performance.now();
    // A limited read does not say what follows its last chunk: an exit, or nothing.
    const isNewest = batch.chunks.length === 0 || (this.#liveFrom !== undefined && batch.nextSeq >= this.#liveFrom);
    this.#replay.addRead(batch, isNewest);
    this.#deliver(batch);
    // Otherwise the client would ask forever.
    this.#vainReads = this.#replay.cursor === afterSeq && this.#replay.isMissing ? this.#vainReads + 1 : 0;
    if (this.#vainReads >= MAX_VAIN_READS) return this.fail(new ProtocolError(`cannot read event ${afterSeq + 1} of process \`${this.id}\`, which the server has announced`));
    if (this.#awaitsSilence) {
      if (isSilent) this.#close();
      else this.#interrupt();
    }
    this.#act();
  }

  /** Handles the failure of a read. */
  onReadError(error: RemexError): void {
    this.#reads -= 1;
    this.#listens = false;
    if (!this.ownsId) return this.#interrupt();
    if (error instanceof RequestInterruptedError || isRefused(error, "processStarting")) {
      this.#interrupt();
      this.#act();
    } else if (this.#awaitsSilence && error.message.startsWith("unknown process id")) {
      this.#close();
      this.#act();
    } else if (error instanceof RestartedError && this.#isEnding) {
      this.#onUnreadable();
    } else if (error instanceof RestartedError) {
      this.onReplaced();
      this.#outlet.restarted(this);
    } else if (!(isRefused(error, "unknownProcess") && this.closed)) {
      this.fail(error);
    }
  }

  /** Records that its process cannot be read any more. The rest may be streamed, but nothing that is missing before it. */
  #onUnreadable(): void {
    if (!this.#isStreamed) return this.fail(RestartedError.of(this.id));
    this.#replay.addRead({ gap: undefined, chunks: [], nextSeq: this.#replay.cursor + 1, exit: undefined, closed: undefined }, true);
    this.#deliver(undefined);
    if (this.#replay.isMissing) this.fail(RestartedError.of(this.id));
  }

  onDisconnect(): void {
    this.#interrupt();
    this.#isStreamed = this.#isCloseStreamed = false;
    // Without an incarnation, nothing shows that it is another process.
    this.#isUnconfirmed = this.incarnation !== undefined || !this.#isStarted;
  }

  onReconnect(): void {
    this.#isResumed = true;
    this.#act();
    // The last report may not have reached the server.
    const reported = this.failed ? AFTER_EVERYTHING : this.#removedSeq;
    if (reported > 0 && this.ownsId) this.#report(reported);
  }

  /** Ends the queue with an error, after what is queued; nobody takes more, which must block no process. */
  fail(error: RemexError): void {
    if (this.hasEnded) return;
    this.failed = error;
    // Without an incarnation, it would be about the process that has the id now.
    if (this.ownsId || this.incarnation !== undefined) this.#report(AFTER_EVERYTHING);
    this.#wakeAll();
  }

  /** Whether it takes no more events: all have arrived, or it has failed. */
  get hasEnded(): boolean {
    return this.closed !== undefined || this.failed !== undefined;
  }

  /** Whether any event has come to it. */
  get hasArrived(): boolean {
    return this.#replay.latest > 0;
  }

  /** Whether it learns by a read of its own, if it does not know, that another process has the id. */
  get isChecked(): boolean {
    return this.incarnation === undefined || !this.ownsId || (!this.hasEnded && this.#hasRoom);
  }

  /** The start that is known to have the id. */
  get confirmedIncarnation(): number | undefined {
    return this.ownsId && !this.#isUnconfirmed ? this.incarnation : undefined;
  }

  /** Whether the id is still that of this process, not of one that was started in its place. */
  get ownsId(): boolean {
    return this.#idIs === "own";
  }

  /** Returns whether events of this incarnation are those of its process, as far as can be known yet. */
  mayHave(incarnation: number): boolean {
    return this.incarnation === undefined || this.incarnation === incarnation || !this.ownsId;
  }

  /** Stops taking events and reading them, until {@link EventQueue.resume} or {@link EventQueue.onReplaced}. */
  suspend(): void {
    this.#idIs = "unknown";
  }

  /** Continues with the same process. */
  resume(): void {
    if (this.#idIs !== "unknown") return;
    this.#idIs = "own";
    this.#interrupt();
    this.onReconnect();
  }

  /**
   * Records that its process was restarted: the rest of its events comes before those of the new process.
   *
   * Returns whether it takes more of them.
   */
  onEnding(): boolean {
    if (this.hasEnded || this.confirmedIncarnation === undefined) {
      // After a disconnect there may be a hole before the rest.
      this.onReplaced();
      return false;
    }
    this.#isEnding = true;
    this.#act();
    return !this.#isCloseStreamed;
  }

  /** Ends the queue after what is queued, because its process was restarted. */
  onReplaced(): void {
    this.#idIs = "another";
    this.fail(RestartedError.of(this.id));
  }

  /** Adds a consumer of the events after `afterSeq`; those up to `historyUpTo` it has to read from the server. */
  subscribe(afterSeq: number): { consumer: Consumer; historyUpTo: number } {
    let skipped = 0;
    while (skipped < this.#queue.length && this.#queue[skipped]!.seq <= afterSeq) skipped++;
    const consumer: Consumer = { next: this.#removed + skipped, wake: undefined };
    this.#consumers.add(consumer);
    const historyUpTo = this.#removedSeq;
    this.release();
    return { consumer, historyUpTo };
  }

  /** Adds a consumer of future events only. */
  subscribeAtEnd(): Consumer {
    const consumer: Consumer = { next: this.#removed + this.#queue.length, wake: undefined };
    this.#consumers.add(consumer);
    return consumer;
  }

  unsubscribe(consumer: Consumer): void {
    if (!this.#consumers.delete(consumer)) return;
    this.#dropTaken();
    this.#act();
  }

  /** Takes the next event: `undefined` if it has to be awaited, `null` after the last; throws the failure. */
  take(consumer: Consumer): ProcessEvent | undefined | null {
    const event = this.#queue[consumer.next - this.#removed];
    if (event === undefined) {
      if (this.failed) throw this.failed;
      return this.closed ? null : undefined;
    }
    consumer.next += 1;
    this.#dropTaken();
    this.#act();
    return event;
  }

  /** Stops keeping events for a first consumer. */
  release(): void {
    this.#isFirstAwaited = false;
    this.#dropTaken();
    this.#act();
  }

  get #awaitsSilence(): boolean {
    return !this.#isCloseAnnounced && this.exit !== undefined && this.closed === undefined;
  }

  /** Closes a process whose server does not say when it is closed. */
  #close(): void {
    this.#push({ type: "closed", seq: this.#replay.cursor + 1, produced: undefined, evictedBytes: undefined });
    this.#afterPush();
  }

  #interrupt(): void {
    this.#replay.interrupt();
    this.#liveFrom = undefined;
  }

  #deliver(batch: ReadBatch | undefined): void {
    for (let step = this.#replay.next(); step !== undefined; step = this.#replay.next()) {
      if ("type" in step) this.#push(step);
      else this.#pushUnlisted(step, batch);
    }
    this.#afterPush();
  }

  /** Makes the events of numbers that a read skipped: an exit, a close, or output that a server has dropped. */
  #pushUnlisted({ fromSeq, toSeq }: Unlisted, batch: ReadBatch | undefined): void {
    const exit: Exit | undefined = this.exit ? undefined : batch?.exit;
    const closed = this.closed ? undefined : batch?.closed;
    const states = (exit ? 1 : 0) + (closed ? 1 : 0);
    const surplus = toSeq + 1 - fromSeq - states;
    let next = fromSeq;
    if (surplus > 0) {
      next += surplus;
      const seq = next - 1;
      this.#push({ type: "gap", seq, fromSeq, toSeq: seq, bytes: undefined, cause: undefined } satisfies GapEvent);
    }
    if (exit && next <= toSeq) this.#push({ type: "exited", seq: next++, exit });
    if (closed && next <= toSeq) this.#push({ ...closed, seq: next });
  }

  #push(event: ProcessEvent): void {
    if (event.type === "exited") this.exit = event;
    if (event.type === "closed") this.closed = event;
    this.#queuedBytes += sizeOf(event);
    this.#queue.push(event);
  }

  #afterPush(): void {
    if (this.#consumers.size === 0) this.#dropTaken();
    this.#wakeAll();
  }

  #wakeAll(): void {
    for (const consumer of this.#consumers) {
      const { wake } = consumer;
      consumer.wake = undefined;
      wake?.();
    }
  }

  /** Drops events that every consumer has taken. */
  #dropTaken(): void {
    if (this.#isFirstAwaited) return;
    let slowest = this.#removed + this.#queue.length;
    for (const consumer of this.#consumers) slowest = Math.min(slowest, consumer.next);
    while (this.#removed < slowest) {
      const event = this.#queue.shift()!;
      const size = sizeOf(event);
      this.#removed += 1;
      this.#removedSeq = event.seq;
      this.#queuedBytes -= size;
      this.#unreportedBytes += size;
      this.#unreportedEvents += 1;
    }
  }

  /** Reports how far it is consumed. */
  #report(seq: number, due?: Due): void {
    this.#outlet.consumed(this.id, seq, this.incarnation, due);
  }

  get #hasRoom(): boolean {
    return this.#queuedBytes < QUEUE_BYTES / 2 && this.#queue.length < QUEUE_EVENTS / 2;
  }

  /** Sends what is due. */
  #act(): void {
    if (!this.ownsId) return;
    const isMuch = this.#unreportedBytes >= this.#reportBytes || this.#unreportedEvents >= WINDOW_EVENTS / 4;
    // The server may have less room than a report is due at; without this report it would wait forever.
    const isAll = this.#queue.length === 0 && !this.closed;
    if (this.#unreportedEvents > 0 && (isMuch || isAll)) {
      this.#unreportedBytes = this.#unreportedEvents = 0;
      this.#report(this.#removedSeq, isMuch ? "now" : "soon");
    }
    if (this.closed && this.#queue.length === 0 && !this.#isFinished) {
      this.#isFinished = true;
      // After a resume the server keeps a closed process until it is consumed.
      if (this.#isResumed) this.#report(this.#removedSeq);
      this.#outlet.finished(this);
    }
    // The new process must not wait until somebody reads this one.
    if (this.#isEnding && this.#isFirstAwaited && this.#replay.latest > 0) this.#report(this.#replay.latest);
    if (!this.#isStarted || this.hasEnded || !this.#hasRoom) return;
    const afterSeq = this.#replay.takeRead();
    if (afterSeq === undefined) return;
    this.#reads += 1;
    this.#listens = this.#awaitsSilence;
    this.#outlet.read(this, afterSeq, this.#listens ? SILENCE_MS : undefined);
  }
}
