/**
 * The transports of Node: unix sockets, WebSockets with and without TLS, and programs.
 *
 * @module
 */
import { createHash } from "node:crypto";
import { isIP, connect as connectSocket } from "node:net";
import type { IpcNetConnectOpts, Socket, TcpNetConnectOpts } from "node:net";
import type { ConnectionOptions, TLSSocket } from "node:tls";
import { connect as connectTls } from "node:tls";
import { UnreachableError, UsageError } from "../errors.js";
import type { Dial, Link } from "../link.js";
import { LineLink } from "./lines.js";
import type { ProgramTarget } from "./program.js";
import { openProgram } from "./program.js";
import { ReceiveBuffer } from "./receive-buffer.js";
import { checkUnixServer } from "./unix-server.js";
import { WebSocketLink } from "./websocket.js";

/** Options of `wss://`: those of `tls.connect` that concern certificates, and a pin. */
export interface TlsOptions
  extends Pick<ConnectionOptions, "ca" | "cert" | "key" | "passphrase" | "pfx" | "servername" | "minVersion" | "rejectUnauthorized"> {
  /**
   * The SHA-256 digest of the server's public key: `sha256:` with 64 hexadecimal digits, or the form of curl. Without `ca`
   * it suffices, with it both must hold.
   */
  pin?: string | undefined;
}

/** A bearer token, or a function that is asked for one before each connection. */
export type Token = string | (() => string | Promise<string>);

/** The options of TLS, or a function that is asked for them before each connection. */
export type Tls = TlsOptions | (() => TlsOptions | Promise<TlsOptions>);

/** What to present to a WebSocket. */
export interface Access {
  token?: Token | undefined;
  tls?: Tls | undefined;
  /** Further headers of the request for the WebSocket. */
  headers?: Readonly<Record<string, string>> | undefined;
}

const HINT = "write `ws://host:port`, `wss://host:port`, `ssh://user@host` or `unix:///path`, or pass a command line as an array";

/** Returns how to connect to a target: an address, or a program. */
export function dialTo(target: string | ProgramTarget, access: Access): Dial {
  if (typeof target !== "string") {
    if (target.argv.length === 0) throw new UsageError("the program of the connection is missing", { hint: 'pass `["ssh", "host", "remex", "proxy"]`' });
    return named(target.argv.join(" "), (signal) => openProgram(target, signal));
  }
  if (target.startsWith("ssh://")) return dialTo({ argv: sshProxy(target) }, access);
  if (target.startsWith("unix:") || target.startsWith("/")) {
    const path = target.replace(/^unix:(\/\/)?/, "");
    if (!path.startsWith("/")) throw new UsageError(`cannot use \`${target}\` as a server: the path is not absolute`, { hint: HINT });
    return named(`unix://${path}`, (signal) => openUnix(`unix://${path}`, path, signal));
  }
  const url = URL.canParse(target) ? new URL(target) : undefined;
  if (url?.protocol !== "ws:" && url?.protocol !== "wss:") throw new UsageError(`cannot use \`${withoutUser(target)}\` as a server`, { hint: HINT });
  if (url.username || url.password || url.hash) {
    const what = `cannot use \`${withoutUser(target)}\` as a server: it has a name, password or fragment`;
    throw new UsageError(what, { hint: "pass the token as an option" });
  }
  const { token, headers = {} } = access;
  checkHeaders(headers);
  const { tls = {} } = access;
  // What is wrong with them is said before a connection is made.
  if (typeof tls !== "function") prepared(tls);
  return named(target, async (signal) => {
    const bearer = typeof token === "function" ? await token() : token;
    if (bearer !== undefined && !/^[\x21-\x7e]+$/.test(bearer)) throw new UsageError("the token has characters that cannot be sent");
    const secure = url.protocol === "wss:" ? prepared(typeof tls === "function" ? await tls() : tls) : undefined;
    return openWebSocket({ target, url, token: bearer, headers, tls: secure }, signal);
  });
}

/** Returns the command line that `ssh://user@host:port` stands for; user and port are optional. */
export function sshProxy(address: string): string[] {
  const refuse = (why: string): UsageError =>
    new UsageError(`cannot use \`${withoutUser(address)}\` as a server: ${why}`, { hint: "write `ssh://user@host:port`; user and port are optional" });
  const place = address.slice("ssh://".length).replace(/\/$/, "");
  if (place.includes("/")) throw refuse("a path is not allowed");
  const at = place.lastIndexOf("@");
  const user = at < 0 ? undefined : place.slice(0, at);
  if (user !== undefined && (user === "" || user.includes(":"))) throw refuse("the user is empty or includes a password; ssh asks for passwords itself");
  const [, bracketed, plain = "", port] = /^(?:\[([^\]]*)\]|([^:]*))(?::(.*))?$/.exec(place.slice(at + 1)) ?? [];
  const host = bracketed ?? plain;
  // ssh would parse a host that begins with `-` as a flag.
  if (host === "" || place.startsWith("-") || host.startsWith("-") || /[\s\x00-\x1f\x7f]/.test(place)) throw refuse("the host is missing or invalid");
  if (port !== undefined && (!/^\d{1,5}$/.test(port) || Number(port) < 1 || Number(port) > 65535)) throw refuse("invalid port");
  return ["ssh", ...(port === undefined ? [] : ["-p", String(Number(port))]), user === undefined ? host : `${user}@${host}`, "remex", "proxy"];
}

/** Hides what may be a password. */
export function withoutUser(address: string): string {
  return address.replace(/^([^/]*\/\/).*@/, "$1…@");
}

const OWN_HEADERS = new Set(["authorization", "connection", "host", "upgrade"]);

function checkHeaders(headers: Readonly<Record<string, string>>): void {
  for (const [name, value] of Object.entries(headers)) {
    const isOwn = OWN_HEADERS.has(name.toLowerCase()) || name.toLowerCase().startsWith("sec-websocket-");
    if (isOwn) throw new UsageError(`the header \`${name}\` is set by the client`, { hint: "pass a token as `token`" });
    const isValid = /^[\w!#$%&'*+.^`|~-]+$/.test(name) && typeof value === "string" && /^[\t\x20-\x7e]*$/.test(value);
    if (!isValid) throw new UsageError(`the header ${JSON.stringify(name)} cannot be sent`);
  }
}

/** The options of `tls.connect`, and the digest that the key of the server must have. */
interface PreparedTls {
  readonly options: ConnectionOptions;
  readonly pin: Buffer | undefined;
}

function prepared({ pin, ...options }: TlsOptions): PreparedTls {
  if (pin === undefined) return { options, pin: undefined };
  // A pin says more than the name of the host and the CAs of this machine.
  const trust = options.ca === undefined ? { rejectUnauthorized: false } : {};
  return { options: { ...options, ...trust }, pin: digestOf(pin) };
}

/** Returns the digest that a pin spells. */
export function digestOf(pin: string): Buffer {
  const digest = pin.startsWith("sha256//") ? Buffer.from(pin.slice("sha256//".length), "base64") : Buffer.from(pin.replace(/^sha256:/, ""), "hex");
  const isWhole = pin.startsWith("sha256//") || /^(sha256:)?[0-9a-fA-F]{64}$/.test(pin);
  if (digest.length === 32 && isWhole) return digest;
  throw new UsageError(`\`${pin}\` is not the digest of a public key`, { hint: "write `sha256:` and 64 hexadecimal digits" });
}

/** Fails unless the server has the key of the pin. */
function checkPin(socket: TLSSocket, pin: Buffer, target: string): void {
  const key = socket.getPeerX509Certificate()?.publicKey.export({ type: "spki", format: "der" });
  const digest = key && createHash("sha256").update(key).digest();
  if (digest?.equals(pin)) return;
  const seen = digest ? `sha256:${digest.toString("hex")}` : "no key";
  throw new UnreachableError(`cannot trust ${target}: its public key is ${seen}, not that of the pin`, { hint: "check that it is the right server; if its key has changed, change the pin" });
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

interface WebSocketTarget {
  readonly target: string;
  readonly url: URL;
  readonly token: string | undefined;
  readonly headers: Readonly<Record<string, string>>;
  readonly tls: PreparedTls | undefined;
}

async function openWebSocket({ target, url, token, headers, tls }: WebSocketTarget, signal: AbortSignal): Promise<Link> {
  const host = url.hostname.replace(/^\[|\]$/g, "");
  const port = Number(url.port || (tls ? 443 : 80));
  const received = new ReceiveBuffer();
  let onBytes = (): void => {};
  let socket: Socket | TLSSocket;
  if (tls) {
    const servername = tls.options.servername ?? (isIP(host) ? "" : host);
    socket = connectTls({ ...tls.options, host, port, servername, ALPNProtocols: ["http/1.1"] });
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
  try {
    if (tls?.pin) checkPin(socket as TLSSocket, tls.pin, target);
  } catch (error) {
    socket.destroy();
    throw error;
  }
  const abort = (): void => void socket.destroy();
  signal.addEventListener("abort", abort, { once: true });
  try {
    const path = `${url.pathname || "/"}${url.search}`;
    return await WebSocketLink.upgrade(socket, received, { target, host: url.host, path, token, headers }, (callback) => (onBytes = callback));
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
