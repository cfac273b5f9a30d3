/**
 * The remex client for Node: run processes, access files and make HTTP requests on a remote host.
 *
 * Start at {@link connect}.
 *
 * @module
 */
import type { HostOptions } from "./host.js";
import { Host, openHost } from "./host.js";
import type { Tls, Token } from "./node/dial.js";
import { dialTo } from "./node/dial.js";
import { findEnvironment, isEnvironmentName } from "./node/environments.js";
import { LocalFiles } from "./node/files.js";

export * from "./common.js";
export type { Tls, TlsOptions, Token } from "./node/dial.js";
export { LocalFiles } from "./node/files.js";
export type { TreeEntry, TreeOptions, TreeProgress, TreeReport } from "./node/tree.js";

/** Options of {@link connect}. */
export interface ConnectOptions extends HostOptions {
  /** A bearer token for `ws://` and `wss://`, or a function that is asked for one before each connection. */
  token?: Token | undefined;
  /** Certificates for `wss://`: a CA of your own, a pin, a client certificate; or a function that is asked for them. */
  tls?: Tls | undefined;
  /** Further headers of the request for a WebSocket, for proxies on the way. */
  headers?: Readonly<Record<string, string>> | undefined;
}

/** A client in Node: its {@link Host.files} also copies from and to the local file system. */
export class LocalHost extends Host {
  declare readonly files: LocalFiles;
}

/**
 * Connects to a server and opens a session.
 *
 * The target is the name of an environment, as the program `remex` has them (`remex env list`); `ssh://user@host`, where
 * `remex` is installed; `ws://host:port`, `wss://host:port` or `unix:///path` of a server; or the command line of a
 * program that speaks the protocol on its standard streams.
 *
 * ```ts
 * const host = await connect("build");
 * const secure = await connect("wss://build.example:7070", { token });
 * const other = await connect(["ssh", "build.example", "remex", "proxy"]);
 * ```
 */
export async function connect(target: string | readonly string[], options: ConnectOptions = {}): Promise<LocalHost> {
  const { token, tls, headers, ...rest } = options;
  const environment = typeof target === "string" && isEnvironmentName(target) ? await findEnvironment(target) : undefined;
  const access = { token: token ?? environment?.access.token, tls: tls ?? environment?.access.tls, headers };
  const dial = dialTo(environment?.target ?? (typeof target === "string" ? target : { argv: target }), access);
  const defined = Object.fromEntries(Object.entries(rest).filter(([, value]) => value !== undefined));
  return openHost(dial, { ...environment?.options, ...defined }, (engine) => new LocalHost(engine, new LocalFiles(engine)));
}
