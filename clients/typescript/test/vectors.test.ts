// Checks the client against spec/vectors.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { ProtocolError, RefusedError, connect } from "../src/index.js";
import type { Process, ProcessEvent, Watch } from "../src/index.js";
import { isRepeatable } from "../src/calls.js";
import type { Method } from "../src/calls.js";
import { BYTES_MEMBERS, attachedToBase64, placeAttached } from "../src/attached.js";
import { BinaryReader } from "../src/binary.js";
import { toText } from "../src/bytes.js";
import { chunkEvent } from "../src/decode.js";
import type { OutputEvent } from "../src/events.js";
import { deliver } from "../src/link.js";
import { deliverBytes } from "../src/node/receive-buffer.js";
import { fromWirePath } from "../src/path.js";
import type { Message, ScriptedConnection } from "./server.js";
import { ScriptedServer, repository, welcome, within } from "./server.js";

function lines(name: string): Message[] {
  const text = readFileSync(join(repository, "spec/vectors", name), "utf8");
  return text.trim().split("\n").map((line) => JSON.parse(line) as Message);
}

for (const vector of lines("clients.jsonl")) test(`vector: ${vector["name"]}`, () => runVector(vector));

async function runVector({ open, steps, log, expect }: Message): Promise<void> {
  const ids = new Map<string, unknown>();
  let current: ScriptedConnection | undefined;
  let onConnected: (() => void) | undefined;
  await using server = await ScriptedServer.listen((message, connection) => {
    const { id, method, params } = message;
    if (method === "initialize") {
      current = connection;
      connection.send({ id, result: welcome("s", params.resumeSessionId !== null) });
    } else if (method === "initialized") {
      onConnected?.();
    } else if (method === "process/read") {
      connection.send({ id, result: readReply(log, params) });
    } else if (method === "process/start") {
      connection.send({ id, result: { processId: params.processId, sandboxType: "none", pid: 1, startedAtMs: 1, replayed: false } });
    } else if (method === "http/request") {
      connection.send({ id, result: { status: 200, headers: [], bodyBase64: "" } });
    } else if (id !== undefined && method !== undefined) {
      connection.send({ id, result: {} });
    }
  });
  const host = await within("a connection", connect(server.url));
  try {
    const processes = new Map<string, Process>();
    for (const id of open.processes ?? []) processes.set(id, await host.start(["true"], { id }));
    const watches = new Map<string, Watch>();
    for (const id of open.watches ?? []) {
      watches.set(String(id), await host.files.watch("/w"));
      ids.set(String(id), server.received.findLast((message) => message["method"] === "fs/watch")!["params"].watchId);
    }
    const streams = new Map<string, ReadableStream<Uint8Array>>();
    for (const id of open.streams ?? []) {
      streams.set(id, (await host.http.stream("http://localhost/")).body);
      ids.set(id, server.received.findLast((message) => message["method"] === "http/request")!["params"].requestId);
    }
    for (const step of steps) {
      if (step.send) current!.send(addressed(step.send, ids));
      else if (step.sendText) current!.send(step.sendText);
      else {
        const connected = new Promise<void>((resolve) => (onConnected = resolve));
        current!.disconnect();
        await within("a reconnect", connected);
      }
    }
    for (const [id, expected] of Object.entries<Message>(expect.processes ?? {})) {
      assert.deepEqual(await seenOf(processes.get(id)!, expected), { events: expected["events"], error: expected["error"] });
    }
    for (const [id, expected] of Object.entries<Message[]>(expect.watches ?? {})) {
      for (const look of expected) assert.deepEqual(await lookAt(watches.get(id)!), look);
    }
    for (const [id, expected] of Object.entries<Message>(expect.streams ?? {})) {
      assert.deepEqual(await bodyOf(streams.get(id)!), expected);
    }
    for (const sent of expect.sends ?? []) await server.until(JSON.stringify(sent), (message) => contains(message, sent));
    assert.equal(host.disconnects, expect.disconnects);
  } finally {
    await host.close();
  }
}

/** Answers a read as a server with this log would. */
function readReply(logs: Message | undefined, params: Message): Message {
  const log = logs?.[params["processId"]];
  const after: number = params["afterSeq"] ?? 0;
  if (!log) return { chunks: [], nextSeq: 1, exited: false, exitCode: null, closed: false, failure: null };
  const reply = { ...log.reply, chunks: log.reply.chunks.filter((chunk: Message) => chunk["seq"] > after) };
  const { evicted } = log;
  return evicted && after < evicted.toSeq ? { ...reply, gap: { fromSeq: after + 1, toSeq: evicted.toSeq, bytes: evicted.bytes } } : reply;
}

/** Replaces the ids of the vector by those that the client chose. */
function addressed(message: Message, ids: Map<string, unknown>): Message {
  const params = { ...message["params"] };
  for (const member of ["watchId", "requestId"]) {
    if (ids.has(String(params[member]))) params[member] = ids.get(String(params[member]));
  }
  return "params" in message ? { ...message, params } : message;
}

async function seenOf(process: Process, expected: Message): Promise<Message> {
  const events: Message[] = [];
  const iterator = process.events();
  try {
    while (!expected["open"] || events.length < expected["events"].length) {
      const { done, value } = await within("an event", iterator.next());
      if (done) break;
      events.push(described(value));
    }
  } catch (error) {
    return { events, error: word(error) };
  }
  return { events, error: undefined };
}

const KNOWN_STREAMS = ["stdout", "stderr", "pty"];
const KNOWN_CAUSES = ["exit", "signal", "timeout", "idleTimeout", "terminated", "outOfMemory", "serverLost"];

function described(event: ProcessEvent): Message {
  switch (event.type) {
    case "output": {
      const stream = KNOWN_STREAMS.includes(event.stream) ? event.stream : "unknown";
      return { output: { seq: event.seq, stream, text: toText(event.bytes) } };
    }
    case "exited": {
      const { exitCode, signal, cause } = event.exit;
      const known = cause === undefined ? null : KNOWN_CAUSES.includes(cause) ? cause : "unknown";
      return { exited: { code: exitCode, signal: signal ?? null, cause: known } };
    }
    case "gap":
      return { gap: { fromSeq: event.fromSeq, toSeq: event.toSeq, bytes: event.bytes ?? null } };
    case "closed":
      return { closed: {} };
  }
}

async function lookAt(watch: Watch): Promise<Message> {
  try {
    const { value } = await within("a change", watch.next());
    const known = (kind: string): string => (["created", "modified", "removed"].includes(kind) ? kind : "unknown");
    return { changes: value!.changes.map(({ path, kind }) => [path, known(kind)]), overflow: value!.overflow };
  } catch (error) {
    return { error: word(error) };
  }
}

async function bodyOf(stream: ReadableStream<Uint8Array>): Promise<Message> {
  let body = "";
  try {
    for await (const chunk of stream) body += toText(chunk);
    return { body };
  } catch (error) {
    return { body, error: word(error) };
  }
}

function word(error: unknown): string {
  if (error instanceof ProtocolError) return "protocol";
  if (error instanceof RefusedError) return error.message.slice(error.message.indexOf(": ") + 2);
  throw error;
}

function contains(message: unknown, expected: unknown): boolean {
  if (typeof message !== "object" || typeof expected !== "object" || !message || !expected) return message === expected;
  return Object.entries(expected).every(([name, value]) => contains((message as Message)[name], value));
}

test("the notifications of output decode", () => {
  for (const vector of lines("output.jsonl")) {
    const expected = { bytes: vector["hex"], seq: vector["seq"], stream: vector["stream"] };
    const seen: unknown[] = [];
    const onOutput = (_: string, event: OutputEvent): void => void seen.push(hex(event));
    const receiver = {
      onOutput, onMalformed: () => undefined, onPong: () => undefined, onDrain: () => undefined, onEnd: () => undefined,
      onMessage: (text: string) => void seen.push(hex(chunkEvent(JSON.parse(text).params))),
    };
    deliver(vector["text"], receiver);
    const bytes = Buffer.from(`xx${vector["text"]}xx`);
    deliverBytes(bytes, 2, bytes.length - 2, receiver);
    assert.deepEqual(seen, [expected, expected]);
  }
  function hex(event: OutputEvent): object {
    return { bytes: Buffer.from(event.bytes).toString("hex"), seq: event.seq, stream: event.stream };
  }
});

test("binary messages mean the same as JSON, or are refused", () => {
  for (const { about, hex, json, error } of lines("binary.jsonl")) {
    const message = Buffer.from(hex, "hex");
    // Behind other bytes and before others, as in a stream.
    const bytes = Buffer.concat([Buffer.from("x"), message, Buffer.from("x")]);
    let seen: unknown;
    const unexpected = (): never => assert.fail(about);
    const read = (): void => new BinaryReader().deliver(bytes, 1, bytes.length - 1, {
      onOutput(processId, event, incarnation, sessionId) {
        const chunk = Buffer.from(event.bytes).toString("base64");
        const ids = { processId, ...(sessionId !== undefined && { sessionId }), ...(incarnation !== undefined && { incarnation }) };
        seen = { method: "process/output", params: { ...ids, seq: event.seq, stream: event.stream, chunk } };
      },
      onMessage(text, attached) {
        const parsed = JSON.parse(text) as Message;
        const body: object = parsed["params"] ?? parsed["result"];
        placeAttached(body, attached!);
        attachedToBase64(body);
        seen = parsed;
      },
      onMalformed: (malformed) => {
        throw malformed;
      },
      onPong: unexpected, onDrain: unexpected, onEnd: unexpected,
    });
    if (error !== undefined) {
      assert.throws(read, (thrown: unknown) => thrown instanceof ProtocolError && thrown.message.includes(error), about);
      continue;
    }
    read();
    const isUnknown = json.params?.stream !== undefined && !KNOWN_STREAMS.includes(json.params.stream);
    assert.deepEqual(seen, isUnknown ? { ...json, params: { ...json.params, stream: "unknown" } } : json, about);
  }
});

test("the members with bytes are those of the schema", () => {
  const schema = JSON.parse(readFileSync(join(repository, "spec/protocol.schema.json"), "utf8")) as Message;
  const withBytes = new Set<string>();
  const lists = new Set<string>();
  const isResult = (name: string): boolean => /Result$|^ProcessChunk$|^ProcessOutputParams$|DeltaParams$/.test(name);
  for (const [name, definition] of Object.entries<Message>(schema["$defs"])) {
    if (!isResult(name)) continue;
    for (const [member, type] of Object.entries<Message>(definition["properties"] ?? {})) {
      if (JSON.stringify(type).includes('"#/$defs/Base64Bytes"')) withBytes.add(member);
      else if (type["type"] === "array") lists.add(member);
    }
  }
  assert.deepEqual([...BYTES_MEMBERS].sort(), [...withBytes].sort());
  assert.deepEqual([...lists].filter((member) => BYTES_MEMBERS.has(member)), []);
});

test("requests, responses and notifications are distinguished", async () => {
  for (const { text, kind, id } of lines("envelope.jsonl")) {
    if (String(text).trim().includes("\n")) continue;
    let current: ScriptedConnection | undefined;
    await using server = await ScriptedServer.listen((message, connection) => {
      if (message["method"] === "initialize") {
        current = connection;
        connection.send({ id: message["id"], result: welcome("s", message["params"].resumeSessionId !== null) });
      } else if (message["id"] !== undefined && message["method"] !== undefined) {
        connection.send({ id: message["id"], result: {} });
      }
    });
    const host = await within("a connection", connect(server.url));
    try {
      current!.send(String(text));
      // Numbers beyond 2^53 are not exact in JavaScript.
      const isExact = typeof id === "number" ? Number.isSafeInteger(id) : String(id).length <= 1024;
      if (kind === "request" && isExact) {
        const refused = server.until(`the refusal of ${text}`, (message) => message["id"] === id && message["error"]?.code === -32601);
        await refused;
      }
      // It may be taken for the answer to the first call.
      await within(`an answer after ${text}`, host.call("environment/status", {}).catch(() => undefined));
      await within(`another answer after ${text}`, host.call("environment/status", {}));
      if (kind !== "malformed") assert.equal(host.disconnects, 0, text);
    } finally {
      await host.close();
    }
  }
});

test("accepted calls fit the generated types", () => {
  const source = readFileSync(join(repository, "clients/typescript/src/protocol.ts"), "utf8");
  const requiredOf = (method: string): string[] | undefined => {
    const type = new RegExp(`"${method}": \\{ params: (\\w+)`).exec(source)?.[1];
    const body = type && new RegExp(`export interface ${type}[^{]*\\{([^]*?)\\n\\}`).exec(source)?.[1];
    return body ? [...body.matchAll(/^ {2}(\w+): /gm)].map((match) => match[1]!) : undefined;
  };
  let checked = 0;
  for (const { method, params, code } of lines("calls.jsonl")) {
    if (code !== undefined || typeof params !== "object" || params === null || Array.isArray(params)) continue;
    for (const member of requiredOf(method) ?? []) {
      checked += 1;
      assert.ok(member in params, `${method} without ${member}`);
    }
  }
  assert.ok(checked > 50, `only ${checked} members were checked`);
});

test("the paths of answers decode", () => {
  for (const { uri, native } of lines("paths.jsonl").filter((vector) => vector["uri"])) {
    const isText = !String(native).includes("\ufffd");
    if (isText && native !== undefined) assert.equal(fromWirePath(uri), native);
  }
});

test("the description of the protocol says which calls are sent again", () => {
  const table = readFileSync(join(repository, "PROTOCOL.md"), "utf8").split("<!-- again: begin -->")[1]!.split("<!-- again: end -->")[0]!;
  const documented = new Map<string, string>();
  for (const row of table.split("\n").filter((line) => line.startsWith("| `"))) {
    const [, methods, again] = row.split("|");
    for (const method of methods!.split(",")) documented.set(method.trim().replaceAll("`", ""), again!.trim());
  }
  const conditional: [string, object, object][] = [
    ["process/start", { startId: "s" }, {}],
    ["process/restart", { restartId: "r" }, {}],
    ["process/write", { writeId: "w" }, {}],
    ["fs/writeFile", {}, { ifMatch: "absent" }],
    ["fs/createDirectory", {}, { recursive: false }],
    ["http/request", { method: "GET" }, { method: "POST" }],
    ["http/request", { method: "HEAD" }, { method: "GET", streamResponse: true }],
  ];
  for (const [method, again, not] of conditional) {
    assert.ok(isRepeatable(method as Method, again), method);
    assert.ok(!isRepeatable(method as Method, not), method);
  }
  for (const [method, again] of documented) {
    if (again === "if") assert.ok(conditional.some(([known]) => known === method), `no case for ${method}`);
    else assert.equal(isRepeatable(method as Method, {}), again === "yes", method);
  }
});

test("the generated types are not stale", () => {
  execFileSync(process.execPath, [join(repository, "clients/typescript/scripts/generate.mjs"), "--check"]);
});
