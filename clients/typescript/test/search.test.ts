// Searching files with the real server: the options, the answer, and what a search says of its limits.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { RefusedError, UsageError, connect } from "../src/index.js";
import type { FoundFile, LocalHost, SearchOptions, SearchResult } from "../src/index.js";
import { RemexServer, TemporaryDirectory, within } from "./server.js";

let server: RemexServer;
let host: LocalHost;
let directory: TemporaryDirectory;

const LONG = `${"a".repeat(3000)}needle${"b".repeat(2000)}\n`;
const FILES: Record<string, string | Uint8Array> = {
  ".gitignore": "*.log\n",
  ".hidden": "Needle\n",
  "build.log": "needle\n",
  "image": Uint8Array.of(0, 1, 2),
  "long": LONG,
  "src/a.rs": "one\ntwo needle\nthree\nneedle\n",
  "src/b.txt": "needle $0\r\n",
};

before(async () => {
  server = await RemexServer.start(["unix://{dir}/s.sock"]);
  host = await connect(server.url);
  directory = await TemporaryDirectory.make();
  await host.files.mkdir(`${directory.path}/src`);
  for (const [name, content] of Object.entries(FILES)) await host.files.write(`${directory.path}/${name}`, content);
});
after(async () => {
  await directory[Symbol.asyncDispose]();
  await host.end();
  await server[Symbol.asyncDispose]();
});

function search(options?: SearchOptions): Promise<SearchResult> {
  return within("the answer of the search", host.files.search(directory.path, options));
}

/** Returns the names and the matching lines of files, `name:number:text`. */
function matches(files: readonly FoundFile[]): string[] {
  return files.flatMap(({ path, lines }) => lines.map(({ number, text }) => `${path.slice(directory.path.length + 1)}:${number}:${text}`));
}

test("a search returns lines with their files and numbers, and says what it left out", async () => {
  const found = await search({ pattern: "^two \\w+|\\$0$", globs: ["src/**"] });
  assert.deepEqual(matches(found.files), ["src/a.rs:2:two needle", "src/b.txt:1:needle $0"]);
  assert.deepEqual(found.files[0]!.lines[0], { number: 2, text: "two needle", isMatch: true, omittedBefore: 0, omittedAfter: 0 });
  const { files, ...rest } = await search({ pattern: "NEEDLE", ignoreCase: true, maxLineBytes: 100 });
  assert.deepEqual(files.map(({ path, count }) => [path.slice(directory.path.length + 1), count]), [[".hidden", 1], ["long", 1], ["src/a.rs", 2], ["src/b.txt", 1]]);
  assert.deepEqual(rest, { truncated: undefined, searched: 6, ignored: 1, binary: 1, binaryFiles: [`${directory.path}/image`], errors: [] });
  const { text, omittedBefore, omittedAfter } = files[1]!.lines[0]!;
  assert.match(text, /^a+needleb+$/);
  assert.deepEqual([text.length, omittedBefore + text.length + omittedAfter], [100, LONG.length - 1]);
});

test("every option of a search has its effect", async () => {
  assert.deepEqual(matches((await search({ pattern: "$0", literal: true })).files), ["src/b.txt:1:needle $0"]);
  const names = async (options: SearchOptions): Promise<string[]> => (await search(options)).files.map(({ path }) => path.slice(directory.path.length + 1));
  assert.deepEqual(await names({ report: "files" }), [".gitignore", ".hidden", "image", "long", "src/a.rs", "src/b.txt"]);
  assert.deepEqual(await names({ pattern: "needle", withIgnored: true, maxDepth: 0 }), ["build.log", "long"]);
  assert.deepEqual(await names({ pattern: "needle", globs: ["*.{rs,txt}", "!b.*"] }), ["src/a.rs"]);
  const counted = await search({ pattern: "needle", report: "counts", globs: ["*.rs"] });
  assert.deepEqual(counted.files, [{ path: `${directory.path}/src/a.rs`, count: 2, lines: [] }]);
  const around = await search({ pattern: "two", contextBefore: 1, contextAfter: 1, globs: ["*.rs"] });
  assert.deepEqual(around.files[0]!.lines.map(({ text, isMatch }) => [text, isMatch]), [["one", false], ["two needle", true], ["three", false]]);
  assert.deepEqual(matches((await host.files.search(`${directory.path}/src/a.rs`, { pattern: "one" })).files), ["src/a.rs:1:one"]);
});

test("a truncated search names its limit, and `skip` continues it", async () => {
  const all = matches((await search({ pattern: "needle" })).files);
  const seen: string[] = [];
  let truncated: string | undefined;
  do {
    const page = await search({ pattern: "needle", maxItems: 1, skip: seen.length });
    seen.push(...matches(page.files));
    truncated = page.truncated;
    assert.ok(truncated === undefined || truncated === "items", truncated);
  } while (truncated !== undefined && seen.length <= all.length);
  // The long line is cut the same way in both.
  assert.deepEqual([seen, seen.length], [all, 4]);
  assert.equal((await search({ pattern: "needle", maxBytes: 1 })).truncated, "bytes");
});

test("a search names what it could not search completely", async () => {
  const ignored = `${directory.path}/.gitignore`;
  await host.files.write(ignored, `*.log\n${"x".repeat(5000)}\n`);
  try {
    const { errors } = await search({ pattern: "needle" });
    assert.deepEqual(errors.map(({ path }) => path), [ignored]);
    assert.ok(errors[0]!.message.length > 0);
  } finally {
    await host.files.write(ignored, FILES[".gitignore"]!);
  }
});

test("an invalid search is refused", async () => {
  for (const options of [{ pattern: /needle/ }, { globs: "*.rs" }, { skip: -1 }, { maxItems: Number.NaN }, { maxDepth: 0.5 }] as unknown as SearchOptions[]) {
    await assert.rejects(search(options), UsageError, JSON.stringify(options));
  }
  for (const options of [{ pattern: "(" }, { pattern: "a\nb" }, { maxItems: 10_001 }, { maxBytes: 0 }, { globs: ["{"] }]) {
    await assert.rejects(search(options), (error: unknown) => error instanceof RefusedError && error.kind === "invalidInput", JSON.stringify(options));
  }
  await assert.rejects(host.files.search(`${directory.path}/missing`), (error: unknown) => error instanceof RefusedError && error.kind === "notFound");
});
