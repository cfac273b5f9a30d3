/**
 * Searching the files of the remote host.
 *
 * @module
 */
import { kindOf } from "./bytes.js";
import type { CallOptions } from "./calls.js";
import { UsageError } from "./errors.js";
import { fromWirePath } from "./path.js";
import type { FsFoundFile, FsFoundLine, FsSearchLimit, FsSearchOptions, FsSearchReport, FsSearchResult } from "./protocol.js";

/** Options of {@link Files.search}. */
export interface SearchOptions extends CallOptions {
  /** A regular expression of Rust for one line, or plain text with `literal`; every file is found without it. */
  pattern?: string | undefined;
  /** The pattern is plain text. */
  literal?: boolean | undefined;
  /** Upper and lower case are the same in the pattern. */
  ignoreCase?: boolean | undefined;
  /**
   * Only files whose paths below the searched one match one of these globs, and none of those that begin with `!`. They
   * have the syntax of `.gitignore`, with `{a,b}`.
   */
  globs?: readonly string[] | undefined;
  /** Also search what `.gitignore` and `.ignore` files exclude, and the directories of version control. */
  withIgnored?: boolean | undefined;
  /** What is returned of each file: its matching `lines`, the default, their `counts`, or only that it matches (`files`). */
  report?: FsSearchReport | undefined;
  /** How many lines before each match are returned; 0 by default, at most 100. */
  contextBefore?: number | undefined;
  /** How many lines after each match are returned; 0 by default, at most 100. */
  contextAfter?: number | undefined;
  /** How many levels below the path are searched: 0 is its own files; all by default. */
  maxDepth?: number | undefined;
  /** How many matching lines to skip, to continue a search; with the reports `counts` and `files`, how many files. */
  skip?: number | undefined;
  /** How many matching lines, or files, are returned; 500 by default, at most 10,000. */
  maxItems?: number | undefined;
  /** How much text and paths are returned, in bytes; 262,144 by default, at most 1,048,576. */
  maxBytes?: number | undefined;
  /** How much of one line is returned, around its first match, in bytes; 1,024 by default, at most 65,536. */
  maxLineBytes?: number | undefined;
  /** After how long the search returns what it has found; 20,000 by default, at most 120,000. */
  timeoutMs?: number | undefined;
}

/** What a search found, and what it did not look at. */
export interface SearchResult {
  /** The files with matches, depth first, each directory in the byte order of its names. */
  readonly files: readonly FoundFile[];
  /** Which limit ended the search early; `undefined` if it is complete. */
  readonly truncated: FsSearchLimit | undefined;
  /** How many files were searched; one that turned out to be binary counts. */
  readonly searched: number;
  /** How many files and directories were left out because of ignore files, or as directories of version control. */
  readonly ignored: number;
  /** How many files were not searched to their end because they are binary. */
  readonly binary: number;
  /** The first of the binary files. */
  readonly binaryFiles: readonly string[];
  /** What could not be searched completely, at most 50. */
  readonly errors: readonly SearchFailure[];
}

/** A file that a search found. */
export interface FoundFile {
  readonly path: string;
  /** How many of its lines match, as far as it was searched. */
  readonly count: number;
  /** Those lines and the lines around them; none with the reports `counts` and `files`. */
  readonly lines: readonly FoundLine[];
}

/** A line of a file that a search found. */
export interface FoundLine {
  /** Its number, from 1. */
  readonly number: number;
  /** Its text without the line end; invalid UTF-8 becomes U+FFFD. */
  readonly text: string;
  /** Whether it matches; otherwise it is near a match. */
  readonly isMatch: boolean;
  /** How many bytes of a long line are left out before the text. */
  readonly omittedBefore: number;
  /** How many bytes of a long line are left out after the text. */
  readonly omittedAfter: number;
}

/** Something that could not be searched completely. */
export interface SearchFailure {
  readonly path: string;
  readonly message: string;
}

/** Returns the options of a search as they are sent. */
export function searchParams({ signal: _, globs, ...rest }: SearchOptions): FsSearchOptions {
  const { pattern } = rest as { pattern: unknown };
  if (pattern !== undefined && typeof pattern !== "string") {
    throw new UsageError(`\`pattern\` is ${kindOf(pattern)}`, { hint: "pass a regular expression of Rust as a string" });
  }
  if (globs !== undefined && !Array.isArray(globs)) throw new UsageError(`\`globs\` is ${kindOf(globs)}`, { hint: "pass an array of strings" });
  return globs === undefined ? rest : { ...rest, globs: [...globs] };
}

/** Returns the answer to a search as callers see it. */
export function toSearchResult(reply: FsSearchResult): SearchResult {
  return {
    files: reply.files.map(toFoundFile),
    truncated: reply.truncated ?? undefined,
    searched: reply.searched,
    ignored: reply.ignored,
    binary: reply.binary,
    binaryFiles: (reply.binaryFiles ?? []).map(fromWirePath),
    errors: (reply.errors ?? []).map(({ path, message }) => ({ path: fromWirePath(path), message })),
  };
}

function toFoundFile({ path, count, lines }: FsFoundFile): FoundFile {
  return { path: fromWirePath(path), count, lines: (lines ?? []).map(toFoundLine) };
}

function toFoundLine({ number, text, isMatch, omittedBefore, omittedAfter }: FsFoundLine): FoundLine {
  return { number, text, isMatch: isMatch ?? true, omittedBefore: omittedBefore ?? 0, omittedAfter: omittedAfter ?? 0 };
}
