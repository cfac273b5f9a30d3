// Restarting processes: with the real server, across disconnects, and with a server that a test plays.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { AFTER_EVERYTHING } from "../src/event-queue.js";
import { RefusedError, RequestInterruptedError, RestartedError, UsageError, connect } from "../src/index.js";
import type { LocalHost, Process } from "../src/index.js";
import { FaultProxy, randomFrom } from "./fault-proxy.js";
import { RemexServer, ScriptedServer, TemporaryDirectory, welcome, within } from "./server.js";
import type { Message, ScriptedConnection } from "./server.js";

let server: RemexServer;
let host: LocalHost;
before(async () => {
  server = await RemexServer.start(["ws://127.0.0.1:0"]);
  host = await connect(server.url);
});
after(async () => {
  await host.end();
  await server[Symbol.asyncDispose]();
});

function restarted(process: Process, graceMs?: number): Promise<Process> {
  return within("the restart", process.restart({ graceMs }));
}

function isRefused(kind: string): (error: unknown) => boolean {
  return (error) => error instanceof RefusedError && error.kind === kind;
}

test("a restarted process runs as it was started, and its old handle ends with it", async () => {
  const script = 'trap "echo bye; exit 3" TERM; echo "$GREETING $PWD $1"; while :; do sleep 0.01; done';
  const options = { id: "web", cwd: "/", env: { GREETING: "hello" }, labels: { team: "web" }, restartable: true };
  const first = await host.start(["sh", "-c", script, "sh", "word"], options);
  await within("its output", first.waitFor("hello / word\n"));
  const second = await restarted(first, 60_000);
  assert.equal(second.id, "web");
  assert.notEqual(second.pid, first.pid);
  await within("its output", second.waitFor("hello / word\n"));
  assert.equal((await within("the exit", first.wait())).exitCode, 3);
  assert.deepEqual((await second.info())!.labels, { team: "web" });
  // Nothing that concerns the old handle ends the new process.
  await first[Symbol.asyncDispose]();
  assert.equal((await second.info())!.state, "running");
  const third = await restarted(second, 0);
  assert.equal((await within("the exit", second.wait())).signal, "SIGKILL");
  await within("its output", third.waitFor("word\n"));
  await third.kill();
  assert.equal((await within("the output", third.collect())).stdoutText, "hello / word\n");
});

test("the output of a process stays readable when it is restarted", async () => {
  const first = await host.start(["sh", "-c", "echo $$; exec sleep 1000"], { restartable: true });
  const second = await restarted(first);
  assert.equal((await within("the output", first.collect())).stdoutText, `${first.pid}\n`);
  await within("the output", second.waitFor(`${second.pid}\n`));
  await second.kill();
});

test("output that the server has not sent yet when a process is restarted comes to the old handle", async () => {
  // More than the server sends ahead of a reader, and as many bytes.
  const [last, bytes] = [100_000, 588_895];
  const first = await host.start(["sh", "-c", `seq 1 ${last}; exec sleep 1000`], { restartable: true });
  const deadline = performance.now() + 20_000;
  while ((await first.info())!.produced.stdout !== bytes) assert.ok(performance.now() < deadline, "waited 20000 ms for the output");
  const second = await restarted(first, 0);
  await within("the new output", second.waitFor(`\n${last}\n`));
  const { stdout, signal } = await within("the old output", first.collect());
  assert.deepEqual([stdout.length, signal], [bytes, "SIGKILL"]);
  await second.kill();
});

test("each of three processes has its own output, also if it is read late", async () => {
  const first = await host.start(["sh", "-c", "echo $$; seq 1 100000; exec sleep 1000"], { restartable: true });
  const processes = [first];
  for (let restarts = 0; ; restarts++) {
    const newest = processes.at(-1)!;
    const deadline = performance.now() + 20_000;
    while ((await newest.info())!.produced.stdout < 588_895) assert.ok(performance.now() < deadline, "waited 20000 ms for the output");
    if (restarts === 2) break;
    processes.push(await restarted(newest, 0));
  }
  const outputs = processes.map((process) => process.collect());
  await processes.at(-1)!.kill();
  for (const [index, process] of processes.entries()) {
    const { stdoutText, signal } = await within("the output", outputs[index]!);
    assert.equal(signal, "SIGKILL");
    assert.equal(stdoutText.split("\n", 1)[0], String(process.pid));
    assert.equal(stdoutText.length, 588_895 + `${process.pid}\n`.length);
  }
});

test("a new handle gets nothing of a process before restarts that nobody followed", async () => {
  const first = await host.start(["sh", "-c", "echo $$; seq 1 100000; exec sleep 1000"], { id: "unfollowed", restartable: true });
  await within("its output", first.waitFor("\n100000\n"));
  first.detach();
  const between = await restarted(await host.attach("unfollowed"), 0);
  between.detach();
  const newest = await restarted(await host.attach("unfollowed"), 0);
  await within("its output", newest.waitFor("\n100000\n"));
  await newest.kill();
  const { stdoutText, signal } = await within("the output", newest.collect());
  assert.deepEqual([stdoutText.split("\n", 1)[0], signal], [String(newest.pid), "SIGKILL"]);
});

test("a process that has ended is restarted, also on a terminal", async () => {
  const size = await host.start(["stty", "size"], { tty: { rows: 7, cols: 33 }, restartable: true });
  assert.equal((await within("the output", size.collect())).terminalText, "7 33\r\n");
  const again = await restarted(size);
  assert.equal((await within("the output", again.collect())).terminalText, "7 33\r\n");
  const typed = await host.start(["cat"], { tty: true, restartable: true });
  const other = await restarted(typed, 0);
  // A handle that took it for a pipe would close the input instead of typing the key.
  await other.stdin.close();
  assert.equal((await within("the exit", other.wait())).exitCode, 0);
});

test("a command is run again when it ends", async () => {
  await using scratch = await TemporaryDirectory.make();
  const script = "echo >> runs; n=$(wc -l < runs); echo run $n; [ $n = 3 ]";
  const done = host.sh(script, { cwd: scratch.path, restart: { policy: "onFailure", maxRestarts: 5 } });
  const { stdoutText, stderrText, exitCode } = await within("the run that succeeds", done);
  assert.deepEqual([stdoutText, exitCode], ["run 1\nrun 2\nrun 3\n", 0]);
  assert.equal(stderrText.match(/restarting in/g)?.length, 2, stderrText);
  const always = await within("the last run", host.sh("echo again", { restart: { policy: "always", maxRestarts: 1 } }));
  assert.equal(always.stdoutText, "again\nagain\n");
  await assert.rejects(host.start(["true"], { restart: { policy: "sometimes" as "always" } }), (error) => error instanceof RefusedError && /sometimes/.test(error.message));
  await assert.rejects(host.start(["true"], { restart: { policy: "always", maxRestarts: -1 } }), UsageError);
  await using old = await ScriptedServer.listen(({ id, method }, connection) => {
    if (id !== undefined) connection.send({ id, result: method === "initialize" ? welcome("s", false) : {} });
  });
  await using without = await connect(old.url);
  await assert.rejects(without.start(["true"], { restart: { policy: "always" } }), UsageError);
});

test("only what was started for it is restarted, and nothing ends otherwise", async () => {
  await using plain = await host.start(["sleep", "1000"]);
  await assert.rejects(restarted(plain), isRefused("notSupported"));
  for (const graceMs of [-1, Number.NaN]) await assert.rejects(restarted(plain, graceMs), UsageError);
  assert.equal((await plain.info())!.state, "running");
});

test("a process of another session is restarted once its client has left", async () => {
  const owner = await connect(server.url, { detachTtlMs: 60_000 });
  const first = await owner.start(["sh", "-c", "echo $$; exec sleep 1000"], { restartable: true });
  const reference = await host.attach(first.id, { sessionId: owner.sessionId });
  await assert.rejects(restarted(reference), isRefused("sessionAttached"));
  await owner.close();
  const again = await restarted(reference);
  assert.ok(again.pid !== undefined && again.pid !== first.pid && again.sessionId === owner.sessionId);
  await within("its output", again.waitFor(`${again.pid}\n`));
  await host.endSession(owner.sessionId);
});

test("each restart happens once across disconnects, and its handle has all of the output", async () => {
  // Most of the time is spent waiting before reconnects.
  await Promise.all([1, 2, 3].map(async (seed) => {
    await using scratch = await TemporaryDirectory.make();
    const started = join(scratch.path, "started");
    const random = randomFrom(seed);
    let left = 8;
    await using proxy = await FaultProxy.start(server.url, () => (left-- > 0 ? { afterBytes: 1500 + Math.floor(random() * 30_000), kind: "cut" } : undefined));
    const far = await within("a connection", connect(proxy.url, { connectRetryMs: 20_000, detachTtlMs: 60_000 }), 30_000);
    const numbers = Array.from({ length: 3000 }, (_, index) => `${index + 1}\n`).join("");
    let process = await far.start(["sh", "-c", `echo >> ${started}; seq 1 3000; exec sleep 1000`], { restartable: true, overflow: "hold" });
    for (let round = 1; round <= 5; round++) {
      if (round > 1) process = await within("the restart", process.restart({ graceMs: 0 }), 60_000);
      let output = "";
      for await (const { bytes } of process.output()) if ((output += Buffer.from(bytes).toString()).length >= numbers.length) break;
      assert.ok(output === numbers, `${output.length} bytes instead of ${numbers.length} in round ${round} of seed ${seed}`);
      assert.equal((await readFile(started, "utf8")).length, round, `seed ${seed}`);
    }
    assert.ok(far.disconnects > 0, "nothing went wrong");
    await far.end();
  }));
});

/** Plays a server with one process, and leaves its restart to a test. */
function playing(onRestart: (id: unknown, connection: ScriptedConnection, round: number) => void): Promise<ScriptedServer> {
  let round = 0;
  return ScriptedServer.listen(({ id, method, params }, connection) => {
    if (method === "initialize") connection.send({ id, result: welcome("s", ++round > 1) });
    else if (method === "process/restart") onRestart(id, connection, round);
    else if (method === "session/end") connection.send({ id, result: {} });
    else if (method === "process/start") {
      connection.send({ id, result: { pid: 1, processId: params.processId, replayed: false } });
      for (const seq of [1, 2, 3]) connection.send(output(params.processId, seq, "old"));
    } else if (method === "process/read") {
      // After a disconnect everything is read that the process has written.
      const chunks = [1, 2, 3, 4, 5].filter((seq) => seq > params.afterSeq).map((seq) => ({ seq, stream: "stdout", chunk: base64("new") }));
      connection.send({ id, result: { chunks, nextSeq: 6, exited: false, closed: false } });
    }
  });
}

function base64(text: string): string {
  return Buffer.from(text).toString("base64");
}

function output(processId: string, seq: number, text: string): Message {
  return { method: "process/output", params: { processId, seq, stream: "stdout", chunk: base64(text) } };
}

/** Returns what the next events have. */
async function next(process: Process, count: number): Promise<string[]> {
  const texts: string[] = [];
  for await (const { bytes } of process.output()) if (texts.push(Buffer.from(bytes).toString()) === count) break;
  return texts;
}

/** Returns what all further events have, up to the end of a handle whose process was restarted. */
async function rest(process: Process): Promise<string[]> {
  const texts: string[] = [];
  await assert.rejects(async () => {
    for await (const { bytes } of process.output()) texts.push(Buffer.from(bytes).toString());
  }, RestartedError);
  return texts;
}

test("output of the new process never gets to the old handle", async () => {
  await using server = await playing((id, connection) => {
    // In one piece, so that nothing can happen between the answer and what follows it.
    const events = [1, 2, 3, 4, 5].map((seq) => output("p", seq, "new"));
    const messages = [{ id, result: { pid: 2, processId: "p", replayed: false } }, ...events];
    connection.send(messages.map((message) => JSON.stringify(message)).join("\n"));
  });
  const host = await connect(server.url);
  const first = await host.start(["x"], { id: "p" });
  const second = await restarted(first);
  assert.deepEqual(await within("the new output", next(second, 5)), Array(5).fill("new"));
  assert.deepEqual(await within("the old output", rest(first)), Array(3).fill("old"));
  await host.end();
});

test("a restart is repeated with its id after a disconnect, and its outcome decides whose output it is", async () => {
  for (const outcome of ["carried out", "refused"]) {
    await using server = await playing((id, connection, round) => {
      if (round === 1) return connection.disconnect();
      for (const seq of [4, 5]) connection.send(output("p", seq, "new"));
      const result = { pid: 2, processId: "p", replayed: true };
      connection.send(outcome === "refused" ? { id, error: { code: -32600, message: "no" } } : { id, result });
    });
    const host = await connect(server.url);
    const first = await host.start(["x"], { id: "p" });
    const again = restarted(first);
    if (outcome === "refused") {
      await assert.rejects(again, RefusedError);
      // It is the same process, which has written more.
      assert.deepEqual(await within("its output", next(first, 5)), ["old", "old", "old", "new", "new"]);
    } else {
      assert.deepEqual(await within("the new output", next(await again, 5)), Array(5).fill("new"));
      assert.deepEqual(await within("the old output", rest(first)), Array(3).fill("old"));
      await first[Symbol.asyncDispose]();
      assert.ok(!server.received.some(({ method }) => method === "process/terminate"), "the new process was ended");
    }
    const ids = server.received.filter(({ method }) => method === "process/restart").map(({ params }) => params.restartId);
    assert.ok(ids.length === 2 && ids[0] === ids[1] && typeof ids[0] === "string", String(ids));
    await host.end();
  }
});

test("an aborted restart is left to the server", async () => {
  let answer: (() => void) | undefined;
  await using server = await playing((id, connection) => {
    answer = () => connection.send(`${JSON.stringify({ id, result: { pid: 2, processId: "p", replayed: false } })}\n${JSON.stringify(output("p", 4, "new"))}`);
  });
  const host = await connect(server.url);
  const first = await host.start(["x"], { id: "p" });
  const controller = new AbortController();
  const again = first.restart({ signal: controller.signal });
  await server.until("the restart", ({ method }) => method === "process/restart");
  const reason = new Error("enough");
  controller.abort(reason);
  await assert.rejects(within("the abort", again), reason);
  answer!();
  await assert.rejects(within("the end of the old handle", first.collect()), RestartedError);
  assert.ok(!server.received.some(({ method }) => method === "request/cancel"));
  await host.end();
});

test("a restart without incarnations that is aborted while the connection is lost ends the handle, and blocks nothing", async () => {
  await using server = await playing((_, connection) => connection.disconnect());
  const host = await connect(server.url);
  const first = await host.start(["x"], { id: "p" });
  const controller = new AbortController();
  const again = first.restart({ signal: controller.signal });
  host.onStateChange((state) => state === "reconnecting" && controller.abort(new Error("enough")));
  await assert.rejects(within("the abort", again), /enough/);
  await assert.rejects(within("the end of the old handle", first.collect()), RequestInterruptedError);
  await server.until("a report of everything", ({ method, params }) => method === "flow/consumed" && params.seq === AFTER_EVERYTHING);
  await host.end();
});

test("the name of the own session stands for it when a process is attached and restarted", async () => {
  const named = await connect(server.url, { session: "own" });
  const first = await named.start(["sh", "-c", "echo $$; exec sleep 1000"], { id: "p", restartable: true });
  await within("its output", first.waitFor(`${first.pid}\n`));
  const attached = await named.attach("p", { sessionId: "own" });
  assert.equal(attached.sessionId, undefined);
  const second = await restarted(attached, 0);
  await within("the output of the new process", second.waitFor(`${second.pid}\n`));
  await assert.rejects(within("a call of the old handle", first.kill()), RestartedError);
  await named.end();
});
