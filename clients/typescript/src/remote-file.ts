/**
 * Files of any size, read and written in blocks: in constant memory, with several blocks in flight, across disconnects.
 *
 * @module
 */
import type { BytesLike } from "./bytes.js";
import { concat, randomWord, toBytes } from "./bytes.js";
import type { CallOptions } from "./calls.js";
import { bytesOf } from "./decode.js";
import type { Engine } from "./engine.js";
import { ChangedError, RequestInterruptedError, ProtocolError, RefusedError, UsageError, isRefused } from "./errors.js";
import type { FileCalls, Metadata } from "./file-calls.js";
import { checkParams } from "./numbers.js";
import type { Path } from "./path.js";
import { joinPath, showPath, toWirePath } from "./path.js";

/** The length of a block, in bytes. */
const BLOCK_LEN = 256 << 10;

/** The length of a block on a network whose connections do not last for a longer one. */
const MIN_BLOCK_LEN = 8 << 10;

/** How many blocks are in flight, to hide the latency of the connection. */
const WINDOW = 4;

/** How many disconnects in a row a transfer survives without progress. */
const MAX_RETRIES = 16;

/** How many links an upload follows to its destination. */
const MAX_LINKS = 40;

const SLASH = 0x2f;

/** The permissions of a file until its content is complete. */
export const PRIVATE_MODE = 0o600;

/** Counts disconnects since the last progress, and says how long blocks are and how many may be in flight. */
export class RetryBudget {
  /** One after a disconnect, so that a connection that lasts for a block only is enough to make progress. */
  window = WINDOW;
  /** Less after connections that did not last for a block, down to {@link MIN_BLOCK_LEN}. */
  blockLen = BLOCK_LEN;
  #count = 0;
  /** How many blocks the connection has carried. */
  #carried = 0;

  /** Throws the error, unless it is a disconnect after which a retry may succeed. */
  note(error: unknown): void {
    const isDisconnect = error instanceof RequestInterruptedError || isRefused(error, "unknownHandle");
    if (!isDisconnect || this.#count >= MAX_RETRIES) throw error;
    if (this.#carried === 0) this.blockLen = Math.max(this.blockLen / 2, MIN_BLOCK_LEN);
    this.#count += 1;
    this.#carried = 0;
    this.window = 1;
  }

  progress(): void {
    this.#count = 0;
    this.#carried += 1;
    this.window = Math.min(this.window + 1, WINDOW);
    if (this.#carried % WINDOW === 0) this.blockLen = Math.min(2 * this.blockLen, BLOCK_LEN);
  }
}

/** Marks a promise as looked at, so that it may fail before it is awaited. */
function inFlight<T>(promise: Promise<T>): Promise<T> {
  promise.catch(() => undefined);
  return promise;
}

/** Returns whether a file has the same size and time as before. */
export function isSameFile(before: Pick<Metadata, "size" | "modifiedAtMs">, now: Pick<Metadata, "size" | "modifiedAtMs">): boolean {
  return before.size === now.size && before.modifiedAtMs === now.modifiedAtMs;
}

/** A file that is open for reading. Iterate over it, or call {@link RemoteReader.read} for one block after the other. */
export class RemoteReader implements AsyncIterable<Uint8Array>, AsyncDisposable {
  readonly #files: FileCalls;
  readonly #path: string;
  readonly #signal: AbortSignal | undefined;
  readonly #retries = new RetryBudget();
  #metadata!: Metadata;
  #handleId = "";
  #blocks: { len: number; reply: Promise<{ chunk: string; eof: boolean }> }[] = [];
  #asked: number;
  #got: number;
  #isEnded = false;

  private constructor(files: FileCalls, path: string, offset: number, signal: AbortSignal | undefined) {
    this.#files = files;
    this.#path = path;
    this.#signal = signal;
    this.#asked = this.#got = offset;
  }

  /** @internal */
  static async open(files: FileCalls, path: string, options: CallOptions & { offset?: number | undefined }): Promise<RemoteReader> {
    const reader = new RemoteReader(files, path, options.offset ?? 0, options.signal);
    const { before } = await reader.#open();
    reader.#metadata = before;
    return reader;
  }

  /** What the file was when it was opened. */
  get metadata(): Metadata {
    return this.#metadata;
  }

  /** Returns the next block, or `undefined` at the end; fails with `ChangedError` if the file is another one after a disconnect. */
  async read(): Promise<Uint8Array | undefined> {
    while (!this.#isEnded) {
      try {
        const bytes = await this.#nextBlock();
        this.#retries.progress();
        this.#got += bytes.length;
        return bytes.length > 0 ? bytes : undefined;
      } catch (error) {
        this.#retries.note(error);
      }
      await this.#reopen();
    }
    return undefined;
  }

  /** @internal Returns the rest of the file; fails with `ChangedError` unless it is one version of it. */
  async readAll(): Promise<Uint8Array> {
    const blocks: Uint8Array[] = [];
    for await (const bytes of this) blocks.push(bytes);
    const whole = concat(blocks);
    // Files of the kernel, as in `/proc`, have no size, and their time is meaningless.
    const isKernelFile = this.#metadata.size === 0 && whole.length > 0;
    const now = isKernelFile ? this.#metadata : await this.#files.metadata(this.#path, { signal: this.#signal });
    if (!isSameFile(this.#metadata, now)) throw new ChangedError(this.#path);
    return whole;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array, void, void> {
    try {
      for (let bytes = await this.read(); bytes; bytes = await this.read()) yield bytes;
    } finally {
      this.close();
    }
  }

  /** The rest of the file as a `ReadableStream`. */
  readable(): ReadableStream<Uint8Array> {
    return new ReadableStream<Uint8Array>({
      pull: async (controller) => {
        const bytes = await this.read();
        if (bytes) controller.enqueue(bytes);
        else controller.close();
      },
      cancel: () => this.close(),
    }, { highWaterMark: 0 });
  }

  /** Closes the file. */
  close(): void {
    this.#isEnded = true;
    this.#closeHandle();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }

  async #nextBlock(): Promise<Uint8Array> {
    const { engine } = this.#files;
    // Beyond the original size one block at a time: usually there is nothing.
    while (this.#blocks.length === 0 || (this.#blocks.length < this.#retries.window && this.#asked <= this.#metadata.size)) {
      const params = { handleId: this.#handleId, offset: this.#asked, len: this.#retries.blockLen };
      this.#blocks.push({ len: params.len, reply: inFlight(engine.call("fs/readBlock", params, { signal: this.#signal })) });
      this.#asked += params.len;
    }
    const { len, reply } = this.#blocks.shift()!;
    const { chunk, eof } = await reply;
    const bytes = bytesOf(chunk, "chunk");
    if (bytes.length > len || (!eof && bytes.length < len)) {
      throw new ProtocolError(`a block has ${bytes.length} bytes instead of ${len}`);
    }
    if (eof) this.close();
    return bytes;
  }

  async #reopen(): Promise<void> {
    this.#blocks = [];
    const { before, after } = await this.#open();
    if (!isSameFile(this.#metadata, before) || !isSameFile(this.#metadata, after)) {
      this.close();
      throw new ChangedError(this.#path);
    }
    this.#asked = this.#got;
  }

  async #open(): Promise<{ before: Metadata; after: Metadata }> {
    const { engine } = this.#files;
    const options = { signal: this.#signal };
    for (;;) {
      this.#handleId = engine.name("f");
      // Sent together: the server handles requests for one path in order.
      const before = inFlight(this.#files.metadata(this.#path, options));
      const opened = inFlight(engine.call("fs/open", { handleId: this.#handleId, path: this.#path }, options));
      const after = inFlight(this.#files.metadata(this.#path, options));
      try {
        await opened;
        return { before: await before, after: await after };
      } catch (error) {
        this.#retries.note(error);
      }
    }
  }

  #closeHandle(): void {
    const handleId = this.#handleId;
    this.#handleId = "";
    if (handleId) inFlight(this.#files.engine.call("fs/close", { handleId }));
  }
}

/** Options of a file that is written. */
export interface WriterOptions extends CallOptions {
  /** The permissions; those of the file that is replaced by default. */
  permissions?: number | undefined;
  /** The time of its last change, in milliseconds since the epoch; now by default. */
  modifiedAtMs?: number | undefined;
}

/** Where a file is written to. */
export interface Destination {
  /** As the caller has given it. */
  readonly asked: string;
  /** Where links lead. */
  readonly path: string;
  readonly permissions: number | undefined;
  readonly modifiedAtMs: number | undefined;
}

/** Follows links to the file that is to be replaced, and finds its permissions. */
export async function findDestination(files: FileCalls, asked: Path, options: WriterOptions): Promise<Destination> {
  const shown = showPath(asked);
  const hint = "name the file";
  const refuse = (why: string): UsageError => new UsageError(`cannot upload to \`${shown}\`: ${why}`, { hint });
  let path = files.engine.absolute(toWirePath(asked));
  if (path.endsWith("/") || path.endsWith("/.")) throw refuse("it names a directory");
  const { signal, permissions, modifiedAtMs } = options;
  // Checked now, because a failure after the transfer would waste it.
  checkParams({ permissions, modifiedAtMs });
  for (let links = 0; links <= MAX_LINKS; links++) {
    const there = await files.find(path, { signal });
    if (there?.isDirectory) throw refuse("it is a directory");
    if (there && !there.isFile) throw refuse("it is a FIFO, socket or device");
    if (there) {
      if (there.isSymlink) path = await files.realpath(path, { signal });
      return { asked: shown, path, permissions: permissions ?? there.permissions, modifiedAtMs };
    }
    let target: Path;
    try {
      target = await files.readLink(path, { signal });
    } catch (error) {
      // There is no dangling link either.
      if (error instanceof RefusedError) return { asked: shown, path, permissions, modifiedAtMs };
      throw error;
    }
    const isRelative = toBytes(target)[0] !== SLASH;
    path = isRelative ? joinPath(path.slice(0, path.lastIndexOf("/")) || "/", target) : toWirePath(target);
  }
  throw refuse("too many levels of symbolic links");
}

/** A temporary file beside a destination, removed unless it is put in place. */
export class Temporary {
  readonly path: string;
  readonly #files: FileCalls;
  #isMoved = false;

  constructor(files: FileCalls, destination: string) {
    this.#files = files;
    const at = destination.lastIndexOf("/") + 1;
    // A name has at most 255 bytes, and escapes of a URI must stay whole.
    const name = destination.slice(at).slice(0, 48).replace(/%[0-9A-Fa-f]?$/, "").replace(/[\ud800-\udbff]$/, "");
    if (destination.slice(at) === "") throw new UsageError(`cannot upload to \`${destination}\`: it has no file name`);
    this.path = `${destination.slice(0, at)}.${name}.remex-${randomWord()}`;
  }

  /** Renames the file to its destination, exactly once, also across disconnects. */
  async putInPlace(destination: string, size: number | undefined, options: CallOptions): Promise<void> {
    const retries = new RetryBudget();
    for (;;) {
      try {
        await this.#files.rename(this.path, destination, options);
        break;
      } catch (error) {
        retries.note(error);
      }
      // The name is random: if the file is missing, it was renamed before the disconnect.
      if (await this.#files.exists(this.path, options)) continue;
      if (size !== undefined && (await this.#files.metadata(destination, options)).size !== size) throw new ChangedError(destination);
      break;
    }
    this.#isMoved = true;
  }

  /** Removes the file unless it was put in place. */
  discard(): void {
    if (!this.#isMoved) inFlight(this.#files.remove(this.path, { missingOk: true }));
  }

  /** Returns an error in terms of the path that the caller knows. */
  hide(error: unknown, asked: string): unknown {
    if (error instanceof ChangedError && error.path === this.path) return new ChangedError(asked);
    if (!(error instanceof RefusedError)) return error;
    const { code, kind } = error;
    const message = error.message.replaceAll(this.path, asked);
    return new RefusedError({ code, kind, message, hint: error.hint?.replaceAll(this.path, asked) });
  }
}

/** A block that the server has not confirmed yet; without a reply, it is not sent. */
interface WrittenBlock {
  readonly offset: number;
  readonly chunk: Uint8Array;
  reply: Promise<unknown> | undefined;
}

/** A file that is being written; nothing is replaced before {@link RemoteWriter.close}. */
export class RemoteWriter implements AsyncDisposable {
  readonly #files: FileCalls;
  readonly #engine: Engine;
  readonly #destination: Destination;
  readonly #temporary: Temporary;
  readonly #signal: AbortSignal | undefined;
  readonly #retries = new RetryBudget();
  #handleId = "";
  #unanswered: WrittenBlock[] = [];
  /** Bytes that do not fill a block yet. */
  #rest: Uint8Array[] = [];
  #restLen = 0;
  #offset = 0;
  #state: "open" | "closed" = "open";
  #work: Promise<unknown> = Promise.resolve();

  private constructor(files: FileCalls, destination: Destination, signal: AbortSignal | undefined) {
    this.#files = files;
    this.#engine = files.engine;
    this.#destination = destination;
    this.#temporary = new Temporary(files, destination.path);
    this.#signal = signal;
  }

  /** @internal */
  static async open(files: FileCalls, destination: Destination, signal: AbortSignal | undefined): Promise<RemoteWriter> {
    const writer = new RemoteWriter(files, destination, signal);
    await writer.#hiding(() => writer.#open());
    return writer;
  }

  /** How many bytes were written so far. */
  get written(): number {
    return this.#offset + this.#restLen;
  }

  /** Writes the next bytes; waits while several blocks are in flight. */
  write(data: BytesLike): Promise<void> {
    return this.#inOrder(async () => {
      if (this.#state === "closed") throw new UsageError("the file is closed");
      const bytes = toBytes(data);
      for (let at = 0; at < bytes.length; ) {
        const part = bytes.subarray(at, at + BLOCK_LEN - this.#restLen);
        at += part.length;
        // The caller may reuse its buffer.
        this.#rest.push(part.slice());
        this.#restLen += part.length;
        if (this.#restLen === BLOCK_LEN) await this.#pushRest();
      }
    });
  }

  /** Writes what is left, and puts the file in place. */
  close(): Promise<void> {
    return this.#inOrder(async () => {
      if (this.#state === "closed") return;
      this.#state = "closed";
      const [{ path, permissions, modifiedAtMs }, options] = [this.#destination, { signal: this.#signal }];
      const temporary = this.#temporary;
      try {
        await this.#pushRest();
        while (this.#unanswered.length > 0) await this.#settle();
        this.#closeHandle();
        const { size } = await this.#files.metadata(temporary.path, options);
        if (size !== this.#offset) throw new ChangedError(temporary.path);
        if (permissions !== undefined) await this.#files.chmod(temporary.path, permissions, options);
        if (modifiedAtMs !== undefined) await this.#files.setTimes(temporary.path, { modifiedAtMs }, options);
        await temporary.putInPlace(path, this.#offset, options);
      } finally {
        this.#closeHandle();
        temporary.discard();
      }
    });
  }

  /** Gives up: the destination stays as it was. */
  abort(): void {
    if (this.#state === "closed") return;
    this.#state = "closed";
    this.#closeHandle();
    this.#temporary.discard();
  }

  /** A `WritableStream` that puts the file in place when it is closed. */
  writable(): WritableStream<BytesLike> {
    return new WritableStream<BytesLike>({
      write: (data) => this.write(data),
      close: () => this.close(),
      abort: () => this.abort(),
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.abort();
  }

  #inOrder(step: () => Promise<void>): Promise<void> {
    const done = this.#work.then(() => this.#hiding(step));
    this.#work = done.catch(() => undefined);
    return done;
  }

  async #hiding(step: () => Promise<void>): Promise<void> {
    try {
      await step();
    } catch (error) {
      this.abort();
      throw this.#temporary.hide(error, this.#destination.asked);
    }
  }

  async #pushRest(): Promise<void> {
    if (this.#restLen === 0) return;
    while (this.#unanswered.length >= WINDOW) await this.#settle();
    const block: WrittenBlock = { offset: this.#offset, chunk: concat(this.#rest), reply: undefined };
    this.#rest = [];
    this.#restLen = 0;
    this.#offset += block.chunk.length;
    this.#unanswered.push(...this.#cut(block));
    this.#sendBlocks();
  }

  /** Cuts a block into unsent ones that the network can carry. */
  #cut({ offset, chunk }: WrittenBlock): WrittenBlock[] {
    const len = this.#retries.blockLen;
    return Array.from({ length: Math.ceil(chunk.length / len) }, (_, index) => {
      const at = index * len;
      return { offset: offset + at, chunk: chunk.subarray(at, at + len), reply: undefined };
    });
  }

  #sendBlocks(): void {
    for (const block of this.#unanswered.slice(0, this.#retries.window)) {
      if (block.reply) continue;
      const params = { handleId: this.#handleId, offset: block.offset };
      block.reply = inFlight(this.#engine.callWithBytes("fs/writeBlock", params, { chunk: block.chunk }, { signal: this.#signal }));
    }
  }

  /** Waits for the oldest block; after a disconnect, sends all unanswered ones again. */
  async #settle(): Promise<void> {
    try {
      await this.#unanswered[0]!.reply;
      this.#unanswered.shift();
      this.#retries.progress();
    } catch (error) {
      this.#retries.note(error);
      await this.#open();
      this.#unanswered = this.#unanswered.flatMap((block) => this.#cut(block));
    }
    this.#sendBlocks();
  }

  async #open(): Promise<void> {
    const createMode = this.#destination.permissions === undefined ? undefined : PRIVATE_MODE;
    for (;;) {
      this.#handleId = this.#engine.name("f");
      const params = { handleId: this.#handleId, path: this.#temporary.path, mode: "write" as const, createMode };
      try {
        await this.#engine.call("fs/open", params, { signal: this.#signal });
        return;
      } catch (error) {
        this.#retries.note(error);
      }
    }
  }

  #closeHandle(): void {
    const handleId = this.#handleId;
    this.#handleId = "";
    if (handleId) inFlight(this.#engine.call("fs/close", { handleId }));
  }
}
