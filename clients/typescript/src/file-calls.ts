/**
 * What can be done with the names of files: each is one call, or a few.
 *
 * @module
 */
import { toText } from "./bytes.js";
import type { CallOptions } from "./calls.js";
import { bytesOf } from "./decode.js";
import type { Engine } from "./engine.js";
import { isRefused } from "./errors.js";
import type { SearchOptions, SearchResult } from "./file-search.js";
import { searchParams, toSearchResult } from "./file-search.js";
import type { Path } from "./path.js";
import { fromWirePath, toWirePath } from "./path.js";
import type { FsDirectoryEntry, FsHashResult, FsMetadata, FsWalkOptions, FsWalkResult } from "./protocol.js";
import { Watch } from "./watch.js";

/** What a path leads to. */
export interface Metadata extends Omit<FsMetadata, "mode"> {
  /** With set-user-id, set-group-id and sticky: 0 to 0o7777. */
  readonly permissions: number | undefined;
}

/** An entry of a directory. */
export interface DirectoryEntry {
  /** Its name, for people; bytes that are not UTF-8 are replaced. */
  readonly name: string;
  /** Its exact path: plain, or a `file:` URI if it is not UTF-8. */
  readonly path: string;
  readonly isDirectory: boolean;
  readonly isFile: boolean;
  readonly isSymlink: boolean;
  /** Of the entry itself, also if it is a link. */
  readonly metadata: Metadata | undefined;
}

/** How many entries one page of a directory has. */
const PAGE_LEN = 5000;

/** The options of a walk that the caller leaves out: the limits of the protocol. */
const WALK: FsWalkOptions = {
  maxDepth: 64, maxDirectories: 10_000, maxEntries: 50_000, followDirectorySymlinks: false, pruneHiddenDirectories: false,
};

/** The calls for files that need no open file; {@link Files} has those as well. */
export class FileCalls {
  /** @internal */
  readonly engine: Engine;

  /** @internal */
  constructor(engine: Engine) {
    this.engine = engine;
  }

  // Names.

  /** Returns what a path leads to; of a link, its target. */
  async metadata(path: Path, options?: CallOptions & { followSymlinks?: boolean | undefined }): Promise<Metadata> {
    const { signal, ...rest } = options ?? {};
    return toMetadata(await this.engine.call("fs/getMetadata", { path: toWirePath(path), ...rest }, { signal }));
  }

  /** Returns whether a path leads to something. */
  async exists(path: Path, options?: CallOptions): Promise<boolean> {
    return (await this.find(path, options)) !== undefined;
  }

  /** Returns what a path leads to, or `undefined` if there is nothing. */
  async find(path: Path, options?: CallOptions): Promise<Metadata | undefined> {
    try {
      return await this.metadata(path, options);
    } catch (error) {
      if (isRefused(error, "notFound")) return undefined;
      throw error;
    }
  }

  /** Returns the path with all links resolved; it must exist. */
  async realpath(path: Path, options?: CallOptions): Promise<string> {
    return fromWirePath((await this.engine.call("fs/canonicalize", { path: toWirePath(path) }, options)).path);
  }

  /**
   * Removes a file, a link or an empty directory.
   *
   * With `recursive` also a directory with everything in it; with `missingOk` it is no error if there is nothing.
   */
  async remove(path: Path, options?: CallOptions & { recursive?: boolean | undefined; missingOk?: boolean | undefined }): Promise<void> {
    const params = { path: toWirePath(path), recursive: options?.recursive ?? false, force: options?.missingOk ?? false };
    await this.engine.call("fs/remove", params, { signal: options?.signal });
  }

  /** Copies a file, a link, or with `recursive` a directory, on the remote host. */
  async copy(from: Path, to: Path, options?: CallOptions & { recursive?: boolean | undefined }): Promise<void> {
    const params = { sourcePath: toWirePath(from), destinationPath: toWirePath(to), recursive: options?.recursive ?? false };
    await this.engine.call("fs/copy", params, options);
  }

  /** Renames a file, link or directory in one step; with `overwrite: false` the destination must not exist. */
  async rename(from: Path, to: Path, options?: CallOptions & { overwrite?: boolean | undefined }): Promise<void> {
    const params = { sourcePath: toWirePath(from), destinationPath: toWirePath(to), overwrite: options?.overwrite };
    await this.engine.call("fs/rename", params, options);
  }

  /** Makes a symbolic link at `path`. */
  async symlink(path: Path, target: Path, options?: CallOptions): Promise<void> {
    const [text, bytes] = typeof target === "string" ? [target, undefined] : [undefined, target];
    await this.engine.callWithBytes("fs/symlink", { path: toWirePath(path), target: text }, { targetBase64: bytes }, { signal: options?.signal });
  }

  /** Returns the target of a symbolic link, as bytes if it is not UTF-8. */
  async readLink(path: Path, options?: CallOptions): Promise<Path> {
    const { target, targetBase64 } = await this.engine.call("fs/readLink", { path: toWirePath(path) }, options);
    const bytes = bytesOf(targetBase64, "targetBase64");
    return toText(bytes) === target && !target.includes("\ufffd") ? target : bytes;
  }

  /** Sets permissions, 0 to 0o7777. */
  async chmod(path: Path, permissions: number, options?: CallOptions & { followSymlinks?: boolean | undefined }): Promise<void> {
    const { signal, ...rest } = options ?? {};
    await this.engine.call("fs/setPermissions", { path: toWirePath(path), mode: permissions, ...rest }, { signal });
  }

  /** Sets times, in milliseconds since the epoch; one that is absent stays. */
  async setTimes(path: Path, times: { modifiedAtMs?: number | undefined; accessedAtMs?: number | undefined }, options?: CallOptions): Promise<void> {
    await this.engine.call("fs/setTimes", { path: toWirePath(path), ...times }, options);
  }

  /** Returns the SHA-256 of a file or of a part of it, computed on the remote host. */
  hash(path: Path, options?: CallOptions & { offset?: number | undefined; len?: number | undefined }): Promise<FsHashResult> {
    const { signal, ...range } = options ?? {};
    return this.engine.call("fs/hash", { path: toWirePath(path), ...range }, { signal });
  }

  // Directories.

  /** Makes a directory; unless `recursive` is false, with its parents, and it may exist. */
  async mkdir(path: Path, options?: CallOptions & { recursive?: boolean | undefined; followSymlinks?: boolean | undefined }): Promise<void> {
    const { signal, ...rest } = options ?? {};
    await this.engine.call("fs/createDirectory", { path: toWirePath(path), ...rest }, { signal });
  }

  /**
   * Lists a directory in the byte order of names, in constant memory.
   *
   * ```ts
   * for await (const entry of host.files.list("/etc")) console.log(entry.name, entry.isDirectory);
   * ```
   */
  async *list(path: Path, options?: CallOptions & { details?: boolean | undefined }): AsyncGenerator<DirectoryEntry, void, void> {
    let cursor: string | undefined;
    do {
      const params = { path: toWirePath(path), limit: PAGE_LEN, cursor, details: options?.details };
      const page = await this.engine.call("fs/readDirectory", params, options);
      for (const entry of page.entries) yield toEntry(entry);
      cursor = page.nextCursor ?? undefined;
    } while (cursor !== undefined);
  }

  /** Lists a directory in the byte order of names; {@link Files.list} is for directories of any size. */
  async readdir(path: Path, options?: CallOptions & { details?: boolean | undefined }): Promise<DirectoryEntry[]> {
    const entries: DirectoryEntry[] = [];
    for await (const entry of this.list(path, options)) entries.push(entry);
    return entries;
  }

  /** Lists a tree, breadth first, in one answer; `truncated` says that a limit was reached. */
  async walk(path: Path, options?: CallOptions & Partial<FsWalkOptions>): Promise<FsWalkResult> {
    const { signal, ...rest } = options ?? {};
    const result = await this.engine.call("fs/walk", { path: toWirePath(path), options: { ...WALK, ...rest } }, { signal });
    return { ...result, entries: result.entries.map((entry) => ({ ...entry, path: fromWirePath(entry.path) })) };
  }

  /**
   * Searches a file, or all files below a directory, for lines or by name; the remote host needs no program for that.
   *
   * As ripgrep does, it follows no links, and leaves out binary files and what `.gitignore` files exclude; hidden files are
   * searched. A limit ends it with what it has found, and `truncated` says which: continue `items` and `bytes` with `skip`,
   * increased by the number of matches that were returned.
   *
   * ```ts
   * const { files, truncated } = await host.files.search("src", { pattern: "fn \\w+", globs: ["*.rs"] });
   * for (const { path, lines } of files) for (const { number, text } of lines) console.log(`${path}:${number}:${text}`);
   * if (truncated) console.log("there may be more");
   * ```
   */
  async search(path: Path, options: SearchOptions = {}): Promise<SearchResult> {
    const params = { path: toWirePath(path), options: searchParams(options) };
    return toSearchResult(await this.engine.call("fs/search", params, { signal: options.signal }));
  }

  /**
   * Watches a file or directory; returns when every later change will be seen.
   *
   * ```ts
   * for await (const { changes, overflow } of await host.files.watch("/src", { signal })) {
   *   if (overflow) console.log("look at everything again");
   *   for (const { path, kind } of changes) console.log(kind, path);
   * }
   * ```
   */
  watch(path: Path, options?: CallOptions & { recursive?: boolean | undefined }): Promise<Watch> {
    return Watch.open(this.engine, path, options ?? {});
  }
}

function toMetadata({ mode, ...rest }: FsMetadata): Metadata {
  return { ...rest, permissions: mode ?? undefined };
}

function toEntry(entry: FsDirectoryEntry): DirectoryEntry {
  return {
    name: entry.fileName,
    path: fromWirePath(entry.path),
    isDirectory: entry.isDirectory,
    isFile: entry.isFile,
    isSymlink: entry.isSymlink ?? false,
    metadata: entry.metadata ? toMetadata(entry.metadata) : undefined,
  };
}
