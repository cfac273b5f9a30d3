// Processes that were restarted while the client was away: nothing takes the new one for the one before.
import assert from "node:assert/strict";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";
import { AFTER_EVERYTHING } from "../src/event-queue.js";
import { ProtocolError, RefusedError, RestartedError, connect } from "../src/index.js";
import type { Process } from "../src/index.js";
import { FaultProxy } from "./fault-proxy.js";
import { RemexServer, ScriptedServer, TemporaryDirectory, welcome, within } from "./server.js";
import type { Message, ScriptedConnection } from "./server.js";

const OLD = 7;
const NEW = 8;

/** What a server says to a request for the process before a restart. */
const RESTARTED = { code: -32600, message: "process `p` was restarted", data: { kind: "unknownProcess", restarted: true, hint: "omit it" } };

/** Output of a process; if that can be restarted, it names the incarnation. */
function output(seq: number, text: string, incarnation?: number): Message {
  return { method: "process/output", params: { processId: "p", incarnation, seq, stream: "stdout", chunk: Buffer.from(text).toString("base64") } };
}

function readReply(texts: readonly string[], { afterSeq }: Message, isClosed = false): Message {
  const chunks = texts.map((text, index) => ({ seq: index + 1, stream: "stdout", chunk: Buffer.from(text).toString("base64") }));
  const end = isClosed ? { exited: true, exitCode: 0, closed: true } : { exited: false, closed: false };
  return { ...end, chunks: chunks.filter(({ seq }) => seq > afterSeq), nextSeq: texts.length + (isClosed ? 3 : 1) };
}

/** Plays a server with the process `p`, which has another incarnation after the first disconnect. */
class Played implements AsyncDisposable {
  round = 0;
  connection: ScriptedConnection | undefined;
  /** What the list says, if it is not the truth. */
  readonly lists: number[] = [];
  private constructor(readonly server: ScriptedServer) {}

  static async start(answer?: (message: Message, played: Played) => boolean): Promise<Played> {
    const server = await ScriptedServer.listen((message, connection) => played.#on(message, connection, answer));
    const played = new Played(server);
    return played;
  }

  get incarnation(): number {
    return this.round > 1 ? NEW : OLD;
  }

  requests(method: string): Message[] {
    return this.server.received.filter((message) => message["method"] === method).map(({ params }) => params);
  }

  #on(message: Message, connection: ScriptedConnection, answer: ((message: Message, played: Played) => boolean) | undefined): void {
    const { id, method, params } = message;
    const { incarnation } = this;
    if (method === "initialize") {
      this.connection = connection;
      return connection.send({ id, result: welcome("s", ++this.round > 1) });
    }
    if (answer?.(message, this) || id === undefined) return;
    if (params.incarnation !== undefined && params.incarnation !== incarnation) return connection.send({ id, error: RESTARTED });
    const listed = this.lists.shift() ?? incarnation;
    const results: Record<string, Message> = {
      "process/start": { processId: "p", pid: 1, incarnation, replayed: false },
      "process/restart": { processId: "p", pid: 2, incarnation, replayed: false },
      "process/read": { ...readReply(incarnation === OLD ? ["old"] : ["new", "new"], params), incarnation },
      "process/list": { processes: [{ processId: "p", pid: listed, tty: false, incarnation: listed }] },
      "process/write": { status: "accepted", accepted: true },
    };
    connection.send({ id, result: results[method] ?? {} });
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.server[Symbol.asyncDispose]();
  }
}

async function next(events: AsyncIterator<{ bytes: Uint8Array }>): Promise<string> {
  const { value } = await within("output", events.next());
  return Buffer.from(value.bytes).toString();
}

async function allRestarted(calls: Record<string, Promise<unknown>>): Promise<void> {
  await Promise.all(Object.entries(calls).map(([what, call]) => assert.rejects(within(what, call), RestartedError, what)));
}

test("a client that was away during a restart gets nothing of the new process", async () => {
  await using played = await Played.start(({ method }, { round, connection }) => {
    if (method === "process/start") queueMicrotask(() => connection!.send(output(1, "old")));
    // Before the client can know: the numbers go on where those of the old process ended.
    if (method === "initialized" && round > 1) for (const seq of [1, 2]) connection!.send(output(seq, "new"));
    return false;
  });
  const host = await connect(played.server.url);
  const process = await host.start(["x"], { id: "p", stdin: "pipe" });
  const events = process.output();
  assert.equal(await next(events), "old");
  const waits = { wait: process.wait(), collect: process.collect(), silence: process.waitForSilence(3_600_000) };
  const more = events.next();
  played.connection!.disconnect();
  await allRestarted({ more, ...waits });
  await allRestarted({
    write: process.stdin.write("x"), close: process.stdin.close(), signal: process.signal("HUP"), terminate: process.terminate(),
    kill: process.kill(), resize: process.resize({ rows: 1, cols: 1 }), seek: process.seek({ offset: 0 }), snapshot: process.snapshot(),
    read: process.read(), release: process.release(), forget: process.forget(), restart: process.restart(), wait: process.wait(),
  });
  const error = await process.kill().catch((error: unknown) => error);
  assert.ok(error instanceof RefusedError && error.kind === "unknownProcess" && /attach/.test(error.hint!), String(error));
  assert.equal(await process.info(), undefined);
  // The new process does not wait for the old handle.
  await reported(played, AFTER_EVERYTHING, NEW);

  const again = await host.attach("p");
  assert.deepEqual([again.incarnation, again.pid], [NEW, NEW]);
  const fresh = again.output();
  assert.deepEqual([await next(fresh), await next(fresh)], ["new", "new"]);
  await again.kill();
  await played.server.until("the report", ({ method, params }) => method === "flow/consumed" && params.incarnation === NEW && params.seq === 2);
  // The end of the scope of the old handle ends nothing.
  const kills = played.requests("process/terminate").length;
  await process[Symbol.asyncDispose]();
  assert.equal(played.requests("process/terminate").length, kills);
  for (const message of played.server.received) {
    const { method, params } = message;
    // What is asked about the process that nobody follows is about whichever runs.
    if (/^process\/(?!start|list)/.test(method) && params.afterSeq !== AFTER_EVERYTHING) assert.ok([OLD, NEW].includes(params.incarnation), JSON.stringify(message));
  }
  await host.end();
});

test("what is streamed after a disconnect waits until a read has confirmed the process", async () => {
  let unanswered: number | undefined;
  await using played = await Played.start(({ id, method }, { round, connection }) => {
    if (method === "process/start") queueMicrotask(() => connection!.send(output(1, "one")));
    if (method === "initialized" && round > 1) connection!.send(output(2, "two"));
    if (method === "process/read") unanswered = id;
    return method === "process/read";
  });
  const host = await connect(played.server.url);
  const process = await host.start(["x"], { id: "p" });
  const events = process.output();
  assert.equal(await next(events), "one");
  played.connection!.disconnect();
  const read = await played.server.until("the read", ({ method }) => method === "process/read");
  assert.deepEqual([read["params"].incarnation, read["params"].afterSeq], [OLD, 1]);
  let given = 0;
  const more = next(events).finally(() => (given += 1));
  // The first answer comes after what was streamed, and the second one after that would have been given.
  for (const count of ["an answer", "another answer"]) await within(count, host.call("environment/status", {}));
  assert.equal(given, 0, "an event of an unknown process was given");
  played.connection!.send({ id: unanswered, result: readReply(["one", "two"], { afterSeq: 1 }) });
  assert.equal(await more, "two");
  // From here on nothing waits.
  played.connection!.send(output(3, "three"));
  assert.equal(await next(events), "three");
  await host.end();
});

test("attaching is to the process that runs now, while an old handle keeps what it has", async () => {
  await using played = await Played.start(({ method }, { connection }) => {
    if (method !== "process/start") return false;
    queueMicrotask(() => {
      connection!.send(output(1, "old"));
      connection!.send({ method: "process/exited", params: { processId: "p", seq: 2, exitCode: 3 } });
      connection!.send({ method: "process/closed", params: { processId: "p", seq: 3 } });
    });
    return false;
  });
  const host = await connect(played.server.url);
  const first = await host.start(["x"], { id: "p" });
  await within("an answer", host.call("environment/status", {}));
  const disconnected = new Promise<void>((done) => host.onStateChange((state) => state === "connected" && done()));
  played.connection!.disconnect();
  await within("a reconnect", disconnected);
  const second = await host.attach("p");
  assert.equal(second.incarnation, NEW);
  const { stdoutText, exitCode } = await within("the old output", first.collect());
  assert.deepEqual([stdoutText, exitCode], ["old", 3]);
  assert.equal(await next(second.output()), "new");
  // A list from before the restart does not mislead.
  played.lists.push(OLD);
  const third = await host.attach("p");
  assert.deepEqual([third.incarnation, third.pid], [NEW, NEW]);
  assert.equal(await next(third.output()), "new");
  await host.end();
});

test("the rest of a process that this client restarts itself comes to its handle, and only then the new one", async () => {
  for (const reader of ["reads", "has not begun", "has left"]) {
    await using played = await Played.start(({ id, method }, { connection }) => {
      if (method === "process/start") queueMicrotask(() => connection!.send(output(1, "old", OLD)));
      if (method === "process/restart") connection!.send({ id, result: { processId: "p", pid: 2, incarnation: NEW, replayed: false } });
      return method === "process/restart";
    });
    const host = await connect(played.server.url);
    const first = await host.start(["x"], { id: "p" });
    const collected = reader === "reads" ? first.collect() : undefined;
    const second = await within("the restart", first.restart());
    if (reader === "has left") first.detach();
    const reports = (): Message[] => played.requests("flow/consumed").map(({ seq, incarnation }) => ({ seq, incarnation }));
    for (const seq of [2, 3]) {
      played.connection!.send(output(seq, "old", OLD));
      await played.server.until(`a report of ${seq}`, ({ method, params }) => method === "flow/consumed" && params.seq === seq && params.incarnation === OLD);
    }
    played.connection!.send({ method: "process/exited", params: { processId: "p", incarnation: OLD, seq: 4, exitCode: 3 } });
    played.connection!.send({ method: "process/closed", params: { processId: "p", incarnation: OLD, seq: 5 } });
    played.connection!.send(output(1, "new", NEW));
    assert.equal(await next(second.output()), "new", reader);
    await played.server.until("the report of the new one", ({ method, params }) => method === "flow/consumed" && params.incarnation === NEW);
    assert.deepEqual(reports().filter(({ incarnation }) => incarnation === NEW), [{ seq: 1, incarnation: NEW }]);
    if (reader !== "has left") {
      const { stdoutText, exitCode } = await within("the old output", collected ?? first.collect());
      assert.deepEqual([stdoutText, exitCode], ["oldoldold", 3], reader);
    }
    await host.end();
  }
});

test("the rest of each process before two restarts comes to its own handle", async () => {
  let incarnation = OLD;
  await using played = await Played.start(({ id, method }, { connection }) => {
    if (method === "process/start") queueMicrotask(() => connection!.send(output(1, "old", OLD)));
    if (method === "process/restart") connection!.send({ id, result: { processId: "p", pid: 2, incarnation: ++incarnation, replayed: false } });
    return method === "process/restart";
  });
  const host = await connect(played.server.url);
  const first = await host.start(["x"], { id: "p" });
  const second = await within("the restart", first.restart());
  const third = await within("the restart", second.restart());
  const outputs = [first, second].map((process) => process.collect());
  for (const [of, seq, text, exitCode] of [[OLD, 2, "old", 3], [NEW, 1, "between", 4]] as const) {
    played.connection!.send(output(seq, text, of));
    played.connection!.send({ method: "process/exited", params: { processId: "p", incarnation: of, seq: seq + 1, exitCode } });
    played.connection!.send({ method: "process/closed", params: { processId: "p", incarnation: of, seq: seq + 2 } });
  }
  played.connection!.send(output(1, "new", incarnation));
  assert.equal(await next(third.output()), "new");
  const ended = await within("the output of both", Promise.all(outputs));
  assert.deepEqual(ended.map(({ stdoutText, exitCode }) => [stdoutText, exitCode]), [["oldold", 3], ["between", 4]]);
  await host.end();
});

test("whoever gives up the new process does not consume the rest of the one before", async () => {
  await using played = await Played.start(({ id, method }, { connection }) => {
    if (method === "process/restart") connection!.send({ id, result: { processId: "p", pid: 2, incarnation: NEW, replayed: false } });
    return method === "process/restart";
  });
  const host = await connect(played.server.url);
  const first = await host.start(["x"], { id: "p" });
  const second = await within("the restart", first.restart());
  second.detach();
  const { params } = await played.server.until("the report", ({ method }) => method === "flow/consumed");
  assert.equal(params.incarnation, NEW);
  played.connection!.send(output(1, "old", OLD));
  assert.equal(await next(first.output()), "old");
  await host.end();
});

/** Waits for a report of how far a start of the process is consumed. */
function reported(played: Played, seq: number, incarnation: number | undefined): Promise<Message> {
  const isIt = ({ method, params }: Message): boolean => method === "flow/consumed" && params.seq === seq && params.incarnation === incarnation;
  return played.server.until(`a report of ${seq} of ${incarnation}`, isIt);
}

/** Output that cannot be decoded. */
function invalid(incarnation: number): Message {
  return { method: "process/output", params: { processId: "p", incarnation, seq: 2, stream: "stdout", chunk: "?" } };
}

test("a queue that cannot go on has consumed all of its start, and nothing of another one", async () => {
  await using played = await Played.start(({ id, method }, { connection }) => {
    if (method === "process/start") queueMicrotask(() => connection!.send(output(1, "old", OLD)));
    if (method === "process/restart") connection!.send({ id, result: { processId: "p", pid: 2, incarnation: NEW, replayed: false } });
    return method === "process/restart";
  });
  const host = await connect(played.server.url);
  const first = await host.start(["x"], { id: "p" });
  const events = first.output();
  assert.equal(await next(events), "old");
  const second = await within("the restart", first.restart());
  played.connection!.send(invalid(OLD));
  await assert.rejects(within("the end", events.next()), ProtocolError);
  await reported(played, AFTER_EVERYTHING, OLD);
  played.connection!.send(output(3, "rest", OLD));
  await reported(played, 3, OLD);
  played.connection!.send(output(1, "new", NEW));
  assert.equal(await next(second.output()), "new");
  // The same for one that nobody follows.
  played.connection!.send(invalid(NEW + 1));
  await reported(played, AFTER_EVERYTHING, NEW + 1);
  assert.ok(!played.requests("flow/consumed").some(({ seq, incarnation }) => seq !== 1 && incarnation === NEW));
  await host.end();
});

test("a detached handle consumes its own start, also after the close of another one, and later whichever runs", async () => {
  await using played = await Played.start();
  const host = await connect(played.server.url);
  const process = await host.start(["x"], { id: "p" });
  process.detach();
  await reported(played, AFTER_EVERYTHING, OLD);
  played.connection!.send({ method: "process/closed", params: { processId: "p", incarnation: NEW, seq: 2 } });
  await within("an answer behind that", host.call("environment/status", {}));
  played.connection!.disconnect();
  await reported(played, AFTER_EVERYTHING, NEW);
  await host.end();
});

test("`attachOrStart` takes nothing of a process that exists before it is attached, and starts one that does not", async () => {
  let exists = true;
  await using played = await Played.start(({ id, method }, { connection }) => {
    if (method === "process/list" && !exists) connection!.send({ id, result: { processes: [] } });
    return method === "process/list" && !exists;
  });
  const host = await connect(played.server.url);
  const process = await within("a handle", host.attachOrStart("p", ["x"]));
  assert.equal(await next(process.output()), "old");
  assert.deepEqual(played.requests("process/start"), []);
  exists = false;
  assert.equal((await within("another handle", host.attachOrStart("q", ["x"]))).id, "q");
  assert.equal(played.requests("process/start").length, 1);
  await host.end();
});

test("a failed handle holds up no process that was restarted while its client was away", async () => {
  await using played = await Played.start();
  const host = await connect(played.server.url);
  const process = await host.start(["x"], { id: "p" });
  played.connection!.send(invalid(OLD));
  await assert.rejects(within("the end", process.output().next()), ProtocolError);
  played.connection!.disconnect();
  await reported(played, AFTER_EVERYTHING, NEW);
  const again = await within("a handle", host.attach("p"));
  assert.equal(again.incarnation, NEW);
  assert.equal(await next(again.output()), "new");
  await host.end();
});

test("a full handle holds up no process that was restarted while its client was away", async () => {
  await using played = await Played.start();
  const host = await connect(played.server.url);
  const process = await host.start(["x"], { id: "p" });
  // More than what makes room for a read.
  played.connection!.send(output(1, "x".repeat(600_000), OLD));
  await within("an answer behind that", host.call("environment/status", {}));
  played.connection!.disconnect();
  await reported(played, AFTER_EVERYTHING, NEW);
  const events = process.output();
  assert.equal((await next(events)).length, 600_000);
  await assert.rejects(within("the end", events.next()), RestartedError);
  await host.end();
});

test("the answer to a read that names another start gives nothing to the handle", async () => {
  await using played = await Played.start(({ id, method, params }, { connection, round }) => {
    const isAnswered = method === "process/read" && round > 1 && params.incarnation === OLD;
    if (isAnswered) connection!.send({ id, result: { ...readReply(["new", "new"], params), incarnation: NEW } });
    return isAnswered;
  });
  const host = await connect(played.server.url);
  const process = await host.start(["x"], { id: "p" });
  const events = process.output();
  played.connection!.disconnect();
  await assert.rejects(within("the end", events.next()), RestartedError);
  await reported(played, AFTER_EVERYTHING, NEW);
  await host.end();
});

test("an aborted restart leaves the new process to others that have restarted it", async () => {
  const ids: unknown[] = [];
  await using played = await Played.start(({ id, method }) => {
    if (method === "process/restart") ids.push(id);
    return method === "process/restart";
  });
  const host = await connect(played.server.url);
  const first = await host.start(["x"], { id: "p" });
  const controller = new AbortController();
  const aborted = first.restart({ signal: controller.signal });
  const again = first.restart();
  await played.server.until("both restarts", () => ids.length === 2);
  controller.abort(new Error("enough"));
  await assert.rejects(within("the abort", aborted), /enough/);
  const answers = ids.map((id) => ({ id, result: { processId: "p", pid: 2, incarnation: NEW, replayed: false } }));
  played.connection!.send(answers.map((answer) => JSON.stringify(answer)).join("\n"));
  const second = await within("the restart", again);
  const events = second.output();
  played.connection!.send(output(1, "new", NEW));
  assert.equal(await next(events), "new");
  second.detach();
  await reported(played, AFTER_EVERYTHING, NEW);
  await host.end();
});

test("a restart that is aborted while the connection is lost leaves a handle that finds out which process runs", async () => {
  for (const outcome of ["restarted", "the same"]) {
    await using played = await Played.start(({ id, method, params }, { connection, round }) => {
      if (method === "process/start") queueMicrotask(() => connection!.send(output(1, "old", OLD)));
      const isRead = method === "process/read" && round > 1 && outcome === "the same";
      if (isRead) connection!.send({ id, result: { ...readReply(["old", "more"], params), incarnation: OLD } });
      return isRead || method === "process/restart";
    });
    const host = await connect(played.server.url);
    const first = await host.start(["x"], { id: "p" });
    const events = first.output();
    assert.equal(await next(events), "old");
    const controller = new AbortController();
    const again = first.restart({ signal: controller.signal });
    await played.server.until("the restart", ({ method }) => method === "process/restart");
    host.onStateChange((state) => state === "reconnecting" && controller.abort(new Error("enough")));
    played.connection!.disconnect();
    await assert.rejects(within("the abort", again), /enough/);
    if (outcome === "restarted") {
      await assert.rejects(within("the end", events.next()), RestartedError);
      await reported(played, AFTER_EVERYTHING, NEW);
      assert.equal(await next((await within("a handle", host.attach("p"))).output()), "new");
    } else {
      assert.equal(await next(events), "more");
      played.connection!.send(output(3, "most", OLD));
      assert.equal(await next(events), "most");
    }
    await host.end();
  }
});

/** Waits for that many reports that all of a start is consumed. */
async function skipped(played: Played, times: number, incarnation: number): Promise<void> {
  const are = (): boolean => played.requests("flow/consumed").filter(({ seq, incarnation: of }) => seq === AFTER_EVERYTHING && of === incarnation).length >= times;
  await played.server.until(`${times} reports of ${incarnation}`, are);
}

test("giving up a handle before it is confirmed consumes nothing of the process before a restart", async () => {
  await using played = await Played.start(({ id, method, params }, { connection }) => {
    if (method === "process/restart") connection!.send({ id, result: { processId: "p", pid: 2, incarnation: NEW, replayed: false } });
    const isProbe = method === "process/read" && params.incarnation === undefined;
    if (isProbe) connection!.send({ id, result: { ...readReply(["new"], params), incarnation: NEW } });
    // What would confirm it gets no answer.
    return isProbe || method === "process/restart" || (method === "process/read" && params.incarnation === NEW);
  });
  const host = await connect(played.server.url);
  const first = await host.start(["x"], { id: "p" });
  const second = await within("the restart", first.restart());
  second.detach();
  await skipped(played, 1, NEW);
  played.lists.push(NEW);
  const third = await within("a handle", host.attach("p"));
  third.detach();
  await within("an answer behind that", host.call("environment/status", {}));
  assert.deepEqual(played.requests("flow/consumed").filter(({ incarnation }) => incarnation !== NEW), []);
  await skipped(played, 2, NEW);
  played.connection!.send(output(1, "old", OLD));
  assert.equal(await next(first.output()), "old");
  await host.end();
});

test("a refused start does not hold up the process that has its id and that nobody follows", async () => {
  for (const before of ["given up", "never followed"]) {
    let starts = before === "given up" ? 0 : 1;
    await using played = await Played.start(({ id, method }, { connection }) => {
      if (method !== "process/start" || starts++ === 0) return false;
      connection!.send(output(2, "more", OLD));
      connection!.send({ id, error: { code: -32600, message: "process `p` exists", data: { kind: "processExists" } } });
      return true;
    });
    const host = await connect(played.server.url);
    if (before === "given up") {
      (await host.start(["x"], { id: "p" })).detach();
      await skipped(played, 1, OLD);
    }
    await assert.rejects(within("the refusal", host.start(["x"], { id: "p" })), RefusedError);
    await skipped(played, before === "given up" ? 2 : 1, OLD);
    played.connection!.disconnect();
    await skipped(played, 1, NEW);
    await host.end();
  }
});

test("a handle that has read all holds up no process that was started again while its client was away", async () => {
  await using played = await Played.start(({ method }, { connection }) => {
    if (method !== "process/start") return false;
    queueMicrotask(() => {
      connection!.send(output(1, "old", OLD));
      connection!.send({ method: "process/exited", params: { processId: "p", incarnation: OLD, seq: 2, exitCode: 3 } });
      connection!.send({ method: "process/closed", params: { processId: "p", incarnation: OLD, seq: 3 } });
    });
    return false;
  });
  const host = await connect(played.server.url);
  const process = await host.start(["x"], { id: "p" });
  assert.equal((await within("its output", process.collect())).stdoutText, "old");
  played.connection!.disconnect();
  await reported(played, AFTER_EVERYTHING, NEW);
  assert.equal((await process.wait()).exitCode, 3);
  assert.equal((await within("a handle", host.attach("p"))).incarnation, NEW);
  await host.end();
});

test("the late answer to a restart does not take the place of a later one", async () => {
  const NEWEST = NEW + 1;
  const ids: unknown[] = [];
  await using played = await Played.start(({ id, method, params }, { connection, round }) => {
    if (method === "process/restart") ids.push(id);
    const isRead = method === "process/read" && round > 1;
    if (isRead && params.incarnation === NEWEST) connection!.send({ id, result: { ...readReply(["newest"], params), incarnation: NEWEST } });
    else if (isRead) connection!.send({ id, error: RESTARTED });
    return isRead || method === "process/restart";
  });
  const host = await connect(played.server.url);
  const first = await host.start(["x"], { id: "p" });
  const [restarting, again] = [first.restart(), first.restart()];
  await played.server.until("both restarts", () => ids.length === 2);
  played.connection!.disconnect();
  await played.server.until("both again", () => ids.length === 4);
  for (const [id, incarnation] of [[ids[3], NEWEST], [ids[2], NEW]]) {
    played.connection!.send({ id, result: { processId: "p", pid: incarnation, incarnation, replayed: true } });
  }
  const [late, newest] = await within("both answers", Promise.all([restarting, again]));
  assert.deepEqual([late.incarnation, newest.incarnation], [NEW, NEWEST]);
  const events = newest.output();
  assert.equal(await next(events), "newest");
  played.connection!.send(output(2, "more", NEWEST));
  assert.equal(await next(events), "more");
  await allRestarted({ late: late.output().next() });
  await host.end();
});

/** Restarts a process as soon as the server has noticed that its client is gone. */
async function restartOf(process: Process): Promise<Process> {
  for (;;) {
    try {
      return await process.restart({ graceMs: 0 });
    } catch (error) {
      if (!(error instanceof RefusedError && error.kind === "sessionAttached")) throw error;
    }
  }
}

test("a real restart by another client is noticed, and nothing of the old process gets to the new one", async () => {
  await using scratch = await TemporaryDirectory.make();
  await using server = await RemexServer.start(["ws://127.0.0.1:0"]);
  await using host = await connect(server.url);
  let isAway = false;
  await using proxy = await FaultProxy.start(server.url, () => (isAway ? { afterBytes: 0, kind: "cut" } : undefined));
  await using far = await connect(proxy.url, { detachTtlMs: 3_600_000 });
  // The second one has more events than the first one at any time, so that it could go on at the same number.
  const again = join(scratch.path, "again");
  const script = `[ -e ${again} ] && seq 10000 || echo old; exec cat`;
  const first = await far.start(["sh", "-c", script], { id: "p", stdin: "pipe", restartable: true });
  const events = first.output();
  assert.equal(await next(events), "old\n");
  isAway = true;
  proxy.cutAll();
  const more = events.next();
  const wait = first.wait();
  const write = first.stdin.write("rest\n");
  await writeFile(again, "");
  const foreign = await host.attach("p", { sessionId: far.sessionId });
  const restarted = await within("the restart", restartOf(foreign));
  await within("the output of the new process", restarted.waitFor("\n10000\n"));
  isAway = false;
  await allRestarted({ more, wait, write });
  await allRestarted({ signal: first.signal("KILL"), kill: first.kill(), read: first.read(), foreign: foreign.kill() });
  await first[Symbol.asyncDispose]();

  const second = await within("a handle", far.attach("p"));
  assert.equal(second.incarnation, restarted.incarnation);
  assert.equal((await second.info())!.state, "running");
  await second.stdin.write("to the new one\n");
  await second.stdin.close();
  const numbers = Array.from({ length: 10_000 }, (_, index) => `${index + 1}\n`).join("");
  assert.equal((await within("its output", second.collect())).stdoutText, `${numbers}to the new one\n`);
});

test("a handle of a process that has closed does not wait for the rest after a restart", async () => {
  let held: number | undefined;
  await using played = await Played.start(({ id, method, params }, { connection }) => {
    if (method === "process/restart") connection!.send({ id, result: { processId: "p", pid: 2, incarnation: NEW, replayed: false } });
    else if (method !== "process/read") return false;
    // There is more, and the close came before anybody here followed it.
    else if (params.afterSeq === 0) connection!.send({ id, result: { ...readReply(["old"], params, true), nextSeq: 2, incarnation: OLD } });
    else held = id;
    return true;
  });
  const host = await connect(played.server.url);
  const first = await host.attach("p");
  const events = first.output();
  assert.equal(await next(events), "old");
  await played.server.until("the second read", ({ method, params }) => method === "process/read" && params.afterSeq === 1);
  const again = await within("the restart", first.restart());
  played.connection!.send({ id: held, error: RESTARTED });
  await allRestarted({ output: events.next() });
  again.detach();
  await host.end();
});
