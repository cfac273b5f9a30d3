// The engine against a server that a test plays: silence, nonsense, order after a disconnect.
import assert from "node:assert/strict";
import { test } from "node:test";
import { ProtocolError, SessionLostError, TimedOutError, connect } from "../src/index.js";
import type { Message, ScriptedConnection } from "./server.js";
import { ScriptedServer, welcome, within } from "./server.js";

/** Plays a server that shakes hands, and leaves the rest to the test. */
function playing(onMessage: (message: Message, connection: ScriptedConnection, round: number) => void): Promise<ScriptedServer> {
  let round = 0;
  return ScriptedServer.listen((message, connection) => {
    if (message["method"] !== "initialize") return onMessage(message, connection, round);
    round += 1;
    connection.send({ id: message["id"], result: welcome("s", round > 1) });
  });
}

test("a server that goes silent is left, and the session resumed", async () => {
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

test("nonsense ends the connection, and too much of it the session", async () => {
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

test("a session that is gone is said to be gone", async () => {
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
  await assert.rejects(within("the loss", host.files.read("/a")), (error: unknown) => error instanceof SessionLostError && error.reason === "forgotten");
  assert.deepEqual(states, ["reconnecting", "lost"]);
});

test("a client that cannot reconnect says why", async () => {
  const server = await playing(() => undefined);
  const host = await connect(server.url, { reconnectTimeoutMs: 300 });
  const read = host.files.read("/a");
  await server[Symbol.asyncDispose]();
  await assert.rejects(within("the loss", read), (error: unknown) => error instanceof SessionLostError && error.reason === "reconnectTimedOut" && /ENOENT|ECONNREFUSED/.test(error.message));
});
