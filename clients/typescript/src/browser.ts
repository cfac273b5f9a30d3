/**
 * The remex client for browsers: `ws://` and `wss://` only, without local files.
 *
 * The server has to list the origin of the page: `remex serve --allow-origin https://app.example.com`. Pages cannot
 * send headers with a WebSocket, so they cannot present a token: put a proxy in front of the server that adds it, or use
 * client certificates.
 *
 * @module
 */
import { BinaryReader, isBinary } from "./binary.js";
import { encodeBase64 } from "./bytes.js";
import { UnreachableError, UsageError } from "./errors.js";
import { Files } from "./files.js";
import type { HostOptions } from "./host.js";
import { Host, openHost } from "./host.js";
import type { Dial, Link, Receiver } from "./link.js";
import { CLOSE_TIMEOUT_MS, deliver } from "./link.js";
import type { Outgoing, OutgoingWithBytes } from "./outgoing.js";
import { MESSAGE_HEAD_LEN, binaryParts, writeMessageHead } from "./outgoing.js";

export * from "./common.js";

/** Options of {@link connect}. */
export interface ConnectOptions extends HostOptions {}

/**
 * Connects to a server and opens a session.
 *
 * ```ts
 * await using host = await connect("wss://build.example:7070");
 * console.log((await host.run(["uname", "-a"])).stdoutText);
 * ```
 */
export async function connect(target: string, options: ConnectOptions = {}): Promise<Host> {
  if (!/^wss?:\/\//.test(target)) {
    throw new UsageError(`cannot use \`${target}\` as a server`, { hint: "write `ws://host:port` or `wss://host:port`" });
  }
  if ("token" in options) {
    throw new UsageError("a page cannot send a token with a WebSocket", { hint: "let a proxy in front of the server add it" });
  }
  const dial: Dial = Object.assign((signal: AbortSignal) => open(target, signal), { target });
  return openHost(dial, options, (engine) => new Host(engine, new Files(engine)));
}

function open(target: string, signal: AbortSignal): Promise<Link> {
  return new Promise((resolve, reject) => {
    const socket = new WebSocket(target);
    socket.binaryType = "arraybuffer";
    const onAbort = (): void => {
      socket.close();
      reject(signal.reason);
    };
    signal.addEventListener("abort", onAbort, { once: true });
    socket.onopen = () => {
      signal.removeEventListener("abort", onAbort);
      resolve(new BrowserLink(socket));
    };
    socket.onclose = () => {
      signal.removeEventListener("abort", onAbort);
      const hint = "check that the server lists the origin of this page: `--allow-origin`";
      reject(new UnreachableError(`cannot connect to ${target}`, { hint }));
    };
  });
}

/** How much may wait in a `WebSocket`, which does not say when it has sent it, before it is looked at this often. */
const FULL_BYTES = 256 << 10;
const LOOK_MS = 50;

/** A connection over the `WebSocket` of the browser, which answers the pings of the server itself. */
class BrowserLink implements Link {
  readonly hasServerPings = true;
  readonly #socket: WebSocket;
  readonly #ended: Promise<string>;
  #receiver: Receiver | undefined;
  #isWatched = false;
  /** Reads binary messages, if there may be any. */
  #binary: BinaryReader | undefined;

  constructor(socket: WebSocket) {
    this.#socket = socket;
    this.#ended = new Promise((resolve) => {
      socket.onclose = ({ code, reason }) => resolve(`the server closed the connection${reason ? `: ${reason}` : ` (code ${code})`}`);
    });
  }

  get isFull(): boolean {
    if (this.#socket.readyState !== WebSocket.OPEN || this.#socket.bufferedAmount < FULL_BYTES) return false;
    if (!this.#isWatched) {
      this.#isWatched = true;
      setTimeout(() => {
        this.#isWatched = false;
        if (!this.isFull) this.#receiver?.onDrain();
      }, LOOK_MS);
    }
    return true;
  }

  start(receiver: Receiver): void {
    this.#receiver = receiver;
    this.#socket.onmessage = ({ data }: MessageEvent<string | ArrayBuffer>) => {
      if (typeof data === "string") return deliver(data, receiver);
      const bytes = new Uint8Array(data);
      if (this.#binary && isBinary(bytes, 0, bytes.length)) this.#binary.deliver(bytes, 0, bytes.length, receiver);
      else deliver(new TextDecoder().decode(bytes), receiver);
    };
    void this.#ended.then((reason) => receiver.onEnd(reason));
  }

  acceptBinary(): void {
    this.#binary = new BinaryReader();
  }

  send(message: Outgoing): void {
    if (this.#socket.readyState !== WebSocket.OPEN) return;
    if (typeof message === "string") this.#socket.send(message);
    else this.#socket.send(this.#binary ? binaryMessage(message) : textMessage(message));
  }

  async close(): Promise<void> {
    this.#socket.close(1000);
    await Promise.race([this.#ended, new Promise((resolve) => setTimeout(resolve, CLOSE_TIMEOUT_MS))]);
  }

  destroy(): void {
    this.#socket.close();
  }
}

function textMessage({ texts, bytes }: OutgoingWithBytes): string {
  return texts[0]! + bytes.map((item, index) => `"${encodeBase64(item)}"${texts[index + 1]!}`).join("");
}

function binaryMessage(message: OutgoingWithBytes): Uint8Array<ArrayBuffer> {
  const { json, attachedLen } = binaryParts(message);
  const text = new TextEncoder().encode(json);
  const out = new Uint8Array(MESSAGE_HEAD_LEN + text.length + attachedLen);
  writeMessageHead(out, 0, text.length);
  out.set(text, MESSAGE_HEAD_LEN);
  let at = MESSAGE_HEAD_LEN + text.length;
  for (const bytes of message.bytes) {
    out.set(bytes, at);
    at += bytes.length;
  }
  return out;
}
