// The engine against a server that a test plays: silence, nonsense, order after a disconnect.
import assert from "node:assert/strict";
import { test } from "node:test";
import { ProtocolError, SessionLostError, TimedOutError, connect } from "../src/index.js";
import type { Message, ScriptedConnection } from "./server.js";
import { ScriptedServer, welcome, within } from "./server.js";

/** Plays a server that shakes hands and ends sessions, and leaves the rest to the test. */
function playing(onMessage: (message: Message, connection: ScriptedConnection, round: number) => void): Promise<ScriptedServer> {
  let round = 0;
  return ScriptedServer.listen((message, connection) => {
    if (message["method"] === "session/end") return connection.send({ id: message["id"], result: {} });
    if (message["method"] !== "initialize") return onMessage(message, connection, round);
    round += 1;
    connection.send({ id: message["id"], result: welcome("s", round > 1) });
  });
}

test("a silent server is disconnected, and the session resumed", async () => {
  await using server = await playing((message, connection, round) => {
    // The first connection answers nothing, not even a ping.
    if (round > 1 && message["id"] !== undefined) connection.send({ id: message["id"], result: { status: "ready" } });
  });
  const host = await connect(server.url, { keepAliveIntervalMs: 30, keepAliveTimeoutMs: 30 });
  assert.deepEqual(await within("the answer", host.call("environment/status", {})), { status: "ready" });
  assert.equal(host.disconnects, 1);
  const resumes = server.received.filter((message) => message["method"] === "initialize");
  assert.deepEqual(resumes.map((message) => message["params"].resumeSessionId), [null, "s"]);
  await host.close();
});

test("unanswered calls are sent again in their order", async () => {
  const again: string[] = [];
  await using server = await playing((message, connection, round) => {
    if (message["id"] === undefined) return;
    if (round === 1 && message["params"].path === "/3") connection.disconnect();
    if (round === 2) {
      again.push(`${message["method"]} ${message["params"].path}`);
      connection.send({ id: message["id"], result: {} });
    }
  });
  const host = await connect(server.url);
  const calls = [
    host.files.write("/1", "a"),
    host.files.setTimes("/1", { modifiedAtMs: 1 }),
    host.files.mkdir("/2"),
    host.files.metadata("/3"),
  ];
  await within("the answers", Promise.all(calls));
  assert.deepEqual(again, ["fs/writeFile /1", "fs/setTimes /1", "fs/createDirectory /2", "fs/getMetadata /3"]);
  await host.close();
});

test("an invalid message ends the connection, and many of them the session", async () => {
  await using server = await playing((message, connection) => {
    if (message["method"] === "initialized") connection.send("nonsense");
  });
  const host = await connect(server.url);
  await assert.rejects(within("the end", host.call("environment/status", {})), (error: unknown) => error instanceof SessionLostError && error.reason === "protocol" && error.cause instanceof ProtocolError);
  assert.equal(host.state, "lost");
});

test("calls can have a timeout", async () => {
  await using server = await playing(() => undefined);
  const host = await connect(server.url, { requestTimeoutMs: 30 });
  await assert.rejects(within("the timeout", host.files.read("/a")), (error: unknown) => error instanceof TimedOutError && error.mayHaveHappened);
  await server.until("a cancel", (message) => message["method"] === "request/cancel");
  await host.close();
});

test("an expired session is reported as forgotten", async () => {
  let round = 0;
  await using server = await ScriptedServer.listen((message, connection) => {
    if (message["method"] === "initialize" && ++round > 1) {
      connection.send({ id: message["id"], error: { code: -32600, message: "unknown session id s", data: { kind: "unknownSession" } } });
    } else if (message["method"] === "initialize") {
      connection.send({ id: message["id"], result: welcome("s", false) });
    } else if (message["id"] !== undefined) {
      connection.disconnect();
    }
  });
  const host = await connect(server.url);
  const states: string[] = [];
  host.onStateChange((state) => states.push(state));
  const lost = await within("the loss", host.files.read("/a").then(() => assert.fail("it is read"), (error: unknown) => error));
  assert.ok(lost instanceof SessionLostError && lost.reason === "forgotten" && lost.mayHaveHappened, String(lost));
  assert.equal(lost.isRetryable, false, "nothing brings the session back");
  assert.match(lost.message, /^the session is lost: the server no longer knows `s` after \d+ ms without a connection: .*30000 ms.* restarted without `--state`$/);
  assert.match(lost.hint ?? "", /remex serve --state DIR/);
  assert.deepEqual(states, ["reconnecting", "lost"]);
});

test("a client that cannot reconnect says why", async () => {
  const server = await playing(() => undefined);
  const host = await connect(server.url, { reconnectTimeoutMs: 300 });
  const read = host.files.read("/a");
  await server[Symbol.asyncDispose]();
  await assert.rejects(within("the loss", read), (error: unknown) => error instanceof SessionLostError && error.reason === "reconnectTimedOut" && /ENOENT|ECONNREFUSED/.test(error.message));
});

test("an answer that cannot be used is an error of the call, or of the connection", async () => {
  const wrong = [{ capabilities: { enabled: 5 } }, { limits: { retainBytes: "many" } }, { environmentInfo: { cwd: 1 } }, { sessionId: 1 }];
  for (const members of wrong) {
    await using server = await ScriptedServer.listen((message, connection) => connection.send({ id: message["id"], result: { ...welcome("s", false), ...members } }));
    await assert.rejects(within("the refusal", connect(server.url)), ProtocolError);
  }
  let result: unknown;
  await using server = await playing((message, connection) => {
    if (message["id"] !== undefined) connection.send({ id: message["id"], result });
  });
  await using host = await connect(server.url);
  for (result of [null, [1], "x"]) await assert.rejects(within("the error", host.start(["true"])), ProtocolError);
  assert.equal(host.disconnects, 0);
});

test("`end` fails if the session may have survived", async () => {
  const server = await ScriptedServer.listen((message, connection) => {
    if (message["method"] === "initialize") connection.send({ id: message["id"], result: welcome("s", false) });
  });
  const host = await connect(server.url, { reconnectTimeoutMs: 100 });
  const lost = assert.rejects(within("the loss", host.end()), (error: unknown) => error instanceof SessionLostError && error.reason === "reconnectTimedOut");
  await server[Symbol.asyncDispose]();
  await lost;
});

test("the end of `await using` has a deadline, and does not hide an error of its scope", async () => {
  await using server = await ScriptedServer.listen((message, connection) => {
    if (message["method"] === "initialize") connection.send({ id: message["id"], result: welcome("s", false) });
  });
  const use = async (story: () => Promise<void>): Promise<void> => {
    await using host = await connect(server.url, { reconnectTimeoutMs: 50 });
    assert.equal(host.state, "connected");
    await story();
    throw new Error("of the scope");
  };
  await assert.rejects(within("the end with a server that does not answer", use(async () => {})), /^Error: of the scope$/);
  await assert.rejects(within("the end without a server", use(() => server[Symbol.asyncDispose]())), /^Error: of the scope$/);
});

test("an abandoned start terminates its own process, and no other", async () => {
  const starts: { id: number; processId: string; connection: ScriptedConnection }[] = [];
  await using server = await playing((message, connection) => {
    const { id, method, params } = message;
    if (method === "process/start") starts.push({ id, processId: params.processId, connection });
    else if (id !== undefined) connection.send({ id, result: {} });
  });
  await using host = await connect(server.url);
  const isStart = (message: Message): boolean => message["method"] === "process/start";
  const terminated = (): string[] => server.received.filter((message) => message["method"] === "process/terminate").map((message) => message["params"].processId);
  const giveUp = async (id?: string): Promise<(typeof starts)[number]> => {
    server.received.length = starts.length = 0;
    const controller = new AbortController();
    const start = host.start(["true"], { id, signal: controller.signal });
    await server.until("the start", isStart);
    controller.abort();
    await assert.rejects(within("the abort", start));
    assert.ok(!server.received.some((message) => message["method"] === "request/cancel"), "the outcome was not awaited");
    return starts[0]!;
  };
  const answered = async (): Promise<void> => void (await within("a later answer", host.call("environment/status", {})));

  // One that was never sent.
  await assert.rejects(host.start(["true"], { id: "build", signal: AbortSignal.abort() }));
  await answered();
  assert.deepEqual(terminated(), []);

  // One that the server refuses: the id is that of another process.
  const refused = await giveUp("build");
  refused.connection.send({ id: refused.id, error: { code: -32600, message: "it exists", data: { kind: "processExists" } } });
  await answered();
  assert.deepEqual(terminated(), []);

  // One that succeeds.
  const started = await giveUp("build");
  await answered();
  assert.deepEqual(terminated(), []);
  started.connection.send({ id: started.id, result: { processId: started.processId } });
  await server.until("the end of the process", (message) => message["method"] === "process/terminate");
  assert.deepEqual(terminated(), ["build"]);

  // One with an id that no one else has, whatever its outcome.
  const own = await giveUp();
  await server.until("the end of the process", (message) => message["method"] === "process/terminate");
  assert.deepEqual(terminated(), [own.processId]);
  await answered();

  // One of unknown outcome, which is not started again.
  const lost = await giveUp("build");
  lost.connection.disconnect();
  await answered();
  assert.deepEqual([terminated(), server.received.filter(isStart).length], [[], 1]);
});

test("a start that times out is terminated", async () => {
  await using server = await playing(() => undefined);
  await using host = await connect(server.url, { requestTimeoutMs: 50 });
  await assert.rejects(within("the timeout", host.start(["true"])), TimedOutError);
  const terminate = await server.until("the end of the process", (message) => message["method"] === "process/terminate");
  const start = server.received.find((message) => message["method"] === "process/start")!;
  assert.equal(terminate["params"].processId, start["params"].processId);
});

test("announced events that cannot be read fail the process", async () => {
  await using server = await playing((message, connection) => {
    const { id, method, params } = message;
    if (method === "process/start") {
      connection.send({ id, result: { processId: params.processId } });
      connection.send({ method: "process/output", params: { processId: params.processId, seq: 5, stream: "stdout", chunk: "aGk=" } });
    } else if (method === "process/read") {
      connection.send({ id, result: { chunks: [], nextSeq: 1, exited: false, closed: false } });
    }
  });
  await using host = await connect(server.url);
  const process = await host.start(["true"]);
  await assert.rejects(within("the failure", process.collect()), (error: unknown) => error instanceof ProtocolError && /event 1/.test(error.message));
  assert.ok(server.received.filter((message) => message["method"] === "process/read").length < 10);
});

test("closing stdin waits for earlier writes, and both can be aborted while they wait", async () => {
  let isReading = false;
  const unread: [Message, ScriptedConnection][] = [];
  await using server = await playing((message, connection) => {
    const { id, method, params } = message;
    if (method === "process/write" && !isReading) unread.push([message, connection]);
    else if (method === "process/write") connection.send({ id, result: { status: "accepted" } });
    else if (id !== undefined) connection.send({ id, result: { processId: params.processId } });
  });
  await using host = await connect(server.url);
  const isWrite = (message: Message): boolean => message["method"] === "process/write";
  const writesOf = (id: string): Message[] => server.received.filter((message) => isWrite(message) && message["params"].processId === id);
  // Processes that do not read take all slots of their lane: each has one write in it that is answered first, and 7 more.
  const blocked: Promise<void>[] = [];
  for (let count = 0; count < 60; count++) {
    const { stdin } = await host.start(["sleep"]);
    for (let writes = 0; writes < 8; writes++) blocked.push(stdin.write("x"));
  }
  const { stdin } = await host.start(["cat"], { id: "cat" });
  const order: string[] = [];
  const calls = ["one", "two", "three"].map((text) => stdin.write(text).then(() => order.push(text)));
  const aborted = new AbortController();
  const given = [stdin.close({ signal: aborted.signal }), ...Array.from({ length: 9 }, () => stdin.write("x", { signal: aborted.signal }))];
  const refusals = given.map((call) => assert.rejects(within("the abort", call), { name: "AbortError" }));
  calls.push(stdin.close().then(() => order.push("close")));
  await server.until("the first write", (message) => isWrite(message) && message["params"].processId === "cat");
  aborted.abort();
  await Promise.all(refusals);
  await within("an answer", host.call("environment/status", {}));
  assert.deepEqual([writesOf("cat").length, server.received.some((message) => message["method"] === "process/closeStdin")], [1, false]);

  isReading = true;
  for (const [{ id }, connection] of unread) connection.send({ id: id as number, result: { status: "accepted" } });
  await within("all answers", Promise.all([...calls, ...blocked]));
  assert.deepEqual(order, ["one", "two", "three", "close"]);
  const last = server.received.findLast((message) => message["params"]?.processId === "cat")!;
  assert.deepEqual([writesOf("cat").length, last["method"]], [3, "process/closeStdin"]);
});

test("a server of the base dialect gets URIs", async () => {
  await using server = await ScriptedServer.listen((message, connection) => {
    // This is all that such a server says of itself.
    const result = message["method"] === "initialize" ? { sessionId: "s", environmentInfo: { shell: { name: "sh", path: "/bin/sh" } } } : {};
    if (message["id"] !== undefined) connection.send({ id: message["id"], result });
  });
  await using host = await within("a connection", connect(server.url));
  await within("the copy", host.files.copy("/a b", "file:///c"));
  const { params } = server.received.find(({ method }) => method === "fs/copy")!;
  assert.deepEqual([params.sourcePath, params.destinationPath], ["file:///a%20b", "file:///c"]);
});
