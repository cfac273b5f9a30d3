// The client against a server of the oldest dialect, which has no sessions.
import assert from "node:assert/strict";
import type { ChildProcess } from "node:child_process";
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { pathToFileURL } from "node:url";
import { RefusedError, SessionLostError, UsageError, connect, resume } from "../src/index.js";
import { TemporaryDirectory, remexProgram, repository, within } from "./server.js";

const PROGRAM = join(repository, "scripts", "oldest", "server");

/** Starts a server of the oldest dialect, and returns its URL. */
async function start(where: string): Promise<{ url: string; child: ChildProcess }> {
  const child = spawn(PROGRAM, [remexProgram(), where], { stdio: ["ignore", "pipe", "inherit"] });
  const url = await within("the address of the server", new Promise<string>((done) => {
    child.stdout.setEncoding("utf8").once("data", (text: string) => done(text.trim()));
  }));
  return { url, child };
}

async function check(target: string | string[], directory: string): Promise<void> {
  await using host = await within("a connection", connect(target));
  assert.equal(host.sessionId, "");
  const done = await within("a run", host.run(["sh", "-c", "echo out; echo err >&2; exit 3"]));
  assert.deepEqual([done.stdoutText, done.stderrText, done.exitCode], ["out\n", "err\n", 3]);
  const much = await within("much output", host.run(["head", "-c", "1000000", "/dev/zero"]));
  assert.equal(much.stdout.length, 1_000_000);

  const running = await host.start(["sh", "-c", "read line; echo got $line; exec sleep 1000"], { stdin: "pipe" });
  await within("a write", running.stdin!.write("this\n"));
  for await (const line of running.lines()) {
    assert.equal(line.text, "got this");
    break;
  }
  await running.kill();
  assert.equal((await within("the exit", running.wait())).exitCode, 137);
  await assert.rejects(host.processes(), (error: unknown) => error instanceof RefusedError && /does not implement/.test(error.message));

  const made = join(directory, "made here");
  await host.files.mkdir(made);
  await host.files.write(`${pathToFileURL(made).href}/file`, "content");
  assert.equal(readFileSync(join(made, "file"), "utf8"), "content");
  assert.equal(new TextDecoder().decode(await host.files.read(join(made, "file"))), "content");
  assert.equal((await host.files.metadata(made)).isDirectory, true);
}

test("the oldest dialect over stdio", async () => {
  await using directory = await TemporaryDirectory.make();
  await check([PROGRAM, remexProgram(), "stdio"], directory.path);
});

test("the oldest dialect over a unix socket", async () => {
  await using directory = await TemporaryDirectory.make();
  const { url, child } = await start(`unix:${join(directory.path, "s")}`);
  await check(url, directory.path).finally(() => child.kill());
});

test("the oldest dialect over a WebSocket", async () => {
  await using directory = await TemporaryDirectory.make();
  const { url, child } = await start("ws");
  await check(url, directory.path).finally(() => child.kill());
});

test("features that need a session fail with the reason in the oldest dialect", async () => {
  const { url, child } = await start("ws");
  const hasNone = /the oldest dialect has no sessions/;
  await assert.rejects(connect(url, { session: resume("s") }), (error: unknown) => error instanceof UsageError && hasNone.test(error.message));
  await using host = await within("a connection", connect(url));
  const process = await host.start(["sleep", "1000"]);
  child.kill("SIGKILL");
  const lost = (error: unknown): boolean => error instanceof SessionLostError && error.reason === "notResumable" && hasNone.test(error.message);
  await assert.rejects(within("the loss", process.wait()), lost);
});
