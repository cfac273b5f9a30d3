/**
 * Environments: hosts with names, from the same file as those of the program `remex`, or from a variable.
 *
 * Start at {@link findEnvironment}.
 *
 * @module
 */
import type { Stats } from "node:fs";
import { lstat, open, readFile, stat } from "node:fs/promises";
import { dirname, isAbsolute, join, resolve } from "node:path";
import { UsageError } from "../errors.js";
import type { HostOptions } from "../host.js";
import { MAX_TIMER_MS } from "../numbers.js";
import type { Access, TlsOptions } from "./dial.js";
import { digestOf } from "./dial.js";
import type { ProgramTarget } from "./program.js";
import type { TomlTable, TomlValue } from "./toml.js";
import { TomlError, isTable, parseToml } from "./toml.js";

/** Where an environment is, and what the file says about connecting to it. */
export interface Environment {
  readonly target: string | ProgramTarget;
  readonly access: Access;
  readonly options: Pick<HostOptions, "connectTimeoutMs" | "handshakeTimeoutMs" | "reconnectTimeoutMs" | "detachTtlMs">;
}

/** The variables that may contain an address, in the order of precedence. */
const VARIABLES = ["REMEX_URL", "CODEX_EXEC_SERVER_URL"];

/** The longest file; a longer one indicates a wrong path. */
const MAX_FILE_LEN = 1 << 20;

/** Permissions of others to write and to read. */
const OTHERS_WRITE = 0o022;
const OTHERS_READ = 0o044;

/** The server of this user on this machine, which is started if it does not run. */
const LOCAL: Environment = { target: { argv: ["remex", "proxy"] }, access: {}, options: {} };

/** Returns whether a target may be the name of an environment: everything else that is a target has a colon or a slash. */
export function isEnvironmentName(target: string): boolean {
  return /^[A-Za-z0-9_-]{1,64}$/.test(target);
}

/** Returns the environment with this name. */
export async function findEnvironment(name: string): Promise<Environment> {
  const path = environmentsFile();
  if (path === undefined || !(await isThere(path))) return fromVariables(name, path);
  const text = await readTrusted(path);
  try {
    return new EnvironmentsFile(path, parseToml(text)).find(name);
  } catch (error) {
    if (!(error instanceof TomlError)) throw error;
    throw new UsageError(`${path}:${error.line}: ${error.message}`, { hint: "correct the file, or edit it with `remex env`" });
  }
}

/** Returns the path of the file, whether it exists or not. */
function environmentsFile(): string | undefined {
  const { XDG_CONFIG_HOME: config = "", HOME: home = "" } = process.env;
  if (isAbsolute(config)) return join(config, "remex/environments.toml");
  return home === "" ? undefined : join(home, ".config/remex/environments.toml");
}

function fromVariables(name: string, path: string | undefined): Environment {
  const variable = VARIABLES.find((candidate) => (process.env[candidate] ?? "") !== "");
  const address = variable === undefined ? "" : process.env[variable]!.trim();
  const isNone = address.toLowerCase() === "none";
  if (name === "local" && !isNone) return LOCAL;
  if (name === "remote" && address !== "" && !isNone) return { target: address, access: {}, options: {} };
  throw unknown(name, isNone ? [] : address === "" ? ["local"] : ["local", "remote"], path);
}

function unknown(name: string, known: readonly string[], path: string | undefined): UsageError {
  const list = known.length === 0 ? "none" : known.join(", ");
  const hint = `known: ${list}; add it with \`remex env add ${name} ssh://user@host\`${path === undefined ? "" : `, which writes ${path}`}`;
  return new UsageError(`unknown environment \`${name}\``, { hint });
}

/** Also true of a dangling link: an error is better than running commands on another host. */
async function isThere(path: string): Promise<boolean> {
  try {
    await lstat(path);
    return true;
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    return code !== "ENOENT" && code !== "ENOTDIR";
  }
}

/** Reads a file that names programs to run, unless others can change it. */
async function readTrusted(path: string): Promise<string> {
  return readChecked(path, ({ uid, mode }) => {
    if (uid !== 0 && uid !== process.geteuid?.()) return { why: "it belongs to another user, who could make it run programs", hint: `take ownership with \`chown\` of \`${path}\`` };
    if (mode & OTHERS_WRITE) return { why: "other users can write to it, and could make it run programs", hint: `run \`chmod go-w ${path}\`` };
    return undefined;
  });
}

/** Reads a token file: the first word of its first line that is no comment. */
async function readToken(path: string): Promise<string> {
  const text = await readChecked(path, ({ uid, mode }) => {
    const hint = `run \`chmod 600 ${path}\``;
    if (mode & OTHERS_WRITE) return { why: "other users can write to it", hint };
    // Secrets are mounted into containers as files of others that everybody may read.
    if (mode & OTHERS_READ && uid === process.geteuid?.()) return { why: "other users can read it", hint: `${hint}, and change the token` };
    return undefined;
  });
  const line = text.split("\n").map((each) => each.trim()).find((each) => each !== "" && !each.startsWith("#"));
  const token = line?.split(/\s+/)[0];
  if (token === undefined) throw new UsageError(`the token file \`${path}\` is empty`, { hint: "write the token into it" });
  return token;
}

async function readChecked(path: string, check: (stats: Stats) => { why: string; hint: string } | undefined): Promise<string> {
  const refuse = (why: string, hint?: string, cause?: unknown): UsageError => new UsageError(`cannot read \`${path}\`: ${why}`, { hint, cause });
  try {
    // Opening a FIFO would block.
    if (!(await stat(path)).isFile()) throw refuse("it is not a regular file", "name a regular file");
    await using file = await open(path);
    const stats = await file.stat();
    if (stats.size > MAX_FILE_LEN) throw refuse("it is longer than 1 MiB", "check the path");
    // Windows has no such permissions.
    const refusal = process.platform === "win32" ? undefined : check(stats);
    if (refusal) throw refuse(refusal.why, refusal.hint);
    return await file.readFile("utf8");
  } catch (error) {
    throw error instanceof UsageError ? error : refuse((error as Error).message, undefined, error);
  }
}

/** A file with environments. */
class EnvironmentsFile {
  readonly #path: string;
  readonly #tables: readonly TomlTable[];
  readonly #hasLocal: boolean;

  constructor(path: string, file: TomlTable) {
    this.#path = path;
    const { environments = [], include_local: hasLocal = true } = file;
    if (!Array.isArray(environments) || !environments.every(isTable)) throw this.#refuse(undefined, "`environments` is not a list of tables");
    if (typeof hasLocal !== "boolean") throw this.#refuse(undefined, "`include_local` is neither true nor false");
    this.#tables = environments;
    this.#hasLocal = hasLocal;
  }

  find(name: string): Environment {
    if (name === "local" && this.#hasLocal) return LOCAL;
    const found = this.#tables.filter((table) => table["id"] === name);
    if (found.length > 1) throw this.#refuse(name, "it is defined twice");
    if (found[0] && name !== "local" && name !== "none") return this.#environment(name, found[0]);
    const ids = this.#tables.flatMap(({ id }) => (typeof id === "string" ? [id] : []));
    throw unknown(name, this.#hasLocal ? ["local", ...ids] : ids, this.#path);
  }

  #environment(id: string, table: TomlTable): Environment {
    const text = (key: string): string | undefined => this.#text(id, table, key);
    const [url, program] = [text("url"), text("program")];
    if (url !== undefined && program !== undefined) throw this.#refuse(id, "it has a `url` and a `program`");
    if (url === undefined && program === undefined) throw this.#refuse(id, "it has neither `url` nor `program`");
    const reconnect = table["reconnect_timeout_sec"] === "forever" ? Infinity : this.#time(id, table, "reconnect_timeout_sec");
    const options = {
      connectTimeoutMs: this.#time(id, table, "connect_timeout_sec"),
      handshakeTimeoutMs: this.#time(id, table, "initialize_timeout_sec"),
      reconnectTimeoutMs: reconnect,
      // The session must live for as long as the client may reconnect.
      detachTtlMs: reconnect === Infinity ? Number.MAX_SAFE_INTEGER : reconnect,
    };
    if (program !== undefined) return { target: this.#program(id, table, program), access: {}, options };
    const socket = /^unix:(?:\/\/)?(?!\/)(.+)$/.exec(url!)?.[1];
    const target = socket === undefined ? url! : `unix://${this.#beside(socket)}`;
    return { target, access: { token: this.#token(id, table), tls: this.#tls(id, table) }, options };
  }

  #program(id: string, table: TomlTable, program: string): ProgramTarget {
    const { args = [], env = Object.create(null) as TomlTable } = table;
    if (!Array.isArray(args) || !args.every((arg) => typeof arg === "string")) throw this.#refuse(id, "`args` is not a list of texts");
    if (!isTable(env) || !Object.values(env).every((value) => typeof value === "string")) throw this.#refuse(id, "`env` is not a table of texts");
    const argv = [program.includes("/") ? this.#file(id, table, "program")! : program, ...(args as string[])];
    return { argv, env: { ...env } as Record<string, string>, cwd: this.#file(id, table, "cwd") };
  }

  #token(id: string, table: TomlTable): Access["token"] {
    const inline = this.#text(id, table, "auth_bearer_token");
    const path = this.#file(id, table, "auth_bearer_token_file");
    if (inline !== undefined && path !== undefined) throw this.#refuse(id, "it has a token and a token file");
    return path === undefined ? inline : () => readToken(path);
  }

  /** The files are read for every connection, so that renewed certificates are used. */
  #tls(id: string, table: TomlTable): Access["tls"] {
    const pin = this.#text(id, table, "pin");
    const [ca, cert, key] = ["ca", "client_cert", "client_key"].map((name) => this.#file(id, table, name));
    if ((cert === undefined) !== (key === undefined)) throw this.#refuse(id, "`client_cert` and `client_key` need each other");
    if (pin !== undefined) digestOf(pin);
    return async () => {
      const tls: TlsOptions = { pin };
      if (ca !== undefined) tls.ca = await readFile(ca);
      if (cert !== undefined) [tls.cert, tls.key] = [await readFile(cert), await readFile(key!)];
      return tls;
    };
  }

  #time(id: string, table: TomlTable, key: string): number | undefined {
    const seconds: TomlValue | undefined = table[key];
    if (seconds === undefined) return undefined;
    if (typeof seconds !== "number" || !(seconds > 0)) throw this.#refuse(id, `\`${key}\` is not a number of seconds`);
    return Math.min(Math.ceil(seconds * 1000), MAX_TIMER_MS);
  }

  #text(id: string, table: TomlTable, key: string): string | undefined {
    const value = table[key];
    if (value === undefined) return undefined;
    if (typeof value !== "string" || value === "" || value.includes("\0")) throw this.#refuse(id, `\`${key}\` is not a text`);
    return value;
  }

  #file(id: string, table: TomlTable, key: string): string | undefined {
    const path = this.#text(id, table, key);
    if (path === undefined) return undefined;
    if (path === "~" || path.startsWith("~/")) throw this.#refuse(id, `\`${key}\` begins with \`~\`, which is not expanded`);
    return this.#beside(path);
  }

  /** Relative paths begin at the directory of the file. */
  #beside(path: string): string {
    return resolve(dirname(this.#path), path);
  }

  #refuse(id: string | undefined, why: string): UsageError {
    const where = id === undefined ? this.#path : `${this.#path}: environment \`${id}\``;
    return new UsageError(`${where}: ${why}`, { hint: "correct the file, or edit it with `remex env`" });
  }
}
