/**
 * Copies between the local file system and the remote host.
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
import type { TransferOptions } from "../files.js";
import { Files } from "../files.js";
import type { Path } from "../path.js";
import { showPath } from "../path.js";
import type { Destination, WriterOptions } from "../remote-file.js";
import { findDestination, isSameFile } from "../remote-file.js";
import type { TreeOptions, TreeReport } from "./tree.js";
import { downloadTree, uploadTree } from "./tree.js";

/** A local path; bytes if it is not UTF-8. */
export type LocalPath = string | Buffer;

/** How much is read from a local file at once. */
const READ_LEN = 512 << 10;

/** The files of the remote host, with copies from and to the local file system. */
export class LocalFiles extends Files {
  /**
   * Copies a local file to the remote host, with its permissions and time; returns its length.
   *
   * The file is replaced in one step when everything has arrived.
   */
  async uploadFile(from: LocalPath, to: Path, options?: WriterOptions & TransferOptions): Promise<number> {
    await using source = await LocalSource.open(from);
    const { mode, modifiedAtMs } = attributesOf(source.stats);
    const destination = await findDestination(this, to, { permissions: mode, modifiedAtMs, ...options });
    return await this.sendFile(source, destination, options);
  }

  /** @internal */
  async sendFile(source: LocalSource, destination: Destination, options?: TransferOptions): Promise<number> {
    const total = source.stats.size;
    const onProgress = options?.onProgress && (({ bytes }: { bytes: number }) => options.onProgress?.({ bytes, totalBytes: total }));
    return this.send(source.chunks(), destination, { ...options, onProgress }, () => source.check());
  }

  /**
   * Copies a remote file to the local file system, with its permissions and time; returns its length.
   *
   * The file is replaced in one step when everything has arrived.
   */
  async downloadFile(from: Path, to: LocalPath, options?: TransferOptions): Promise<number> {
    await using file = await this.open(from, options);
    const { metadata } = file;
    const temporary = await LocalTemporary.create(to);
    try {
      let bytes = 0;
      for await (const chunk of file) {
        await temporary.write(chunk);
        bytes += chunk.length;
        options?.onProgress?.({ bytes, totalBytes: metadata.size });
      }
      // Files of the kernel, as in `/proc`, have no size, and their time is meaningless.
      const isKernelFile = metadata.size === 0 && bytes > 0;
      if (!isKernelFile && !isSameFile(metadata, await this.metadata(from, options))) throw new ChangedError(showPath(from));
      await temporary.putInPlace(to, { mode: metadata.permissions, modifiedAtMs: metadata.modifiedAtMs });
      return bytes;
    } finally {
      await temporary.discard();
    }
  }

  /**
   * Copies the contents of a local directory into a remote one, which is created if it is missing.
   *
   * Permissions and times are preserved, links are copied as links, files with the same size and time are skipped, each
   * file is replaced in one step. Files that the source does not have stay.
   *
   * ```ts
   * const report = await host.files.uploadTree("site", "/srv/site", { filter: (entry) => entry.name !== ".git" });
   * for (const { path, error } of report.failures) console.error(path, error);
   * ```
   */
  uploadTree(from: string, to: Path, options?: TreeOptions): Promise<TreeReport> {
    return uploadTree(this, from, to, options ?? {});
  }

  /** Copies the contents of a remote directory into a local one; otherwise like {@link LocalFiles.uploadTree}. */
  downloadTree(from: Path, to: string, options?: TreeOptions): Promise<TreeReport> {
    return downloadTree(this, from, to, options ?? {});
  }
}

/** What a copy preserves of a file. */
export interface Attributes {
  readonly mode: number | undefined;
  readonly modifiedAtMs: number | undefined;
}

/** Returns what a copy preserves; set-user-id, set-group-id and sticky are not, because the owner is another. */
export function attributesOf(stats: Stats): { mode: number; modifiedAtMs: number } {
  return { mode: stats.mode & 0o777, modifiedAtMs: Math.floor(stats.mtimeMs) };
}

/** Runs local work; a failure says what was done. */
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

  /** Fails if the file is another one by now. */
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
