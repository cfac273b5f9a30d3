/**
 * Copies of directory trees between the local file system and the remote host: in bounded memory, many files at once.
 *
 * @module
 */
import { isUtf8 } from "node:buffer";
import { constants } from "node:fs";
import { mkdir, opendir, readlink, rename, rm, stat, symlink } from "node:fs/promises";
import { dirname } from "node:path";
import type { CallOptions } from "../calls.js";
import { ChangedError, LocalError, ProtocolError, RefusedError, RemexError, SessionLostError, UsageError } from "../errors.js";
import type { Metadata } from "../file-calls.js";
import type { Files } from "../files.js";
import type { Path } from "../path.js";
import { fromWirePath, joinPath, pathBytes, toWirePath } from "../path.js";
import { toBytes } from "../bytes.js";
import { PRIVATE_MODE, RetryBudget, Temporary } from "../remote-file.js";
import type { Attributes, LocalPath } from "./local.js";
import { LocalSource, LocalTemporary, attributesOf, findLocal, joinLocal, local, setLocalAttributes } from "./local.js";
import { downloadFile, sendFile } from "./transfer.js";

/** An entry of the source. */
export interface TreeEntry {
  /** Its path below the root, with slashes. */
  readonly path: string;
  readonly name: string;
  readonly kind: "file" | "directory" | "symlink" | "other";
  readonly size: number;
}

/** How far a copy is. */
export interface TreeProgress {
  readonly files: number;
  readonly bytes: number;
  /** The file that was copied last. */
  readonly path: string;
}

/** Options of a copy of a tree. */
export interface TreeOptions extends CallOptions {
  /** Returns whether to copy an entry; an excluded directory is not read. */
  filter?: ((entry: TreeEntry) => boolean) | undefined;
  /** Which files count as unchanged and are not copied: those with the same size and time, by default. */
  skipUnchanged?: "sizeAndTime" | "content" | "never" | undefined;
  /** Fails with the error of the first entry that cannot be copied, instead of copying the others. */
  stopAtFirstFailure?: boolean | undefined;
  onProgress?: ((progress: TreeProgress) => void) | undefined;
}

/** What a copy of a tree has done. */
export interface TreeReport {
  files: number;
  directories: number;
  links: number;
  /** The bytes of the copied files. */
  bytes: number;
  /** Files and links that were there already. */
  unchanged: number;
  excluded: number;
  /** FIFOs, sockets and devices, which are not copied. */
  special: number;
  /** Entries that could not be copied; the others were. */
  failures: { path: string; error: RemexError }[];
}

/** How many files are copied, and how many directories are read, at once. */
const MAX_COPIES = 32;
const MAX_LISTINGS = 4;

/** Files up to this size are sent in one message. */
const SMALL_LEN = 256 << 10;

/** How often a small file that changes meanwhile is read again. */
const MAX_READS = 4;

/** The permissions that the owner needs to write to a new directory. */
const OWNER = 0o700;

interface SourceEntry extends TreeEntry {
  /** Its exact name: bytes if it is not UTF-8. */
  readonly exactName: LocalPath;
  readonly attributes: Attributes;
}

type DirectoryState = "new" | "existing";

interface Item<From, To> {
  readonly entry: SourceEntry;
  readonly from: From;
  readonly to: To;
  readonly directory: DirectoryState;
}

/** One direction of a copy, with the types of its paths. */
interface Direction<From, To> {
  list(directory: From, below: string): AsyncIterable<SourceEntry | { path: string; error: RemexError }>;
  joinFrom(directory: From, name: LocalPath): From;
  joinTo(directory: To, name: LocalPath): To;
  makeDirectory(to: To, source: Attributes, parent: DirectoryState): Promise<DirectoryState>;
  finishDirectory(to: To, source: Attributes): Promise<void>;
  /** Returns the bytes that were copied, or `undefined` if the file was unchanged. */
  copyFile(item: Item<From, To>): Promise<number | undefined>;
  /** Returns whether the link was made; it may be there already. */
  copyLink(item: Item<From, To>): Promise<boolean>;
}

/** Lets a number of tasks run at once; the others wait in order. */
class Semaphore {
  #free: number;
  readonly #waiting: (() => void)[] = [];

  constructor(slots: number) {
    this.#free = slots;
  }

  async acquire(): Promise<void> {
    if (this.#free > 0) this.#free -= 1;
    else await new Promise<void>((resolve) => this.#waiting.push(resolve));
  }

  release(): void {
    const next = this.#waiting.shift();
    if (next) next();
    else this.#free += 1;
  }
}

/** Walks the source and copies entries, a bounded number at a time. */
class TreeCopy<From, To> {
  readonly report: TreeReport = { files: 0, directories: 0, links: 0, bytes: 0, unchanged: 0, excluded: 0, special: 0, failures: [] };
  readonly #direction: Direction<From, To>;
  readonly #options: TreeOptions;
  readonly #copies = new Semaphore(MAX_COPIES);
  readonly #listings = new Semaphore(MAX_LISTINGS);

  constructor(direction: Direction<From, To>, options: TreeOptions) {
    this.#direction = direction;
    this.#options = options;
  }

  /** Copies a directory; its own attributes are set last, because writing into it changes its time. */
  async directory(from: From, to: To, attributes: Attributes, state: DirectoryState, below: string): Promise<void> {
    const tasks: Promise<void>[] = [];
    const add = (task: Promise<void>): void => {
      // It may fail before it is awaited.
      task.catch(() => undefined);
      tasks.push(task);
    };
    const directories: SourceEntry[] = [];
    await this.#listings.acquire();
    try {
      for await (const listed of this.#direction.list(from, below)) {
        this.#options.signal?.throwIfAborted();
        if ("error" in listed) this.#fail(listed.path, listed.error);
        else if (this.#options.filter && !this.#options.filter(listed)) this.report.excluded += 1;
        else if (listed.kind === "other") this.report.special += 1;
        else if (listed.kind === "directory") directories.push(listed);
        else {
          const item: Item<From, To> = { entry: listed, ...this.#paths(from, to, listed.exactName), directory: state };
          await this.#copies.acquire();
          add(this.#guarded(listed.path, () => this.#entry(item)).finally(() => this.#copies.release()));
        }
      }
    } finally {
      this.#listings.release();
    }
    for (const entry of directories) add(this.#guarded(entry.path, () => this.#subdirectory(entry, this.#paths(from, to, entry.exactName), state)));
    await Promise.all(tasks);
    await this.#direction.finishDirectory(to, attributes);
  }

  async #subdirectory(entry: SourceEntry, { from, to }: { from: From; to: To }, parent: DirectoryState): Promise<void> {
    const state = await this.#direction.makeDirectory(to, entry.attributes, parent);
    this.report.directories += 1;
    await this.directory(from, to, entry.attributes, state, entry.path);
  }

  #paths(from: From, to: To, name: LocalPath): { from: From; to: To } {
    return { from: this.#direction.joinFrom(from, name), to: this.#direction.joinTo(to, name) };
  }

  async #entry(item: Item<From, To>): Promise<void> {
    if (item.entry.kind === "symlink") {
      if (await this.#direction.copyLink(item)) this.report.links += 1;
      else this.report.unchanged += 1;
      return;
    }
    const bytes = await this.#direction.copyFile(item);
    if (bytes === undefined) {
      this.report.unchanged += 1;
    } else {
      this.report.files += 1;
      this.report.bytes += bytes;
    }
    this.#options.onProgress?.({ files: this.report.files, bytes: this.report.bytes, path: item.entry.path });
  }

  /** Copies an entry; a failure is one of the report, unless nothing more can succeed. */
  async #guarded(path: string, step: () => Promise<void>): Promise<void> {
    try {
      await step();
    } catch (error) {
      if (!(error instanceof RemexError)) throw error;
      this.#fail(path, error);
    }
  }

  #fail(path: string, error: RemexError): void {
    if (this.#options.stopAtFirstFailure || error instanceof SessionLostError || error instanceof ProtocolError) throw error;
    this.report.failures.push({ path, error });
  }
}

function isUnchanged(source: SourceEntry, there: { size: number } & Attributes): boolean {
  return source.size === there.size && source.attributes.modifiedAtMs === there.modifiedAtMs;
}

function below(directory: string, name: string): string {
  return directory === "" ? name : `${directory}/${name}`;
}

/** Copies a local tree to the remote host. */
export async function uploadTree(files: Files, from: string, to: Path, options: TreeOptions): Promise<TreeReport> {
  const root = await local(`read \`${from}\``, stat(from));
  if (!root.isDirectory()) throw new UsageError(`\`${from}\` is not a directory`, { hint: "upload it as a file" });
  const there = await files.find(to, options);
  if (there && !there.isDirectory) throw new UsageError(`cannot upload into \`${toWirePath(to)}\`: it is not a directory`, { hint: "remove it, or choose another destination" });
  if (!there) await files.mkdir(to, { signal: options.signal });
  const upload = new Upload(files, options);
  const attributes = attributesOf(root);
  // The path of the caller may have links; below it none is followed.
  const destination = await files.realpath(to, options);
  if (!there) await files.chmod(destination, attributes.mode | OWNER, { signal: options.signal });
  const copy = new TreeCopy(upload, options);
  await copy.directory(from, destination, attributes, there ? "existing" : "new", "");
  return copy.report;
}

class Upload implements Direction<LocalPath, string> {
  readonly #files: Files;
  readonly #options: TreeOptions;
  readonly #call: CallOptions;

  constructor(files: Files, options: TreeOptions) {
    this.#files = files;
    this.#options = options;
    this.#call = { signal: options.signal };
  }

  async *list(directory: LocalPath, parent: string): AsyncGenerator<SourceEntry | { path: string; error: RemexError }> {
    // The types do not know that names can be bytes.
    const opened = await local(`read \`${directory}\``, opendir(directory, { encoding: "buffer" as BufferEncoding }));
    for await (const listed of opened) {
      const bytes = listed.name as unknown as Buffer;
      const name = bytes.toString();
      const exactName = isUtf8(bytes) ? name : bytes;
      const path = below(parent, name);
      try {
        const stats = await findLocal(joinLocal(directory, exactName));
        // It vanished after it was listed.
        if (!stats) continue;
        const kind = stats.isFile() ? "file" : stats.isDirectory() ? "directory" : stats.isSymbolicLink() ? "symlink" : "other";
        yield { path, name, exactName, kind, size: stats.size, attributes: attributesOf(stats) };
      } catch (error) {
        yield { path, error: error as RemexError };
      }
    }
  }

  joinFrom = joinLocal;
  joinTo = joinPath;

  async makeDirectory(to: string, source: Attributes, parent: DirectoryState): Promise<DirectoryState> {
    const there = parent === "new" ? undefined : await this.#files.find(to, this.#call);
    if (there?.isSymlink) throw new UsageError(`cannot upload into \`${to}\`: it is a symbolic link, which could point outside of the tree`, { hint: "remove it" });
    if (there && !there.isDirectory) throw new UsageError(`cannot upload into \`${to}\`: it is not a directory`, { hint: "remove it" });
    if (!there) await this.#files.mkdir(to, { ...this.#call, followSymlinks: false });
    const mode = source.mode! | OWNER;
    if (there?.permissions !== mode) await this.#files.chmod(to, mode, { ...this.#call, followSymlinks: false });
    return there ? "existing" : "new";
  }

  async finishDirectory(to: string, source: Attributes): Promise<void> {
    await this.#files.setTimes(to, { modifiedAtMs: source.modifiedAtMs }, this.#call);
    if ((source.mode! & OWNER) !== OWNER) await this.#files.chmod(to, source.mode!, { ...this.#call, followSymlinks: false });
  }

  async copyFile({ entry, from, to, directory }: Item<LocalPath, string>): Promise<number | undefined> {
    const there = directory === "new" ? undefined : await this.#findFile(to);
    if (there && (await this.#isUnchanged(entry, from, to, there))) {
      await this.#update(entry, to, there);
      return undefined;
    }
    for (let reads = 1; ; reads++) {
      await using source = await LocalSource.open(from, constants.O_NOFOLLOW);
      const { mode, modifiedAtMs } = attributesOf(source.stats);
      const destination = { asked: to, path: to, permissions: mode, modifiedAtMs };
      if (source.stats.size > SMALL_LEN) return await sendFile(this.#files, source, destination, this.#call);
      const content = await source.readAll();
      try {
        await source.check();
      } catch (error) {
        // Reading a small file again is cheap.
        if (error instanceof ChangedError && reads < MAX_READS) continue;
        throw error;
      }
      await this.#sendSmall(content, to, { mode, modifiedAtMs });
      return content.length;
    }
  }

  /** Returns what is at the destination; a link is replaced, whatever it leads to. */
  async #findFile(to: string): Promise<Metadata | undefined> {
    const there = await this.#files.find(to, this.#call);
    if (there?.isDirectory && !there.isSymlink) throw new UsageError(`cannot upload to \`${to}\`: it is a directory`, { hint: "remove it" });
    return there?.isSymlink ? undefined : there;
  }

  /** Sends a small file beside its destination in one round trip, then puts it in place. */
  async #sendSmall(content: Uint8Array, to: string, { mode, modifiedAtMs }: Required<Attributes>): Promise<void> {
    const { engine } = this.#files;
    const { disconnects } = engine;
    const temporary = new Temporary(this.#files, to);
    const { path } = temporary;
    try {
      // The server handles requests for one path in order.
      await Promise.all([
        engine.callWithBytes("fs/writeFile", { path, createMode: PRIVATE_MODE }, { dataBase64: content }, this.#call),
        engine.call("fs/setPermissions", { path, mode: mode! }, this.#call),
        engine.call("fs/setTimes", { path, modifiedAtMs }, this.#call),
      ]);
      // Answers come in any order: a write whose answer alone was lost was repeated after the time was set.
      if (engine.disconnects !== disconnects) await engine.call("fs/setTimes", { path, modifiedAtMs }, this.#call);
      await temporary.putInPlace(to, content.length, this.#call);
    } catch (error) {
      throw temporary.hide(error, to);
    } finally {
      temporary.discard();
    }
  }

  async #isUnchanged(entry: SourceEntry, from: LocalPath, to: string, there: Metadata): Promise<boolean> {
    switch (this.#options.skipUnchanged ?? "sizeAndTime") {
      case "never":
        return false;
      case "content": {
        if (!there.isFile || there.size !== entry.size) return false;
        await using source = await LocalSource.open(from, constants.O_NOFOLLOW);
        return (await this.#files.hash(to, this.#call)).hash === (await source.hash());
      }
      default:
        return there.isFile && isUnchanged(entry, { size: there.size, mode: undefined, modifiedAtMs: there.modifiedAtMs });
    }
  }

  /** Sets what differs although the content does not. */
  async #update({ attributes }: SourceEntry, to: string, there: Metadata): Promise<void> {
    if (attributes.modifiedAtMs !== there.modifiedAtMs) await this.#files.setTimes(to, { modifiedAtMs: attributes.modifiedAtMs }, this.#call);
    if (attributes.mode !== there.permissions) await this.#files.chmod(to, attributes.mode!, { ...this.#call, followSymlinks: false });
  }

  async copyLink({ from, to, directory }: Item<LocalPath, string>): Promise<boolean> {
    const target = await local(`read \`${from}\``, readlink(from, { encoding: "buffer" }));
    if (directory === "existing") {
      const there = await this.#files.readLink(to, this.#call).catch(() => undefined);
      if (there !== undefined && Buffer.compare(toBytes(there), target) === 0) return false;
    }
    for (const retries = new RetryBudget(); ; ) {
      try {
        await this.#files.symlink(to, target, this.#call);
        return true;
      } catch (error) {
        if (!(error instanceof RefusedError) || error.kind !== "alreadyExists") {
          retries.note(error);
          continue;
        }
        // It may be the one that was made before a disconnect.
        const there = await this.#files.readLink(to, this.#call).catch(() => undefined);
        if (there !== undefined && Buffer.compare(toBytes(there), target) === 0) return true;
        await this.#makeWay(to, error, retries);
      }
    }
  }

  /** Removes what is in the way of a link, unless it is a directory. */
  async #makeWay(to: string, exists: RefusedError, retries: RetryBudget): Promise<void> {
    const there = await this.#files.find(to, this.#call);
    if (there?.isDirectory && !there.isSymlink) throw exists;
    try {
      await this.#files.remove(to, { ...this.#call, missingOk: true });
    } catch (error) {
      retries.note(error);
    }
  }
}

/** Copies a remote tree to the local file system. */
export async function downloadTree(files: Files, from: Path, to: string, options: TreeOptions): Promise<TreeReport> {
  const root = await files.metadata(from, { signal: options.signal });
  if (!root.isDirectory) throw new UsageError(`\`${fromWirePath(toWirePath(from))}\` is not a directory`, { hint: "download it as a file" });
  const attributes = attributesOfRemote(root);
  const download = new Download(files, options);
  const there = await stat(to).catch(() => undefined);
  if (!there?.isDirectory()) await local(`write \`${to}\``, mkdir(dirname(to), { recursive: true }));
  const state = there?.isDirectory() ? "existing" : await download.makeDirectory(to, attributes);
  const copy = new TreeCopy(download, options);
  await copy.directory(files.engine.absolute(toWirePath(from)), to, attributes, state, "");
  return copy.report;
}

function attributesOfRemote(metadata: Metadata): Attributes {
  return { mode: metadata.permissions === undefined ? undefined : metadata.permissions & 0o777, modifiedAtMs: metadata.modifiedAtMs };
}

/** Returns the last name of a path that the server sent; bytes if it is not UTF-8. */
function lastName(path: string): LocalPath {
  const bytes = Buffer.from(pathBytes(path));
  const name = bytes.subarray(bytes.lastIndexOf("/") + 1);
  return isUtf8(name) ? name.toString() : name;
}

class Download implements Direction<string, LocalPath> {
  readonly #files: Files;
  readonly #options: TreeOptions;
  readonly #call: CallOptions;

  constructor(files: Files, options: TreeOptions) {
    this.#files = files;
    this.#options = options;
    this.#call = { signal: options.signal };
  }

  async *list(directory: string, parent: string): AsyncGenerator<SourceEntry | { path: string; error: RemexError }> {
    for await (const entry of this.#files.list(directory, { ...this.#call, details: true })) {
      const path = below(parent, entry.name);
      const exactName = lastName(entry.path);
      // A name with a slash cannot be a file here; and a server must not choose where we write.
      const isUsable = entry.name !== "" && entry.name !== "." && entry.name !== ".." && !/[/\0]/.test(entry.name)
        && (process.platform !== "win32" || (typeof exactName === "string" && !/[\\:]/.test(exactName)))
        && (typeof exactName !== "string" || exactName === entry.name) && !exactName.includes("\0")
        && Buffer.compare(pathBytes(entry.path), pathBytes(joinPath(directory, exactName))) === 0;
      if (!isUsable) {
        yield { path, error: new LocalError(`write \`${path}\``, new Error("its name cannot be used here")) };
        continue;
      }
      const metadata = entry.metadata ?? (await this.#files.find(entry.path, this.#call));
      if (!metadata) continue;
      const isLink = entry.isSymlink;
      const kind = isLink ? "symlink" : metadata.isFile ? "file" : metadata.isDirectory ? "directory" : "other";
      yield { path, name: entry.name, exactName, kind, size: metadata.size, attributes: attributesOfRemote(metadata) };
    }
  }

  joinFrom = joinPath;
  joinTo = joinLocal;

  async makeDirectory(to: LocalPath, source: Attributes): Promise<DirectoryState> {
    let state: DirectoryState = "new";
    try {
      await mkdir(to);
    } catch (error) {
      // A link could point outside of the tree.
      const isDirectory = (await findLocal(to))?.isDirectory() ?? false;
      if ((error as NodeJS.ErrnoException).code !== "EEXIST" || !isDirectory) throw new LocalError(`write \`${to}\``, error);
      state = "existing";
    }
    if (source.mode !== undefined) await setLocalAttributes(to, { mode: source.mode | OWNER, modifiedAtMs: undefined });
    return state;
  }

  async finishDirectory(to: LocalPath, source: Attributes): Promise<void> {
    const isClosed = source.mode !== undefined && (source.mode & OWNER) !== OWNER;
    await setLocalAttributes(to, { modifiedAtMs: source.modifiedAtMs, mode: isClosed ? source.mode : undefined });
  }

  async copyFile({ entry, from, to, directory }: Item<string, LocalPath>): Promise<number | undefined> {
    if (directory === "existing" && (await this.#isUnchanged(entry, from, to))) {
      await setLocalAttributes(to, entry.attributes);
      return undefined;
    }
    if (entry.size > SMALL_LEN) return downloadFile(this.#files, from, to, this.#call);
    const temporary = await LocalTemporary.create(to);
    try {
      const { content, attributes } = await this.#readSmall(entry, from);
      await temporary.write(content);
      await temporary.putInPlace(to, attributes);
      return content.length;
    } finally {
      await temporary.discard();
    }
  }

  async #readSmall(entry: SourceEntry, from: string): Promise<{ content: Uint8Array; attributes: Attributes }> {
    let { size, attributes } = entry;
    for (let reads = 0; reads < MAX_READS; reads++) {
      // The server handles requests for one path in order.
      const [content, now] = await Promise.all([this.#files.read(from, this.#call), this.#files.metadata(from, this.#call)]);
      // Files of the kernel, as in `/proc`, have content although their size is 0, and their time is meaningless.
      const isSame = now.size === size && now.modifiedAtMs === attributes.modifiedAtMs && content.length === size;
      if (isSame || size === 0) return { content, attributes };
      [size, attributes] = [now.size, attributesOfRemote(now)];
    }
    throw new ChangedError(fromWirePath(from));
  }

  async #isUnchanged(entry: SourceEntry, from: string, to: LocalPath): Promise<boolean> {
    const mode = this.#options.skipUnchanged ?? "sizeAndTime";
    if (mode === "never") return false;
    const there = await findLocal(to);
    if (!there?.isFile() || there.size !== entry.size) return false;
    if (mode === "sizeAndTime") return isUnchanged(entry, { size: there.size, ...attributesOf(there) });
    await using source = await LocalSource.open(to, constants.O_NOFOLLOW);
    return (await this.#files.hash(from, this.#call)).hash === (await source.hash());
  }

  async copyLink({ from, to, directory }: Item<string, LocalPath>): Promise<boolean> {
    const target = Buffer.from(toBytes(await this.#files.readLink(from, this.#call)));
    if (directory === "existing" && (await findLocal(to))?.isSymbolicLink()) {
      const there = await local(`read \`${to}\``, readlink(to, { encoding: "buffer" }));
      if (Buffer.compare(there, target) === 0) return false;
    }
    const temporary = LocalTemporary.pathBeside(to);
    try {
      await local(`write \`${to}\``, symlink(target, temporary));
      await local(`write \`${to}\``, rename(temporary, to));
    } finally {
      await rm(temporary, { force: true });
    }
    return true;
  }
}
