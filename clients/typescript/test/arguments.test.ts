// Values that make no sense are refused, instead of meaning something else.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Agent, UsageError, connect } from "../src/index.js";
import type { ConnectOptions, LocalHost, StartOptions } from "../src/index.js";
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

async function refuses(what: string, call: () => Promise<unknown> | unknown): Promise<void> {
  await assert.rejects(within(what, (async () => call())()), (error: unknown) => {
    assert.ok(error instanceof UsageError, `${what}: ${String(error)}`);
    return true;
  }, what);
}

const NO_NUMBERS = [NaN, -1, Infinity, -Infinity, 1.5];

test("an invalid time, size or count is refused", async () => {
  const names = ["timeoutMs", "idleTimeoutMs", "timeoutGraceMs", "lingerMs", "retainBytes", "retainMs"] as const;
  for (const value of NO_NUMBERS) {
    for (const name of names) await refuses(`${name}: ${value}`, () => host.run(["true"], { [name]: value }));
    await refuses(`rows: ${value}`, () => host.start(["true"], { tty: { rows: value } }));
    await refuses(`cpu: ${value}`, () => host.start(["true"], { limits: { openFiles: value } }));
    await refuses(`http: ${value}`, () => host.http.request("http://127.0.0.1:1/", { timeoutMs: value }));
    await refuses(`hash: ${value}`, () => host.files.hash("/etc/passwd", { len: value }));
    await refuses(`open: ${value}`, async () => (await host.files.open("/etc/passwd", { offset: value })).read());
    await refuses(`create: ${value}`, () => host.files.create(`${server.directory.path}/f`, { permissions: value }));
  }
  assert.deepEqual(await host.processes(), []);
  await using child = await host.start(["cat"], { stdin: "pipe" });
  for (const value of NO_NUMBERS) {
    await refuses(`maxLen: ${value}`, () => child.lines({ maxLen: value }).next());
    await refuses(`afterSeq: ${value}`, () => child.events({ afterSeq: value }).next());
    await refuses(`grace: ${value}`, () => child.terminate({ graceMs: value }));
    await refuses(`snapshot: ${value}`, () => child.snapshot({ maxBytes: value }));
    await refuses(`resize: ${value}`, () => child.resize({ rows: value, cols: 80 }));
  }
  for (const value of [NaN, -1, Infinity, 2 ** 31]) await refuses(`silence: ${value}`, () => child.waitForSilence(value));
  assert.equal((await child.info())?.state, "running");
});

test("a client timeout that no timer can measure is refused", async () => {
  const names = [
    "connectTimeoutMs", "handshakeTimeoutMs", "requestTimeoutMs", "keepAliveIntervalMs", "keepAliveTimeoutMs",
    "connectRetryMs", "reconnectTimeoutMs",
  ] as const;
  for (const name of names) {
    for (const value of [NaN, -1, 2 ** 31, "5" as unknown as number]) {
      await refuses(`${name}: ${value}`, () => connect(server.url, { [name]: value } as ConnectOptions));
    }
  }
  await refuses("detachTtlMs: NaN", () => connect(server.url, { detachTtlMs: NaN }));
  await refuses("an empty name", () => connect(server.url, { session: "" }));
  await refuses("a session that is none", () => connect(server.url, { session: 5 as unknown as string }));
  const patient = await connect(server.url, { reconnectTimeoutMs: Infinity, connectRetryMs: Infinity });
  await patient.end();
});

test("invalid limits of an agent are refused", async () => {
  for (const name of ["open", "yieldAfterMs", "yieldMinMs", "yieldMaxMs", "outputBytes", "collectBytes"]) {
    await refuses(`${name}: NaN`, () => new Agent(host, { [name]: NaN }));
  }
  await using agent = new Agent(host);
  await refuses("yieldAfterMs: NaN", () => agent.exec(["true"], { yieldAfterMs: NaN }));
  await refuses("maxOutputBytes: -1", () => agent.exec(["true"], { maxOutputBytes: -1 }));
  assert.deepEqual(agent.list(), []);
});

test("standard input is a pipe or ignored, and a terminal always has one", async () => {
  for (const stdin of ["foo", "empty", "inherit", 0, null]) {
    await refuses(`stdin: ${stdin}`, () => host.start(["cat"], { stdin } as unknown as StartOptions));
  }
  await refuses("a terminal without input", () => host.start(["cat"], { tty: true, stdin: "ignore" }));
  assert.equal((await within("the end", host.run(["cat"], { stdin: "ignore" }))).exitCode, 0);
});
