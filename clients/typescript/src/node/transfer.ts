/**
 * Copies of single files between the local file system and the remote host.
 *
 * @module
 */
import { ChangedError } from "../errors.js";
import type { Files, TransferOptions } from "../files.js";
import type { Path } from "../path.js";
import { showPath } from "../path.js";
import type { Destination } from "../remote-file.js";
import { isSameFile } from "../remote-file.js";
import type { LocalPath, LocalSource } from "./local.js";
import { LocalTemporary } from "./local.js";

/** Copies an open local file to the remote host; returns its length. */
export async function sendFile(files: Files, source: LocalSource, destination: Destination, options?: TransferOptions): Promise<number> {
  const total = source.stats.size;
  const onProgress = options?.onProgress && (({ bytes }: { bytes: number }) => options.onProgress?.({ bytes, totalBytes: total }));
  return files.send(source.chunks(), destination, { ...options, onProgress }, () => source.check());
}

/** Copies a remote file to the local file system, with its permissions and time; returns its length. */
export async function downloadFile(files: Files, from: Path, to: LocalPath, options?: TransferOptions): Promise<number> {
  await using file = await files.open(from, options);
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
    if (!isKernelFile && !isSameFile(metadata, await files.metadata(from, options))) throw new ChangedError(showPath(from));
    await temporary.putInPlace(to, { mode: metadata.permissions, modifiedAtMs: metadata.modifiedAtMs });
    return bytes;
  } finally {
    await temporary.discard();
  }
}
