/**
 * The unanswered calls of a session, across its connections.
 *
 * @module
 */
import { onAbort } from "./abort.js";
import { placeAttached } from "./attached.js";
import type { Lane, Method, PendingCall } from "./calls.js";
import { LANE_SLOTS } from "./calls.js";
import { isObject } from "./decode.js";
import type { RemexError } from "./errors.js";
import { ProtocolError, RequestInterruptedError, asRemexError } from "./errors.js";
import type { Outgoing } from "./outgoing.js";
import { toRefusal } from "./refusal.js";

/** Sends calls on the current connection, if there is one. */
export interface CallOutlet {
  isConnected(): boolean;
  send(message: Outgoing): void;
  /** Asks the server to cancel a call. */
  cancel(id: number): void;
  /** Returns why a call cannot be sent on this connection. */
  tooLong(call: PendingCall): RemexError | undefined;
}

/** The unanswered calls: those that have a slot of their lane, and those that wait for one. */
export class CallTable {
  readonly #outlet: CallOutlet;
  #nextId = 1;
  /** Those with a slot, in the order of the calls. */
  readonly #pending = new Map<number, PendingCall>();
  readonly #used: Record<Lane, number> = { control: 0, plain: 0, files: 0, parked: 0 };
  readonly #waiting: Record<Lane, PendingCall[]> = { control: [], plain: [], files: [], parked: [] };

  constructor(outlet: CallOutlet) {
    this.#outlet = outlet;
  }

  /** The id that the next call will have. */
  get nextId(): number {
    return this.#nextId;
  }

  takeId(): number {
    return this.#nextId++;
  }

  /** Adds a call, and sends it as soon as there is a slot and a connection. */
  add(call: PendingCall, signal?: AbortSignal, onGivenUp?: (outcome: Promise<unknown>) => void): void {
    if (signal) this.#cancelOn(signal, call, onGivenUp);
    if (this.#used[call.lane] < LANE_SLOTS[call.lane]) this.#admit(call);
    else this.#waiting[call.lane].push(call);
  }

  /** Settles the call that an answer is for; returns its method, unless it was cancelled. */
  answer(id: unknown, message: { result?: unknown; error?: unknown }, attached: Uint8Array | undefined): Method | undefined {
    const call = typeof id === "number" ? this.#complete(id) : undefined;
    if (call === undefined) return undefined;
    if (message.error != null) {
      call.reject(toRefusal(message.error));
    } else {
      this.#settle(call, message.result, attached);
    }
    return call.method;
  }

  #settle(call: PendingCall, result: unknown, attached: Uint8Array | undefined): void {
    const what = `cannot decode the answer to \`${call.method}\``;
    if (!isObject(result)) return call.reject(new ProtocolError(what));
    try {
      if (attached) placeAttached(result, attached);
    } catch (error) {
      return call.reject(new ProtocolError(`${what}: ${asRemexError(error).message}`));
    }
    call.onResult?.(result as never);
    call.resolve(result);
  }

  /** Fails the calls that cannot be repeated; the others wait for {@link CallTable.resend}. */
  onDisconnected(): void {
    for (const call of [...this.#pending.values()]) {
      if (call.state !== "sent") continue;
      call.onInterrupted?.();
      if (call.isRepeatable && !call.isGivenUp) call.state = "interrupted";
      else this.#interrupt(call);
    }
  }

  /** Sends what the new connection has not been sent yet, in the order of the calls. */
  resend(): void {
    for (const call of this.#pending.values()) if (call.state !== "sent") this.#send(call);
  }

  /** Fails all calls. */
  failAll(error: RemexError): void {
    const failed = [...this.#pending.values(), ...Object.values(this.#waiting).flat()];
    this.#pending.clear();
    for (const lane of Object.values(this.#waiting)) lane.length = 0;
    for (const call of failed) call.reject(error);
  }

  #cancelOn(signal: AbortSignal, call: PendingCall, onGivenUp: ((outcome: Promise<unknown>) => void) | undefined): void {
    const { resolve, reject } = call;
    const stop = onAbort(signal, () => {
      reject(signal.reason);
      const wasSent = call.state === "sent" || call.state === "interrupted";
      if (onGivenUp && wasSent) {
        const outcome = new Promise<unknown>((...settle) => ([call.resolve, call.reject] = settle));
        outcome.catch(() => undefined);
        call.isGivenUp = true;
        if (call.state === "interrupted") this.#interrupt(call);
        return onGivenUp(outcome);
      }
      if (call.state === "sent") this.#outlet.cancel(call.id);
      if (call.state === "waiting") this.#waiting[call.lane].splice(this.#waiting[call.lane].indexOf(call), 1);
      else this.#complete(call.id);
    });
    call.resolve = (result) => {
      stop();
      resolve(result);
    };
    call.reject = (error) => {
      stop();
      reject(error);
    };
  }

  /** Gives a call its slot, and sends it if there is a connection. */
  #admit(call: PendingCall): void {
    this.#used[call.lane] += 1;
    this.#pending.set(call.id, call);
    call.state = "queued";
    if (this.#outlet.isConnected()) this.#send(call);
  }

  #send(call: PendingCall): void {
    // As base64 it is longer than on the connection for which it was made.
    const tooLong = typeof call.message === "string" ? undefined : this.#outlet.tooLong(call);
    if (tooLong) {
      this.#complete(call.id);
      return call.reject(tooLong);
    }
    call.state = "sent";
    this.#outlet.send(call.message);
  }

  /** Removes a call and gives its slot to the next one. */
  #complete(id: number): PendingCall | undefined {
    const call = this.#pending.get(id);
    if (call === undefined) return undefined;
    this.#pending.delete(id);
    this.#used[call.lane] -= 1;
    const next = this.#waiting[call.lane].shift();
    if (next) this.#admit(next);
    return call;
  }

  #interrupt(call: PendingCall): void {
    this.#complete(call.id);
    call.reject(new RequestInterruptedError(call.method));
  }
}
