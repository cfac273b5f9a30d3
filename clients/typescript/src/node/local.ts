/**
 * Local files: read, replaced in one step, and their attributes.
 *
 * @module
 */
import { createHash } from "node:crypto";
import type { Stats } from "node:fs";
import { constants } from "node:fs";
import type { FileHandle } from "node:fs/promises";
import { chmod, lstat, open, rename, rm, stat, utimes } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { randomWord } from "../bytes.js";
import { ChangedError, LocalError } from "../errors.js";
import { showPath } from "../path.js";

/** A local path; bytes if it is not UTF-8. */
export type LocalPath = string | Buffer;

/** How much is read from a local file at once. */
const READ_LEN = 512 << 10;

/** What a copy preserves of a file. */
export interface Attributes {
  readonly mode: number | undefined;
  readonly modifiedAtMs: number | undefined;
}

/** Returns what a copy preserves; set-user-id, set-group-id and sticky are not, because the owner is another. */
export function attributesOf(stats: Stats): { mode: number; modifiedAtMs: number } {
  return { mode: stats.mode & 0o777, modifiedAtMs: Math.floor(stats.mtimeMs) };
}

/** Runs a local file operation; its error names the action. */
export async function local<T>(action: string, work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (error) {
    throw new LocalError(action, error);
  }
}

/** Returns the local path of an entry of a directory. */
export function joinLocal(directory: LocalPath, name: LocalPath): LocalPath {
  if (typeof directory === "string" && typeof name === "string") return join(directory, name);
  return Buffer.concat([Buffer.from(directory), Buffer.from("/"), Buffer.from(name)]);
}

/** A local file that is read, and must not change meanwhile. */
export class LocalSource implements AsyncDisposable {
  readonly stats: Stats;
  readonly #path: LocalPath;
  readonly #file: FileHandle;

  private constructor(path: LocalPath, file: FileHandle, stats: Stats) {
    this.#path = path;
    this.#file = file;
    this.stats = stats;
  }

  static async open(path: LocalPath, flags = 0): Promise<LocalSource> {
    // A FIFO would block without this.
    const file = await local(`read \`${path}\``, open(path, constants.O_RDONLY | (constants.O_NONBLOCK ?? 0) | flags));
    const stats = await file.stat();
    if (stats.isFile()) return new LocalSource(path, file, stats);
    await file.close();
    throw new LocalError(`read \`${path}\``, new Error("it is not a regular file"));
  }

  async *chunks(): AsyncGenerator<Uint8Array, void, void> {
    for (;;) {
      const { bytesRead, buffer } = await local(`read \`${this.#path}\``, this.#file.read({ buffer: Buffer.allocUnsafeSlow(READ_LEN) }));
      if (bytesRead === 0) return;
      yield buffer.subarray(0, bytesRead);
    }
  }

  async readAll(): Promise<Uint8Array> {
    return local(`read \`${this.#path}\``, this.#file.readFile());
  }

  async hash(): Promise<string> {
    const hash = createHash("sha256");
    for await (const chunk of this.chunks()) hash.update(chunk);
    return `sha256:${hash.digest("hex")}`;
  }

  /** Fails if the file has changed or was replaced. */
  async check(): Promise<void> {
    const now = await local(`read \`${this.#path}\``, stat(this.#path));
    if (now.size !== this.stats.size || now.mtimeMs !== this.stats.mtimeMs || now.ino !== this.stats.ino) throw new ChangedError(showPath(this.#path));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#file.close();
  }
}

/** A temporary local file beside a destination, removed unless it is put in place. */
export class LocalTemporary {
  readonly path: LocalPath;
  #file: FileHandle | undefined;
  #isMoved = false;

  private constructor(path: LocalPath, file: FileHandle | undefined) {
    this.path = path;
    this.#file = file;
  }

  static pathBeside(path: LocalPath): LocalPath {
    const end = `.remex-${randomWord()}`;
    if (typeof path === "string") return join(dirname(path), `.${basename(path).slice(0, 48)}${end}`);
    const at = path.lastIndexOf("/") + 1;
    return Buffer.concat([path.subarray(0, at), Buffer.from("."), path.subarray(at, at + 48), Buffer.from(end)]);
  }

  static async create(path: LocalPath): Promise<LocalTemporary> {
    const own = LocalTemporary.pathBeside(path);
    // Never follows a link.
    const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL;
    return new LocalTemporary(own, await local(`write \`${path}\``, open(own, flags, 0o600)));
  }

  async write(bytes: Uint8Array): Promise<void> {
    await local(`write \`${this.path}\``, this.#file!.writeFile(bytes));
  }

  async putInPlace(path: LocalPath, { mode, modifiedAtMs }: Attributes): Promise<void> {
    const file = this.#file!;
    const finish = async (): Promise<void> => {
      await file.chmod((mode ?? 0o644) & 0o777);
      if (modifiedAtMs !== undefined) await file.utimes(new Date(), toSeconds(modifiedAtMs));
      await file.close();
      this.#file = undefined;
      await rename(this.path, path);
      this.#isMoved = true;
    };
    await local(`write \`${path}\``, finish());
  }

  async discard(): Promise<void> {
    await this.#file?.close();
    if (!this.#isMoved) await rm(this.path, { force: true });
  }
}

/** Returns a time in seconds that the system does not round down to the millisecond before. */
function toSeconds(ms: number): number {
  return ms / 1000 + 5e-7;
}

/** Sets permissions and time of a local directory or file, which is not a link. */
export async function setLocalAttributes(path: LocalPath, { mode, modifiedAtMs }: Attributes): Promise<void> {
  if (modifiedAtMs !== undefined) await local(`write \`${path}\``, utimes(path, new Date(), toSeconds(modifiedAtMs)));
  if (mode !== undefined) await local(`write \`${path}\``, chmod(path, mode));
}

/** Returns what is at a local path, also a link itself; `undefined` if there is nothing. */
export async function findLocal(path: LocalPath): Promise<Stats | undefined> {
  try {
    return await lstat(path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw new LocalError(`read \`${path}\``, error);
  }
}
