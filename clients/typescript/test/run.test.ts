// Runs: input of every kind, and what cannot be written.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { UsageError, connect } from "../src/index.js";
import type { LocalHost, RunOptions } from "../src/index.js";
import { RemexServer, within } from "./server.js";

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

async function textOf(input: RunOptions["input"]): Promise<string> {
  const { stdout } = await within("the output", host.run(["cat"], { input }));
  return new TextDecoder().decode(stdout);
}

test("input that is no data is refused before anything is started", async () => {
  for (const input of [5, true, {}, null, () => "text"]) {
    const run = host.run(["cat"], { input: input as unknown as string });
    await assert.rejects(within(`the refusal of ${String(input)}`, run), UsageError, String(input));
  }
  assert.deepEqual(await host.processes(), []);
});

test("input that turns out to be no data, or fails, fails the run and ends the process", async () => {
  await assert.rejects(within("the refusal", host.run(["cat"], { input: [1, 2, 3] as unknown as string[] })), UsageError);
  const failure = new Error("the source is broken");
  async function* broken(): AsyncGenerator<string> {
    yield "begins\n";
    throw failure;
  }
  await assert.rejects(within("the failure", host.run(["cat"], { input: broken() })), failure);
  for (const process of await host.processes()) {
    const { signal } = await within("the end", host.call("process/wait", { processId: process.processId }));
    assert.equal(signal, "SIGKILL");
  }
});

test("input may be text, bytes, a blob, a stream or an iterable", async () => {
  async function* pieces(): AsyncGenerator<string | Uint8Array> {
    const buffer = new Uint8Array(1);
    for (const letter of "abc") {
      buffer[0] = letter.charCodeAt(0);
      yield buffer;
    }
    yield "de";
  }
  const stream = new Blob(["abcde"]).stream();
  const bytes = new TextEncoder().encode("abcde");
  for (const input of ["abcde", bytes, bytes.buffer as ArrayBuffer, new DataView(bytes.buffer as ArrayBuffer), new Blob(["abcde"]), stream, ["ab", "cde"], pieces()]) {
    assert.equal(await textOf(input), "abcde");
  }
  assert.equal(await textOf(""), "");
});

test("a run ends with its process, however long its input is", async () => {
  async function* endless(): AsyncGenerator<Uint8Array> {
    for (;;) yield new Uint8Array(10_000);
  }
  const { stdout, exitCode } = await within("the end", host.run(["head", "-c", "3"], { input: endless() }));
  assert.deepEqual([stdout.length, exitCode], [3, 0]);
  const silent = new ReadableStream<Uint8Array>();
  assert.equal((await within("the end", host.run(["false"], { input: silent }))).exitCode, 1);
});

test("input on a terminal ends as on a terminal, also in the middle of a line", async () => {
  for (const [input, shown] of [["line\n", "line\r\nline\r\n"], ["no newline", "no newlineno newline"], ["", ""]] as const) {
    const { terminal, exitCode } = await within(`the end behind ${JSON.stringify(input)}`, host.run(["cat"], { input, tty: true }));
    assert.deepEqual([new TextDecoder().decode(terminal).replaceAll("^D\b\b", ""), exitCode], [shown, 0]);
  }
});
