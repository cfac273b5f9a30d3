/**
 * Paths of the remote host.
 *
 * @module
 */
import { kindOf, toBytes, toText } from "./bytes.js";
import { ProtocolError, UsageError } from "./errors.js";

/**
 * A path of the remote host: absolute, relative to the working directory of the session, or below the home directory
 * (`~`, `~/…`); a `file:` URI; or the bytes of a path that is not UTF-8.
 */
export type Path = string | Uint8Array;

const PLAIN = /[A-Za-z0-9\-._~!$&'()*+,;=:@/]/;
const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Returns a path as it is sent; a relative one is resolved with {@link resolvePath} before that. */
export function toWirePath(path: Path): string {
  if (typeof path === "string") return path;
  if (!(path instanceof Uint8Array)) throw new UsageError(`cannot use ${kindOf(path)} as a path`, { hint: "pass a string" });
  const spelt = Array.from(path, escapeByte).join("");
  return spelt.startsWith("/") ? `file://${spelt}` : `file:${spelt}`;
}

/** The directories of a host from which paths begin, as the server spells them. */
export interface Directories {
  readonly cwd?: string | null | undefined;
  readonly userHomeDir?: string | null | undefined;
}

/** Returns an absolute path for one that is relative, or begins in the home directory. */
export function resolvePath(path: string, { cwd, userHomeDir }: Directories): string {
  if (path.startsWith("/") || /^file:\//i.test(path)) return path;
  if (path === "") throw new UsageError("the path is empty", { hint: "write `.` for the working directory" });
  const isHome = path === "~" || path.startsWith("~/");
  const from = isHome ? userHomeDir : cwd;
  if (from == null) {
    const what = isHome ? "home directory" : "working directory";
    throw new UsageError(`cannot use the path \`${path}\`: the server does not say what its ${what} is`, { hint: "pass an absolute path" });
  }
  const base = fromWirePath(from);
  if (path === "~") return base;
  if (/^file:/i.test(path)) return `${toUri(base).replace(/\/$/, "")}/${path.slice("file:".length)}`;
  return joinPath(base, isHome ? path.slice("~/".length) : path);
}

/** Returns a path as a URI. */
export function toUri(path: Path): string {
  return typeof path === "string" && /^file:/i.test(path) ? path : toWirePath(toBytes(path));
}

function escapeByte(byte: number): string {
  const character = String.fromCharCode(byte);
  return PLAIN.test(character) ? character : `%${byte.toString(16).toUpperCase().padStart(2, "0")}`;
}

/** Returns a path that the server sent as a plain path, or as the URI that it is if it is not UTF-8. */
export function fromWirePath(uri: unknown): string {
  if (typeof uri !== "string" || uri === "") throw new ProtocolError("a path is not a string");
  if (!/^file:/i.test(uri)) return uri;
  const path = withoutScheme(uri);
  if (!path.includes("%")) return path;
  try {
    return decoder.decode(pathBytes(uri));
  } catch {
    return uri;
  }
}

function withoutScheme(uri: string): string {
  return uri.replace(/^file:(\/\/[^/]*)?/i, "");
}

/** Returns the bytes of a plain path or a `file:` URI. */
export function pathBytes(plainOrUri: string): Uint8Array {
  if (!/^file:/i.test(plainOrUri)) return toBytes(plainOrUri);
  const path = withoutScheme(plainOrUri);
  const bytes: number[] = [];
  for (let at = 0; at < path.length; ) {
    const escaped = /^%[0-9A-Fa-f]{2}/.exec(path.slice(at, at + 3));
    if (escaped) {
      bytes.push(Number.parseInt(path.slice(at + 1, at + 3), 16));
      at += 3;
    } else {
      const character = String.fromCodePoint(path.codePointAt(at)!);
      bytes.push(...new TextEncoder().encode(character));
      at += character.length;
    }
  }
  return new Uint8Array(bytes);
}

/**
 * Returns the path of an entry of a directory; its name is bytes if it is not UTF-8.
 *
 * `/` is the separator on the remote host, wherever the client runs.
 */
export function joinPath(directory: Path, name: string | Uint8Array): string {
  const isPlain = typeof directory === "string" && typeof name === "string" && !/^file:/i.test(directory);
  const base = isPlain ? directory : toUri(directory);
  const part = isPlain ? name : Array.from(toBytes(name), escapeByte).join("");
  return base.endsWith("/") ? base + part : `${base}/${part}`;
}

/** Returns a path for messages to people. */
export function showPath(path: Path): string {
  return typeof path === "string" ? path : toText(path);
}
