// Binary messages: with the real server, with servers that a test plays, and in pieces.
import assert from "node:assert/strict";
import { PassThrough } from "node:stream";
import { test } from "node:test";
import { ProtocolError, SessionLostError, UsageError, connect } from "../src/index.js";
import { keptPart } from "../src/bytes.js";
import type { OutputEvent } from "../src/events.js";
import { MAX_MESSAGE_LEN } from "../src/link.js";
import type { Receiver } from "../src/link.js";
import { LineLink } from "../src/node/lines.js";
import { ReceiveBuffer } from "../src/node/receive-buffer.js";
import type { Message, ScriptedConnection } from "./server.js";
import { RemexServer, ScriptedServer, TemporaryDirectory, welcome, within } from "./server.js";
import { Tap } from "./tap.js";
import { WebServer } from "./web.js";

/** Text that no message contains by chance; it may begin anywhere in a group of three bytes. */
const MARKER = "<<what travels as binary messages>>";

/** Returns the base64 of the marker wherever it begins, without the ends, which depend on what is around it. */
function markersInBase64(): string[] {
  return [0, 1, 2].map((before) => Buffer.from("x".repeat(before) + MARKER).toString("base64").slice(4, -4));
}

for (const listen of ["unix://{dir}/s.sock", "ws://127.0.0.1:0"]) {
  test(`bytes travel as binary messages to and from the server: ${listen.slice(0, listen.indexOf(":"))}`, async () => {
    await using server = await RemexServer.start([listen]);
    await using directory = await TemporaryDirectory.make();
    await using web = await WebServer.start();
    await using tap = await Tap.start(server.url);
    const host = await within("a connection", connect(tap.url));
    const path = `${directory.path}/file`;
    const story = async (what: string, travels: { up: number; down: number }, act: () => Promise<void>): Promise<void> => {
      const [up, down] = [tap.fromClient.length, tap.fromServer.length];
      await within(what, act());
      const count = (bytes: Buffer): number => bytes.toString("latin1").split(MARKER).length - 1;
      assert.deepEqual({ up: count(tap.fromClient.subarray(up)), down: count(tap.fromServer.subarray(down)) }, travels, what);
    };
    await story("input and output", { up: 1, down: 1 }, async () => {
      assert.equal((await host.run(["cat"], { input: MARKER })).stdoutText, MARKER);
    });
    await story("a whole file", { up: 1, down: 1 }, async () => {
      await host.files.write(path, MARKER);
      assert.equal(await host.files.readText(path), MARKER);
    });
    await story("blocks of a file", { up: 1, down: 1 }, async () => {
      await host.files.upload(Buffer.from(MARKER), path);
      await using file = await host.files.open(path);
      assert.equal(Buffer.from((await file.read())!).toString(), MARKER);
    });
    await story("bodies", { up: 1, down: 1 }, async () => {
      assert.equal((await host.http.request(`${web.url}/echo`, { method: "POST", body: MARKER })).text, MARKER);
    });
    await story("streamed bodies", { up: 1, down: 1 }, async () => {
      const { body } = await host.http.stream(`${web.url}/echo`, { method: "POST", body: MARKER });
      assert.equal(await new Response(body).text(), MARKER);
    });
    // The arguments travel as text as well.
    await story("arguments that are not UTF-8, and retained output", { up: 2, down: 3 }, async () => {
      const words = ["printf", "%s", Buffer.from(`${MARKER}\xff`, "latin1")];
      const process = await host.start(words);
      assert.equal(Buffer.from((await process.collect()).stdout).toString("latin1"), `${MARKER}\xff`);
      assert.equal(Buffer.from((await process.read()).chunks[0]!.bytes).toString("latin1"), `${MARKER}\xff`);
      const { stdout, stderr } = await process.snapshot();
      assert.deepEqual([Buffer.from(stdout).toString("latin1"), stderr.length], [`${MARKER}\xff`, 0]);
    });
    await story("a call of the protocol, whose bytes are base64 for its caller", { up: 0, down: 1 }, async () => {
      const { dataBase64 } = await host.call("fs/readFile", { path });
      assert.equal(Buffer.from(dataBase64, "base64").toString(), MARKER);
    });
    const wire = tap.fromClient.toString("latin1") + tap.fromServer.toString("latin1");
    for (const base64 of markersInBase64()) assert.ok(!wire.includes(base64), base64);
    await host.end();
  });
}

/** Returns a binary message as it stands between lines. */
function framed(message: Uint8Array): Buffer {
  const head = Buffer.alloc(5);
  head.writeUInt32BE(message.length, 1);
  return Buffer.concat([head, message]);
}

/** Returns the output of a process as a binary message. */
function outputOf(processId: string, seq: number, text: string | Uint8Array, { stream = 0, session = "" } = {}): Buffer {
  const head = Buffer.alloc(24);
  const [id, sessionId] = [Buffer.from(processId), Buffer.from(session)];
  head.set([1, stream, session === "" ? 0 : 2]);
  head.writeUInt16BE(id.length, 4);
  head.writeUInt16BE(sessionId.length, 6);
  head.writeBigUInt64BE(BigInt(seq), 8);
  return Buffer.concat([head, id, sessionId, typeof text === "string" ? Buffer.from(text) : text]);
}

/** Returns JSON with bytes beside it as a binary message. */
function withBytes(message: Message, bytes: string): Buffer {
  const json = Buffer.from(JSON.stringify(message));
  const head = Buffer.from([2, 0, 0, 0, 0, 0, 0, 0]);
  head.writeUInt32BE(json.length, 4);
  return Buffer.concat([head, json, Buffer.from(bytes)]);
}

/** Plays a server that agrees to binary messages on the connections with these numbers, from 1. */
function playing(
  rounds: readonly number[], onMessage: (message: Message, connection: ScriptedConnection, round: number) => void,
): Promise<ScriptedServer> {
  let round = 0;
  return ScriptedServer.listen((message, connection) => {
    if (message["method"] === "session/end") return connection.send({ id: message["id"], result: {} });
    if (message["method"] !== "initialize") return onMessage(message, connection, round);
    assert.ok(message["params"].capabilities.includes("binaryFrames"));
    const result = welcome("s", ++round > 1);
    if (rounds.includes(round)) result["capabilities"].enabled.push("binaryFrames");
    connection.send({ id: message["id"], result });
  });
}

for (const rounds of [[1], [2]]) {
  test(`a write that waits for its answer is repeated as the new connection takes it: binary on the ${rounds[0] === 1 ? "first" : "second"}`, async () => {
    await using server = await playing(rounds, ({ id, method, params }, connection, round) => {
      if (method === "process/start") connection.send({ id, result: { processId: params.processId } });
      else if (method === "process/read") connection.send({ id, result: { chunks: [], nextSeq: 1, exited: false, closed: false } });
      else if (method === "process/write" && round === 1) connection.disconnect();
      else if (method === "process/write") connection.send({ id, result: { status: "accepted" } });
    });
    await using host = await connect(server.url);
    const process = await host.start(["cat"], { stdin: "pipe" });
    await within("the answer", process.stdin.write("hello"));
    const writes = server.received.filter(({ method }) => method === "process/write");
    const asBinary = { chunk: [0, 5], attached: "hello" };
    const asText = { chunk: Buffer.from("hello").toString("base64"), attached: undefined };
    const seen = writes.map(({ params, attached }) => ({ chunk: params.chunk, attached: attached?.toString() }));
    assert.deepEqual(seen, rounds[0] === 1 ? [asBinary, asText] : [asText, asBinary]);
    assert.equal(writes[0]!["params"].writeId, writes[1]!["params"].writeId);
  });
}

test("a request that is too long as base64 fails when the new connection takes nothing else", async () => {
  const limit = 1000;
  let round = 0;
  await using server = await ScriptedServer.listen(({ id, method }, connection) => {
    if (method === "session/end") return connection.send({ id, result: {} });
    if (method === "fs/writeFile") return connection.disconnect();
    if (method !== "initialize") return;
    const result: Message = { ...welcome("s", ++round > 1), limits: { messageBytes: limit } };
    if (round === 1) result["capabilities"].enabled.push("binaryFrames");
    connection.send({ id, result });
  });
  await using host = await connect(server.url);
  const refused = (error: unknown): boolean => error instanceof UsageError && /at most 1000/.test(error.message);
  await assert.rejects(within("the refusal", host.files.write("/a", "x".repeat(850))), refused);
  assert.equal(host.disconnects, 1);
  await assert.rejects(within("the refusal", host.files.write("/a", "x".repeat(850))), refused);
});

test("what a wrong reference belongs to fails, and nothing else", async () => {
  await using server = await playing([1], ({ id, method, params }, connection) => {
    if (method === "process/start") {
      const { processId } = params;
      connection.send({ id, result: { processId } });
      if (processId !== "wrong") return connection.send(framed(outputOf(processId, 1, "right")));
      connection.send(framed(withBytes({ method: "process/output", params: { processId, seq: 1, stream: "stdout", chunk: [0, 4] } }, "abc")));
    } else if (method === "process/snapshot") {
      connection.send(framed(withBytes({ id, result: { stdout: [0, 2], stderr: [1, 1], terminal: "", omittedBytes: 0, running: true } }, "ab")));
    } else if (method === "fs/readFile") {
      const places: Record<string, unknown> = { "/1": [0, 4], "/2": [0], "/3": [-1, 1], "/4": ["0", 1], "/5": [0.5, 1], "/6": [2 ** 60, 2 ** 60], "/7": 7 };
      connection.send(framed(withBytes({ id, result: { dataBase64: places[params.path] ?? [0, 3] } }, "abc")));
    } else if (id !== undefined) {
      connection.send({ id, result: {} });
    }
  });
  await using host = await connect(server.url);
  const [right, wrong] = [await host.start(["true"], { id: "right" }), await host.start(["true"], { id: "wrong" })];
  await assert.rejects(within("the failure", wrong.collect()), (error: unknown) => error instanceof ProtocolError && /4 bytes at 0 exceed the 3 bytes/.test(error.message));
  await assert.rejects(within("the failure", right.snapshot()), (error: unknown) => error instanceof ProtocolError && /belong to an earlier member/.test(error.message));
  for (let number = 1; number <= 7; number++) {
    await assert.rejects(within("the failure", host.files.read(`/${number}`)), ProtocolError, String(number));
  }
  assert.equal(await within("a file", host.files.readText("/0")), "abc");
  for await (const { bytes } of right.output()) {
    assert.equal(Buffer.from(bytes).toString(), "right");
    break;
  }
  assert.equal(host.disconnects, 0);
});

test("a malformed binary message ends the connection, and many of them the session", async () => {
  await using server = await playing([1, 2, 3, 4, 5, 6, 7, 8], ({ method }, connection) => {
    if (method === "initialized") connection.send(framed(Buffer.from([3])));
  });
  const host = await connect(server.url);
  const isEnd = (error: unknown): boolean => error instanceof SessionLostError && error.reason === "protocol" && /begins with the byte 3/.test(error.message);
  await assert.rejects(within("the end", host.call("environment/status", {})), isEnd);
});

test("without the capability, nothing is taken for a binary message", async () => {
  await using server = await playing([], ({ method }, connection) => {
    if (method === "initialized") connection.send(Buffer.concat([framed(Buffer.from("{}")), Buffer.from("\n")]));
  });
  const host = await connect(server.url);
  await assert.rejects(within("the end", host.call("environment/status", {})), (error: unknown) => error instanceof SessionLostError && /not JSON/.test(error.message));
});

/** Delivers pieces of a stream to a link of lines, and returns what came out of it. */
async function delivered(pieces: readonly Uint8Array[]): Promise<{ seen: unknown[]; events: OutputEvent[]; reason: string | undefined }> {
  const input = new PassThrough();
  const link = new LineLink(input, new PassThrough());
  const [seen, events]: [unknown[], OutputEvent[]] = [[], []];
  let reason: string | undefined;
  link.acceptBinary();
  const ended = new Promise<void>((done) => {
    link.start({
      onMessage: (json, attached) => seen.push([json, attached && Buffer.from(attached).toString()]),
      onOutput: (processId, event, incarnation, sessionId) => {
        events.push(event);
        seen.push([processId, event.seq, event.stream, Buffer.from(event.bytes).toString(), incarnation, sessionId]);
      },
      onMalformed: (error) => seen.push(error.message),
      onPong: () => undefined,
      onDrain: () => undefined,
      onEnd: (why) => {
        reason ??= why;
        done();
      },
    } satisfies Receiver);
  });
  for (const piece of pieces) {
    input.write(piece);
    // The stream would join what is written at once.
    await new Promise((done) => setImmediate(done));
  }
  input.end();
  await within("the end", ended);
  link.destroy();
  return { seen, events, reason };
}

test("binary messages and lines between them may be split anywhere", async () => {
  const stream = Buffer.concat([
    Buffer.from('{"a":1}\r\n'), framed(outputOf("p", 10, "\n\0ü")), framed(withBytes({ b: [0, 3] }, "x\ny")), Buffer.from("\n"),
    framed(outputOf("pé", 2, "", { stream: 9, session: "s" })), framed(Buffer.from('{"c":2}')), framed(Buffer.alloc(0)), Buffer.from('{"d":3}\n'),
  ]);
  const expected = [
    ['{"a":1}', undefined], ["p", 10, "stdout", "\n\0ü", undefined, undefined], ['{"b":[0,3]}', "x\ny"],
    ["pé", 2, "unknown", "", undefined, "s"], ['{"c":2}', undefined], ["", undefined], ['{"d":3}', undefined],
  ];
  assert.deepEqual((await delivered([stream])).seen, expected);
  for (let at = 1; at < stream.length; at++) {
    assert.deepEqual((await delivered([stream.subarray(0, at), stream.subarray(at)])).seen, expected, `split at ${at}`);
  }
  const bytes = Array.from(stream, (byte) => Uint8Array.of(byte));
  assert.deepEqual((await delivered(bytes)).seen, expected);
});

test("what is kept of a message keeps little else in memory, and nothing overwrites it", async () => {
  const chunks = Array.from({ length: 40 }, (_, index) => Buffer.alloc([10, 5_000, 70_000, 700_000][index % 4]!, index));
  const { events } = await delivered(chunks.map((chunk, index) => framed(outputOf("p", index + 1, chunk))));
  assert.equal(events.length, chunks.length);
  events.forEach(({ bytes }, index) => {
    assert.ok(chunks[index]!.equals(bytes), `chunk ${index}`);
    const memory = bytes.buffer.byteLength;
    assert.ok(memory <= Math.max(2 * bytes.length, Buffer.poolSize), `chunk ${index} of ${bytes.length} bytes keeps ${memory}`);
  });
  const whole = new Uint8Array(100);
  assert.equal(keptPart(whole, 10, 60).buffer, whole.buffer);
  assert.notEqual(keptPart(whole, 10, 59).buffer, whole.buffer);
});

test("a message gets no memory for what it says about its length", async () => {
  const received = new ReceiveBuffer();
  let arrived = 0;
  while (arrived < 3 << 20) {
    const { length } = received.space();
    assert.ok(received.bytes.length <= Math.max(1 << 20, 2 * arrived + (512 << 10)), `${received.bytes.length} bytes for ${arrived}`);
    received.filled(length);
    arrived += length;
    received.wanted = MAX_MESSAGE_LEN - arrived;
  }
  const tooLong = Buffer.alloc(5);
  tooLong.writeUInt32BE(MAX_MESSAGE_LEN + 1, 1);
  const { reason, seen } = await delivered([tooLong, Buffer.from("{}\n")]);
  assert.deepEqual([reason, seen], [`the server sent a message of ${MAX_MESSAGE_LEN + 1} bytes`, []]);
});
