// Every transport of the real server, with tokens and certificates, and what goes wrong with them.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { readFileSync, writeFileSync } from "node:fs";
import { type AddressInfo, createServer } from "node:net";
import { join } from "node:path";
import { test } from "node:test";
import { ProgramEndedError, RefusedError, SessionLostError, UnauthorizedError, UnreachableError, UsageError, connect, resume } from "../src/index.js";
import { checkUnixServer } from "../src/node/unix-server.js";
import type { SandboxContext } from "../src/protocol.js";
import { RemexServer, TemporaryDirectory, remexProgram, within } from "./server.js";

async function hello(target: string | string[], options: Parameters<typeof connect>[1] = {}): Promise<void> {
  await using host = await within("a connection", connect(target, options));
  const { stdoutText, exitCode } = await within("a run", host.run(["echo", "hello"]));
  assert.deepEqual([stdoutText, exitCode], ["hello\n", 0]);
  const { stdout } = await within("much output", host.run(["head", "-c", "5000000", "/dev/zero"]));
  assert.equal(stdout.length, 5_000_000);
}

test("unix sockets", async () => {
  await using server = await RemexServer.start(["unix://{dir}/s.sock"]);
  await hello(server.url);
});

test("nothing is sent to a server in a sandbox", async () => {
  await using directory = await TemporaryDirectory.make();
  const url = `unix://${join(directory.path, "s.sock")}`;
  const sandbox = ["--sandbox", "minimal", "--net", "on", "--read", "/", "--write", directory.path];
  const fake = spawn(remexProgram(), ["run", ...sandbox, "--", remexProgram(), "serve", "--listen", url], { stdio: ["ignore", "pipe", "inherit"] });
  const ended = once(fake, "exit");
  try {
    await within("the server in the sandbox", once(fake.stdout, "data"));
    await assert.rejects(connect(url), (error: unknown) => error instanceof UnreachableError && /is in a remex sandbox/.test(error.message));
  } finally {
    fake.kill();
    await within("its end", ended);
  }
});

test("a server that starts confined processes does not make another one look confined", async () => {
  await using server = await RemexServer.start(["unix://{dir}/s.sock"]);
  await using other = await RemexServer.start(["unix://{dir}/s.sock"]);
  const entries = [{ path: { type: "special", value: { kind: "root" } }, access: "read" }];
  const permissions = { type: "managed", network: "enabled", file_system: { type: "restricted", entries } };
  const sandbox = { permissions, windowsSandboxLevel: "disabled", cwd: "/", workspaceRoots: [] } as unknown as SandboxContext;
  await using host = await connect(server.url);
  let left = 400;
  const startAll = async (): Promise<void> => {
    while (left-- > 0) assert.equal((await host.run(["true"], { cwd: "/", sandbox })).exitCode, 0);
  };
  // For a moment, a process that is being started is in its sandbox and has the sockets of its server.
  const path = other.url.slice("unix://".length);
  const checkAll = async (): Promise<void> => {
    while (left > 0) await checkUnixServer(path);
  };
  await within("the starts", Promise.all([startAll(), startAll(), startAll(), startAll(), checkAll(), checkAll()]), 60_000);
});

test("WebSockets with a token", async () => {
  await using directory = await TemporaryDirectory.make();
  const token = randomBytes(32).toString("hex");
  const file = join(directory.path, "tokens");
  writeFileSync(file, `${token}\n`, { mode: 0o600 });
  await using server = await RemexServer.start(["ws://127.0.0.1:0"], "--ws-auth", "capability-token", "--ws-token-file", file);
  await hello(server.url, { token });
  await hello(server.url, { token: async () => token });
  await assert.rejects(connect(server.url), (error: unknown) => error instanceof UnauthorizedError && /requires a token/.test(error.message));
  await assert.rejects(connect(server.url, { token: "wrong" }), (error: unknown) => error instanceof UnauthorizedError && error.status === 401);
  await assert.rejects(connect(server.url, { token: "a\r\nb" }), UsageError);
});

test("a refusal carries the reason of the server", async () => {
  const refusal = async (type: string, body: string): Promise<UnauthorizedError> => {
    const server = createServer((socket) => {
      socket.on("error", () => {});
      socket.once("data", () => {
        socket.write(`HTTP/1.1 403 Forbidden\r\nContent-Type: ${type}\r\nContent-Length: ${Buffer.byteLength(body)}\r\n\r\n`, () => socket.write(body));
      });
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    try {
      const url = `ws://127.0.0.1:${(server.address() as AddressInfo).port}`;
      const error = await connect(url).then(() => assert.fail("connected"), (error: unknown) => error);
      assert.ok(error instanceof UnauthorizedError);
      return error;
    } finally {
      server.close();
    }
  };
  const told = await refusal("text/plain", "user 7 may not use this server; its owner can allow it\n");
  assert.match(told.message, /refuses this client \(status 403\): user 7 may not use this server/);
  assert.equal(told.hint, "its owner can allow it");
  // Neither a page nor what would move the cursor of a terminal is shown.
  for (const [type, body] of [["text/html", "<p>no; go</p>"], ["text/plain", "no; \u001b[31mgo"]] as const) {
    assert.match((await refusal(type, body)).message, /requires a token \(status 403\)/);
  }
});

test("TLS with a private CA and client certificates", async () => {
  await using directory = await TemporaryDirectory.make();
  const certs = join(directory.path, "certs");
  execFileSync(remexProgram(), ["cert", "new", "server", "localhost", "--dir", certs]);
  execFileSync(remexProgram(), ["cert", "new", "client", "me", "--dir", certs]);
  const pem = (name: string): Buffer => readFileSync(join(certs, name));
  await using server = await RemexServer.start(["wss://127.0.0.1:0"], "--tls-cert", join(certs, "localhost.pem"), "--tls-key", join(certs, "localhost.key"), "--tls-client-ca", join(certs, "ca.pem"));
  const url = server.url.replace("127.0.0.1", "localhost");
  const tls = { ca: pem("ca.pem"), cert: pem("me.pem"), key: pem("me.key") };
  await hello(url, { tls });
  await assert.rejects(connect(url), (error: unknown) => error instanceof UnreachableError && /certificate/.test(error.message));
  await assert.rejects(connect(url, { tls: { ca: tls.ca } }), UnreachableError);
});

test("a WebSocket carries further headers, for proxies on the way", async () => {
  const heads: string[] = [];
  const server = createServer((socket) => {
    socket.on("error", () => {});
    socket.once("data", (data) => {
      heads.push(data.toString("latin1"));
      socket.end("HTTP/1.1 404 Not Found\r\n\r\n");
    });
  });
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  const url = `ws://127.0.0.1:${(server.address() as AddressInfo).port}`;
  await assert.rejects(within("the refusal", connect(url, { headers: { "X-Project": "blue whale" }, token: "secret" })), UnreachableError);
  assert.match(heads[0]!, /\r\nX-Project: blue whale\r\n/);
  assert.match(heads[0]!, /\r\nAuthorization: Bearer secret\r\n/);
  for (const headers of [{ Host: "a" }, { authorization: "Bearer x" }, { "Sec-WebSocket-Key": "a" }, { "a b": "c" }, { a: "b\r\nc: d" }, { a: 5 as unknown as string }]) {
    await assert.rejects(connect(url, { headers }), UsageError, JSON.stringify(headers));
  }
  assert.equal(heads.length, 1);
  await new Promise((done) => server.close(done));
});

test("programs on standard streams", async () => {
  await hello([remexProgram(), "serve", "--listen", "stdio"]);
  await assert.rejects(connect(["sh", "-c", "echo no such host >&2; exit 255"]), (error: unknown) =>
    error instanceof ProgramEndedError && error.stderr === "no such host\n" && /status 255/.test(error.message));
  await assert.rejects(connect(["/no/such/program"]), UnreachableError);
});

test("invalid addresses are refused at once", async () => {
  for (const target of ["http://host", "ws://", "unix://relative", "nonsense", "ws://name:password@host:1", []]) {
    await assert.rejects(connect(target), UsageError, JSON.stringify(target));
  }
  await assert.rejects(connect("ws://127.0.0.1:1"), (error: unknown) => error instanceof UnreachableError && error.isRetryable);
  await assert.rejects(connect("unix:///no/such/socket"), UnreachableError);
});

test("an attempt to connect can be aborted", async () => {
  const reason = new Error("enough");
  const attempt = connect(["sleep", "1000"], { signal: abortedAfter(50, reason) });
  await assert.rejects(within("the abort", attempt), reason);
  await assert.rejects(within("the timeout", connect(["sleep", "1000"], { handshakeTimeoutMs: 50 })), /the handshake timed out after 50 ms/);
});

function abortedAfter(ms: number, reason: Error): AbortSignal {
  const controller = new AbortController();
  setTimeout(() => controller.abort(reason), ms);
  return controller.signal;
}

test("sessions are resumed, taken over, named, and ended", async () => {
  await using server = await RemexServer.start(["ws://127.0.0.1:0"]);
  const first = await connect(server.url, { session: "nightly", detachTtlMs: 60_000 });
  const process = await first.start(["sh", "-c", "echo one; read x; echo two $x"], { stdin: "pipe", id: "build" });
  await process.waitFor("one");
  await first.close();
  await assert.rejects(process.wait(), (error: unknown) => error instanceof SessionLostError && error.reason === "closed");

  const second = await connect(server.url, { session: "nightly" });
  assert.equal(second.sessionId, first.sessionId);
  const again = await second.attach("build");
  const third = await connect(server.url, { session: resume("nightly", { takeover: true }) });
  await assert.rejects(within("the takeover", again.wait()), (error: unknown) => error instanceof SessionLostError && error.reason === "takenOver");
  assert.equal(second.state, "lost");

  const other = await connect(server.url);
  const foreign = await other.attach("build", { sessionId: "nightly" });
  await foreign.stdin.write("three\n");
  assert.equal((await within("the output", foreign.collect())).stdoutText, "one\ntwo three\n");
  assert.equal((await within("the output", (await third.attach("build")).collect())).stdoutText, "one\ntwo three\n");
  assert.deepEqual((await other.sessions()).map((session) => session.name ?? null), ["nightly", null]);
  await third.end();
  await other.end();
  await assert.rejects(connect(server.url, { session: resume("nightly") }), (error: unknown) => error instanceof RefusedError && error.kind === "unknownSession");
});
