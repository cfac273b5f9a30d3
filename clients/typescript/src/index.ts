/**
 * The remex client for Node: run processes, access files and make HTTP requests on a remote host.
 *
 * Start at {@link connect}.
 *
 * @module
 */
import type { HostOptions } from "./host.js";
import { Host, openHost } from "./host.js";
import type { TlsOptions, Token } from "./node/dial.js";
import { dialTo } from "./node/dial.js";
import { LocalFiles } from "./node/files.js";

export * from "./common.js";
export type { TlsOptions, Token } from "./node/dial.js";
export { LocalFiles } from "./node/files.js";
export type { TreeEntry, TreeOptions, TreeProgress, TreeReport } from "./node/tree.js";

/** Options of {@link connect}. */
export interface ConnectOptions extends HostOptions {
  /** A bearer token for `ws://` and `wss://`, or a function that is asked for one before each connection. */
  token?: Token | undefined;
  /** Certificates for `wss://`: a CA of your own, a client certificate. */
  tls?: TlsOptions | undefined;
}

/** A client in Node: its {@link Host.files} also copies from and to the local file system. */
export class LocalHost extends Host {
  declare readonly files: LocalFiles;
}

/**
 * Connects to a server and opens a session.
 *
 * The target is `unix:///path`, `ws://host:port`, `wss://host:port`, or the command line of a program that speaks the
 * protocol on its standard streams.
 *
 * ```ts
 * await using host = await connect("wss://build.example:7070", { token });
 * await using other = await connect(["ssh", "build.example", "remex", "proxy"]);
 * ```
 */
export async function connect(target: string | readonly string[], options: ConnectOptions = {}): Promise<LocalHost> {
  const { token, tls, ...rest } = options;
  return openHost(dialTo(target, token, tls), rest, (engine) => new LocalHost(engine, new LocalFiles(engine)));
}
