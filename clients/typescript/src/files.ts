/**
 * The files of the remote host.
 *
 * @module
 */
import type { BytesLike } from "./bytes.js";
import { kindOf, toBytes, toText } from "./bytes.js";
import type { CallOptions } from "./calls.js";
import { bytesOf } from "./decode.js";
import { ChangedError, ProtocolError, RequestInterruptedError, UsageError } from "./errors.js";
import { FileCalls } from "./file-calls.js";
import type { Path } from "./path.js";
import { toWirePath } from "./path.js";
import type { Destination, WriterOptions } from "./remote-file.js";
import { RemoteReader, RemoteWriter, findDestination } from "./remote-file.js";
import { contentHash } from "./sha256.js";
import type { Source } from "./source.js";
import { checkSource, chunksOf, isWhole } from "./source.js";

/** How far a transfer is. */
export interface Progress {
  /** The bytes that have arrived. */
  readonly bytes: number;
  /** The bytes that there are, if known. */
  readonly totalBytes: number | undefined;
}

/** Options of a transfer. */
export interface TransferOptions extends CallOptions {
  onProgress?: ((progress: Progress) => void) | undefined;
}

/** Options of {@link Files.write}. */
export interface WriteOptions extends CallOptions {
  /** Replaces the file in one step, so that every reader finds the old content or the new. */
  atomic?: boolean | undefined;
  /**
   * The hash that the content must have, `sha256:…`, or `absent` if there must be no file; otherwise the write fails with
   * the kind `contentChanged`. `undefined` is refused, because it would write whatever the content is.
   */
  ifMatch?: string;
  /** The permissions of a new file, minus the umask. */
  createMode?: number | undefined;
}

/** How often a file that changes is read after a disconnect. */
const MAX_READS = 8;

/**
 * The files of the remote host.
 *
 * Paths are absolute, relative to the working directory of the session, or below `~`, the home directory; all of them
 * on the remote host. `file:` URIs and the bytes of a name that is not UTF-8 are paths, too.
 *
 * ```ts
 * await host.files.write("/tmp/greeting", "hello\n", { atomic: true });
 * console.log(await host.files.readText("/tmp/greeting"));
 * ```
 */
export class Files extends FileCalls {
  // Whole files.

  /**
   * Reads a whole file, of at most 512 MiB; {@link Files.open} reads files of any size.
   *
   * After a disconnect it continues where it stopped, and starts over only if the file has changed.
   */
  async read(path: Path, options?: CallOptions): Promise<Uint8Array> {
    try {
      const call = { signal: options?.signal, isRepeatable: false };
      const { dataBase64 } = await this.engine.call("fs/readFile", { path: toWirePath(path) }, call);
      return bytesOf(dataBase64, "dataBase64");
    } catch (error) {
      if (!(error instanceof RequestInterruptedError)) throw error;
    }
    // One answer may be too long for a connection that is lost again and again.
    for (let attempt = 1; ; attempt++) {
      try {
        await using file = await this.open(path, options);
        return await file.readAll();
      } catch (error) {
        if (!(error instanceof ChangedError) || attempt === MAX_READS) throw error;
      }
    }
  }

  /** Reads a whole file as UTF-8; invalid bytes become U+FFFD. */
  async readText(path: Path, options?: CallOptions): Promise<string> {
    return toText(await this.read(path, options));
  }

  /**
   * Writes a whole file, and returns the hash of what was written; {@link Files.create} writes files of any size.
   *
   * With `ifMatch` a disconnect meanwhile is a `RequestInterruptedError`; otherwise the write is repeated.
   *
   * ```ts
   * const hash = await host.files.write("/tmp/notes", "one\n");
   * await host.files.write("/tmp/notes", "two\n", { ifMatch: hash }); // fails if someone else has changed it
   * ```
   */
  async write(path: Path, data: BytesLike, options: WriteOptions = {}): Promise<string> {
    const { signal, ...rest } = options;
    if ("ifMatch" in options && typeof options.ifMatch !== "string") {
      const hint = "leave it out to write whatever the content is, or pass a hash or `absent`";
      throw new UsageError(`\`ifMatch\` is ${kindOf(options.ifMatch)}`, { hint });
    }
    const bytes = toBytes(data);
    const params = { path: toWirePath(path), ...rest };
    const written = this.engine.callWithBytes("fs/writeFile", params, { dataBase64: bytes }, { signal });
    // The server computes it only for a comparison.
    if (options.ifMatch === undefined) return (await Promise.all([contentHash(bytes), written]))[0];
    const { hash } = await written;
    if (hash == null) throw new ProtocolError("the server has ignored `ifMatch`");
    return hash;
  }

  // Files of any size.

  /**
   * Opens a file for reading, of any size and in constant memory; it survives disconnects.
   *
   * ```ts
   * await using file = await host.files.open("/var/log/messages");
   * for await (const bytes of file) console.log(bytes.length);
   * ```
   */
  open(path: Path, options?: CallOptions & { offset?: number | undefined }): Promise<RemoteReader> {
    return RemoteReader.open(this, toWirePath(path), options ?? {});
  }

  /**
   * Opens a file for writing, of any size and in constant memory; it survives disconnects.
   *
   * The content goes to a temporary file beside it, which replaces the file when it is closed.
   *
   * ```ts
   * await using file = await host.files.create("/tmp/large");
   * for (let i = 0; i < 1000; i++) await file.write("line\n");
   * await file.close();
   * ```
   */
  async create(path: Path, options?: WriterOptions): Promise<RemoteWriter> {
    return RemoteWriter.open(this, await findDestination(this, path, options ?? {}), options?.signal);
  }

  /** Writes a file of any size from bytes or a stream; returns its length. */
  async upload(source: Source, path: Path, options?: WriterOptions & TransferOptions): Promise<number> {
    checkSource("source", source);
    return this.send(source, await findDestination(this, path, options ?? {}), options);
  }

  /** @internal Writes a file; `check` is called before it is put in place. */
  async send(source: Source, destination: Destination, options?: TransferOptions, check?: () => Promise<void>): Promise<number> {
    const total = isWhole(source) ? toBytes(source).length : undefined;
    await using writer = await RemoteWriter.open(this, destination, options?.signal);
    for await (const bytes of chunksOf(source)) {
      await writer.write(bytes);
      options?.onProgress?.({ bytes: writer.written, totalBytes: total });
    }
    await check?.();
    await writer.close();
    options?.onProgress?.({ bytes: writer.written, totalBytes: total ?? writer.written });
    return writer.written;
  }
}
