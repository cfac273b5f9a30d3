/**
 * The acknowledgements on one connection. While that takes no more, only the newest of each is kept, so a server that
 * sends without reading costs little memory. Start at {@link Notes}.
 *
 * @module
 */
import type { Link } from "./link.js";
import { soon } from "./timing.js";

/** How many reports about processes that nobody follows may wait; no server has that many processes in a session. */
const MAX_DISCARDED = 16 << 10;

/** The longest id that the protocol allows. */
const MAX_ID_LEN = 1 << 10;

/** How many requests of the server may wait to be refused; a server that sends more gets no answer to the rest. */
const MAX_REFUSALS = 256;

const REFUSAL = { code: -32601, message: "this client accepts no requests" };

/** When a report is sent: at once, or together with those that follow from what else has arrived. */
export type Due = "now" | "soon";

/** How far a start of a process is consumed. */
interface Consumed {
  readonly processId: string;
  readonly incarnation: number | undefined;
  seq: number;
}

/** The acknowledgements and refusals that wait until the connection takes them. */
export class Notes {
  readonly #link: Pick<Link, "isFull" | "send">;
  #mark: unknown;
  /** By incarnation and process. */
  readonly #consumed = new Map<string, Consumed>();
  readonly #bodyConsumed = new Map<string, number>();
  #refusals: unknown[] = [];
  #isFlushDue = false;

  constructor(link: Pick<Link, "isFull" | "send">) {
    this.#link = link;
  }

  /** Acknowledges a mark. */
  acknowledge(mark: unknown): void {
    this.#mark = mark;
    this.#flushSoon();
  }

  /** Reports how far a process is consumed; without an incarnation, whichever runs now. */
  addConsumed(processId: string, seq: number, incarnation: number | undefined, due: Due = "now"): void {
    const key = `${incarnation ?? ""} ${processId}`;
    const waiting = this.#consumed.get(key);
    if (waiting) waiting.seq = Math.max(waiting.seq, seq);
    else this.#consumed.set(key, { processId, incarnation, seq });
    if (due === "now") this.flush();
    else this.#flushSoon();
  }

  /** The same for an event that nobody follows: a server that sends more than it may gets no more reports. */
  addDiscarded(processId: string, seq: number, incarnation: number | undefined, isKnown: boolean): void {
    const hasRoom = isKnown || this.#consumed.size < MAX_DISCARDED || this.#consumed.has(`${incarnation ?? ""} ${processId}`);
    if (hasRoom && processId.length <= MAX_ID_LEN) this.addConsumed(processId, seq, incarnation);
  }

  /** Reports how far a body is consumed. */
  addBodyConsumed(requestId: string, seq: number): void {
    this.#bodyConsumed.set(requestId, seq);
    this.flush();
  }

  /** Refuses a request of the server. */
  refuse(id: unknown): void {
    const isShort = typeof id === "number" || (typeof id === "string" && id.length <= MAX_ID_LEN);
    if (isShort && this.#refusals.length < MAX_REFUSALS) this.#refusals.push(id);
    this.flush();
  }

  /** Drops what names no start of a process: the server would take it for that of the one after a restart. */
  dropUnnamed(processId: string): void {
    this.#consumed.delete(` ${processId}`);
  }

  #flushSoon(): void {
    if (this.#isFlushDue) return;
    this.#isFlushDue = true;
    soon(() => {
      this.#isFlushDue = false;
      this.flush();
    });
  }

  /** Sends what is waiting, if the connection takes it. */
  flush(): void {
    if (this.#link.isFull) return;
    const mark = this.#mark;
    this.#mark = undefined;
    if (mark !== undefined) this.#note("flow/ack", { mark });
    for (const { processId, incarnation, seq } of this.#consumed.values()) this.#note("flow/consumed", { processId, incarnation, seq });
    this.#consumed.clear();
    for (const [requestId, seq] of this.#bodyConsumed) this.#note("flow/bodyConsumed", { requestId, seq });
    this.#bodyConsumed.clear();
    const refusals = this.#refusals;
    this.#refusals = [];
    for (const id of refusals) this.#link.send(JSON.stringify({ id, error: REFUSAL }));
  }

  #note(method: string, params: object): void {
    this.#link.send(`{"method":"${method}","params":${JSON.stringify(params)}}`);
  }
}
