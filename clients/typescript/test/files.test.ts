// Files of the real server, beyond what the behaviour suite tells.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { mkdir, readFile, readlink, writeFile } from "node:fs/promises";
import { homedir } from "node:os";
import { basename, relative } from "node:path";
import { after, before, test } from "node:test";
import { RefusedError, UsageError, connect, joinPath } from "../src/index.js";
import type { LocalHost } from "../src/index.js";
import { contentHash, sha256 } from "../src/sha256.js";
import { RemexServer, TemporaryDirectory, within } from "./server.js";

let server: RemexServer;
let host: LocalHost;
before(async () => {
  server = await RemexServer.start(["unix://{dir}/s.sock"]);
  host = await connect(server.url);
});
after(async () => {
  await host.end();
  await server[Symbol.asyncDispose]();
});

function isKind(...kinds: string[]): (error: unknown) => boolean {
  return (error) => error instanceof RefusedError && kinds.includes(error.kind);
}

test("removing is strict by default", async () => {
  await using directory = await TemporaryDirectory.make();
  const [tree, missing] = [`${directory.path}/tree`, `${directory.path}/missing`];
  await host.files.mkdir(`${tree}/below`);
  await host.files.write(`${tree}/below/file`, "content");
  await assert.rejects(within("the refusal", host.files.remove(tree)), isKind("notEmpty", "isADirectory"));
  assert.equal(await host.files.readText(`${tree}/below/file`), "content");
  await assert.rejects(within("the refusal", host.files.remove(missing)), isKind("notFound"));
  await host.files.remove(missing, { missingOk: true });
  await assert.rejects(within("the refusal", host.files.remove(missing, { recursive: true })), isKind("notFound"));
  await host.files.remove(`${tree}/below/file`);
  await host.files.remove(tree, { recursive: true });
  assert.equal(await host.files.exists(tree), false);
});

test("a write returns the hash that the next one can require", async () => {
  await using directory = await TemporaryDirectory.make();
  const path = `${directory.path}/notes`;
  const first = await host.files.write(path, "one");
  assert.equal(first, (await host.files.hash(path)).hash);
  const second = await host.files.write(path, "two", { ifMatch: first });
  assert.equal(second, (await host.files.hash(path)).hash);
  await assert.rejects(within("the refusal", host.files.write(path, "three", { ifMatch: first })), isKind("contentChanged"));
  assert.equal(await host.files.readText(path), "two");
  assert.equal(await host.files.write(path, "three", { atomic: true }), `sha256:${createHash("sha256").update("three").digest("hex")}`);
});

test("a missing hash does not make a write unconditional", async () => {
  await using directory = await TemporaryDirectory.make();
  const path = `${directory.path}/notes`;
  await host.files.write(path, "of somebody else");
  for (const ifMatch of [undefined, null, 5] as unknown as string[]) {
    await assert.rejects(within("the refusal", host.files.write(path, "mine", { ifMatch })), UsageError);
  }
  assert.equal(await host.files.readText(path), "of somebody else");
});

test("pages without `crypto.subtle` compute the same hashes", async () => {
  for (const length of [0, 1, 55, 56, 63, 64, 65, 119, 120, 128, 100_000]) {
    const bytes = Uint8Array.from({ length }, (_, index) => (index * 7) % 256);
    const hex = createHash("sha256").update(bytes).digest("hex");
    assert.equal(Buffer.from(sha256(bytes)).toString("hex"), hex, `${length} bytes`);
    assert.equal(await contentHash(bytes), `sha256:${hex}`);
  }
});

test("relative paths begin at the working directory of the session, and `~` in the home directory", async () => {
  await using directory = await TemporaryDirectory.make();
  await mkdir(`${directory.path}/tree`);
  await writeFile(`${directory.path}/tree/file`, "content");
  const { cwd, userHomeDir } = (await host.info()) as unknown as { cwd: string; userHomeDir: string };
  const base = relative(cwd.replace("file://", ""), directory.path);
  const { files } = host;
  assert.equal(await files.readText(`${base}/tree/file`), "content");
  assert.equal(await files.realpath("."), await files.realpath(cwd));
  assert.equal(await files.realpath("~"), await files.realpath(userHomeDir));
  await files.write(`${base}/new`, "new");
  await files.rename(`${base}/new`, `${base}/renamed`);
  await files.copy(`${base}/renamed`, `${base}/copied`);
  await files.upload("streamed", `${base}/uploaded`);
  await files.symlink(`${base}/link`, "missing/../dangling");
  await mkdir(`${directory.path}/missing`);
  await files.upload("through", `${base}/link`);
  const bytes = joinPath(Buffer.from(base), Uint8Array.of(0x66, 0xff));
  await files.write(bytes, "no UTF-8");
  assert.equal(await files.readText(bytes), "no UTF-8");
  for (const [name, content] of [["renamed", "new"], ["copied", "new"], ["uploaded", "streamed"], ["dangling", "through"]]) {
    assert.equal(await readFile(`${directory.path}/${name}`, "utf8"), content);
  }
  assert.equal(await readlink(`${directory.path}/link`), "missing/../dangling");
  assert.equal((await host.run(["pwd", "-P"], { cwd: base })).stdoutText, `${await files.realpath(base)}\n`);
  assert.equal((await host.run(["pwd", "-P"], { cwd: "~" })).stdoutText, `${await files.realpath("~")}\n`);
  await assert.rejects(files.remove("", { recursive: true }), UsageError);
  await assert.rejects(files.read(5 as unknown as string), UsageError);

  const name = `.${basename(directory.path)}`;
  if (homedir() === userHomeDir.replace("file://", "")) {
    await files.write(`~/${name}`, "at home");
    assert.equal(await readFile(`${homedir()}/${name}`, "utf8"), "at home");
    await files.remove(`~/${name}`);
  }
  const report = await files.uploadTree(`${directory.path}/tree`, `${base}/there`);
  const back = await files.downloadTree(`${base}/there`, `${directory.path}/back`);
  assert.deepEqual([report.failures, back.failures, await readFile(`${directory.path}/back/file`, "utf8")], [[], [], "content"]);
});

test("`readdir` returns all entries, and `chmod` sets permissions", async () => {
  await using directory = await TemporaryDirectory.make();
  for (const name of ["b", "a"]) await host.files.write(`${directory.path}/${name}`, name);
  await host.files.chmod(`${directory.path}/a`, 0o640);
  const entries = await host.files.readdir(directory.path, { details: true });
  assert.deepEqual(entries.map(({ name }) => name), ["a", "b"]);
  assert.equal((entries[0]!.metadata!.permissions! & 0o777).toString(8), "640");
});
