/**
 * The transports of Node: unix sockets, WebSockets with and without TLS, and programs.
 *
 * @module
 */
import { isIP, connect as connectSocket } from "node:net";
import type { IpcNetConnectOpts, Socket, TcpNetConnectOpts } from "node:net";
import type { ConnectionOptions, TLSSocket } from "node:tls";
import { connect as connectTls } from "node:tls";
import { UnreachableError, UsageError } from "../errors.js";
import type { Dial, Link } from "../link.js";
import { LineLink } from "./lines.js";
import { openProgram } from "./program.js";
import { ReceiveBuffer } from "./receive-buffer.js";
import { checkUnixServer } from "./unix-server.js";
import { WebSocketLink } from "./websocket.js";

/** Options of `wss://`: those of `tls.connect` that concern certificates. */
export type TlsOptions = Pick<ConnectionOptions, "ca" | "cert" | "key" | "passphrase" | "pfx" | "servername" | "minVersion" | "rejectUnauthorized">;

/** A bearer token, or a function that is asked for one before each connection. */
export type Token = string | (() => string | Promise<string>);

/** Returns how to connect to a target: an address, or the command line of a program. */
export function dialTo(target: string | readonly string[], token: Token | undefined, tls: TlsOptions | undefined): Dial {
  if (typeof target !== "string") {
    if (target.length === 0) throw new UsageError("the program of the connection is missing", { hint: 'pass `["ssh", "host", "remex", "proxy"]`' });
    return named(target.join(" "), (signal) => openProgram(target, signal));
  }
  const hint = "write `ws://host:port`, `wss://host:port` or `unix:///path`, or pass a command line as an array";
  if (target.startsWith("unix://")) {
    const path = target.slice("unix://".length);
    if (!path.startsWith("/")) throw new UsageError(`cannot use \`${target}\` as a server: the path is not absolute`, { hint });
    return named(target, (signal) => openUnix(target, path, signal));
  }
  const url = URL.canParse(target) ? new URL(target) : undefined;
  if (url?.protocol !== "ws:" && url?.protocol !== "wss:") throw new UsageError(`cannot use \`${target}\` as a server`, { hint });
  if (url.username || url.password || url.hash) {
    throw new UsageError(`cannot use \`${target}\` as a server: it has a name, password or fragment`, { hint: "pass the token as an option" });
  }
  return named(target, async (signal) => {
    const bearer = typeof token === "function" ? await token() : token;
    if (bearer !== undefined && !/^[\x21-\x7e]+$/.test(bearer)) throw new UsageError("the token has characters that cannot be sent");
    return openWebSocket(target, url, bearer, url.protocol === "wss:" ? (tls ?? {}) : undefined, signal);
  });
}

function named(target: string, dial: (signal: AbortSignal) => Promise<Link>): Dial {
  return Object.assign(dial, { target });
}

async function openUnix(target: string, path: string, signal: AbortSignal): Promise<Link> {
  const received = new ReceiveBuffer();
  let link: LineLink | undefined;
  const socket = connectSocket({ path, onread: readInto(received, () => link?.onBytes()) } as IpcNetConnectOpts);
  await opened(socket, "connect", target, signal);
  link = new LineLink(socket, socket, received);
  try {
    await checkUnixServer(path);
  } catch (error) {
    link.destroy();
    throw error instanceof UnreachableError ? error : new UnreachableError(`cannot connect to ${target}: ${String(error)}`, { cause: error });
  }
  return link;
}

async function openWebSocket(target: string, url: URL, token: string | undefined, tls: TlsOptions | undefined, signal: AbortSignal): Promise<Link> {
  const host = url.hostname.replace(/^\[|\]$/g, "");
  const port = Number(url.port || (tls ? 443 : 80));
  const received = new ReceiveBuffer();
  let onBytes = (): void => {};
  let socket: Socket | TLSSocket;
  if (tls) {
    const servername = tls.servername ?? (isIP(host) ? "" : host);
    socket = connectTls({ ...tls, host, port, servername, ALPNProtocols: ["http/1.1"] });
    socket.on("data", (chunk: Buffer) => {
      received.push(chunk);
      onBytes();
    });
  } else {
    const onread = readInto(received, () => onBytes());
    socket = connectSocket({ host, port, onread } as TcpNetConnectOpts);
  }
  socket.setNoDelay(true);
  await opened(socket, tls ? "secureConnect" : "connect", target, signal);
  const abort = (): void => void socket.destroy();
  signal.addEventListener("abort", abort, { once: true });
  try {
    const path = `${url.pathname || "/"}${url.search}`;
    return await WebSocketLink.upgrade(socket, received, { target, host: url.host, path, token }, (callback) => (onBytes = callback));
  } finally {
    signal.removeEventListener("abort", abort);
  }
}

/** Has the system write behind what is not parsed yet, so that messages need no assembly. */
function readInto(received: ReceiveBuffer, onBytes: () => void): { buffer: () => Buffer; callback: (length: number) => boolean } {
  return {
    buffer: () => received.space(),
    callback: (length) => {
      received.filled(length);
      onBytes();
      return true;
    },
  };
}

/** Waits until a socket is connected. */
function opened(socket: Socket, event: string, target: string, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const onAbort = (): void => void socket.destroy(signal.reason instanceof Error ? signal.reason : new Error("aborted"));
    const settle = (then: () => void): void => {
      socket.off("error", onError);
      socket.off("close", onClose);
      signal.removeEventListener("abort", onAbort);
      then();
    };
    const onError = (error: Error): void => {
      // An address with several failures has an empty message.
      const reason = error.message || (error as { code?: string }).code || "no connection";
      settle(() => reject(new UnreachableError(`cannot connect to ${target}: ${reason}`, { cause: error })));
    };
    const onClose = (): void => onError(new Error("the connection was closed"));
    socket.once("error", onError);
    socket.once("close", onClose);
    socket.once(event, () => settle(resolve));
    if (signal.aborted) onAbort();
    else signal.addEventListener("abort", onAbort, { once: true });
  });
}
