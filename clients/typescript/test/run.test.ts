// Runs: input of every kind, and what cannot be written.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { CommandFailedError, UsageError, connect, resume } from "../src/index.js";
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

test("input of a wrong type is refused before anything starts", async () => {
  for (const input of [5, true, {}, null, () => "text"]) {
    const run = host.run(["cat"], { input: input as unknown as string });
    await assert.rejects(within(`the refusal of ${String(input)}`, run), UsageError, String(input));
  }
  assert.deepEqual(await host.processes(), []);
});

test("an input stream that fails, or yields a wrong type, fails the run and ends the process", async () => {
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

test("the end of input is typed on a terminal, even in the middle of a line", async () => {
  for (const [input, shown] of [["line\n", "line\r\nline\r\n"], ["no newline", "no newlineno newline"], ["", ""]] as const) {
    const { terminal, exitCode } = await within(`the end behind ${JSON.stringify(input)}`, host.run(["cat"], { input, tty: true }));
    assert.deepEqual([new TextDecoder().decode(terminal).replaceAll("^D\b\b", ""), exitCode], [shown, 0]);
  }
});

test("closing the input of an attached terminal types its end-of-file key", async () => {
  const typed = await host.start(["cat"], { tty: true });
  await typed.stdin.write("no newline");
  await typed.stdin.close();
  const { exitCode, ok } = await within("the end", typed.wait());
  assert.deepEqual([exitCode, ok], [0, true]);
  const other = await host.start(["cat"], { tty: true });
  const attached = await host.attach(other.id);
  await attached.stdin.close();
  assert.ok((await within("the end", other.wait())).ok);
});

test("`sh` runs a shell line and returns its output as text and bytes", async () => {
  const { stdoutText, stderrText, terminalText, stdout, ok } = await within("the run", host.sh("echo out | tr a-z A-Z; echo err >&2; printf '\\377'"));
  assert.deepEqual([stdoutText, stderrText, terminalText, ok], ["OUT\n\ufffd", "err\n", "", true]);
  assert.equal(stdout.at(-1), 0xff);
  assert.equal((await within("the run", host.sh("cat", { input: "in" }))).stdoutText, "in");
});

test("a command that fails is an error with `check` only", async () => {
  assert.equal((await within("the run", host.sh("exit 3"))).exitCode, 3);
  const failed = await within("the failure", host.sh("echo progress; echo no space >&2; exit 3", { check: true }).catch((error: unknown) => error));
  assert.ok(failed instanceof CommandFailedError && failed.mayHaveHappened && !failed.isRetryable, String(failed));
  assert.deepEqual([failed.output.exitCode, failed.output.stdoutText], [3, "progress\n"]);
  assert.equal(failed.message, "`sh -c echo progress; echo no space >&2; exit 3` failed with exit code 3: no space");
  const killed = host.run(["sh", "-c", "kill -9 $$"], { check: true });
  await assert.rejects(within("the failure", killed), /failed with signal SIGKILL/);
  assert.ok((await within("the run", host.sh("true", { check: true }))).ok);
});

test("`attachOrStart` starts a process only once", async () => {
  const other = await connect(server.url, { session: "build" });
  try {
    const command = ["sh", "-c", "echo started; cat"];
    const both = Promise.all([1, 2].map(() => other.attachOrStart("build", command, { stdin: "pipe" })));
    const [first, second] = await within("the process", both);
    assert.equal(first!.id, second!.id);
    for (const handle of [first!, second!]) await within("its output", handle.waitFor("started\n"));
    first!.detach();
    second!.detach();
    const again = await within("the process", other.attachOrStart("build", command, { stdin: "pipe" }));
    await again.stdin.write("more\n");
    assert.equal((await within("its output", again.waitFor("more\n"))).before, "started\n");
    await again.stdin.close();
    assert.equal((await within("the exit", again.wait())).exitCode, 0);
    assert.equal((await other.processes()).length, 1);
  } finally {
    await other.end();
  }
});

test("`await using` ends a new session without a name, and closes others", async () => {
  const ids: string[] = [];
  {
    await using unnamed = await connect(server.url);
    await using named = await connect(server.url, { session: "kept" });
    await using resumed = await connect(server.url, { session: resume(named.sessionId, { takeover: true }) });
    ids.push(unnamed.sessionId, resumed.sessionId);
    assert.equal(resumed.sessionId, named.sessionId);
    for (const each of [unnamed, resumed]) await each.start(["sleep", "1000"]);
  }
  const left = (await host.sessions()).map(({ sessionId }) => sessionId);
  assert.deepEqual(ids.map((id) => left.includes(id)), [false, true]);
  const kept = await connect(server.url, { session: "kept" });
  assert.equal(kept.sessionId, ids[1]);
  await kept.end();
});
