/**
 * The files of the remote host, with copies from and to the local file system.
 *
 * @module
 */
import type { TransferOptions } from "../files.js";
import { Files } from "../files.js";
import type { Path } from "../path.js";
import type { WriterOptions } from "../remote-file.js";
import { findDestination } from "../remote-file.js";
import type { LocalPath } from "./local.js";
import { LocalSource, attributesOf } from "./local.js";
import { downloadFile, sendFile } from "./transfer.js";
import type { TreeOptions, TreeReport } from "./tree.js";
import { downloadTree, uploadTree } from "./tree.js";

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
    return await sendFile(this, source, destination, options);
  }

  /**
   * Copies a remote file to the local file system, with its permissions and time; returns its length.
   *
   * The file is replaced in one step when everything has arrived.
   */
  downloadFile(from: Path, to: LocalPath, options?: TransferOptions): Promise<number> {
    return downloadFile(this, from, to, options);
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
