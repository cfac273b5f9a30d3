// Environments with names, and ssh: how targets that are no addresses of servers become connections.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { X509Certificate, createHash, randomBytes } from "node:crypto";
import { chmod, mkdir, readFile, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import nodeProcess from "node:process";
import { afterEach, beforeEach, test } from "node:test";
import { UnauthorizedError, UnreachableError, UsageError, connect } from "../src/index.js";
import { dialTo, sshProxy } from "../src/node/dial.js";
import type { TomlTable } from "../src/node/toml.js";
import { TomlError, parseToml } from "../src/node/toml.js";
import { RemexServer, TemporaryDirectory, remexProgram, within } from "./server.js";

let directory: TemporaryDirectory;
let file: string;
const NAMES = ["XDG_CONFIG_HOME", "REMEX_URL", "CODEX_EXEC_SERVER_URL", "PATH"];
const before = NAMES.map((name) => [name, nodeProcess.env[name]] as const);

beforeEach(async () => {
  directory = await TemporaryDirectory.make();
  await mkdir(join(directory.path, "remex"));
  file = join(directory.path, "remex/environments.toml");
  nodeProcess.env["XDG_CONFIG_HOME"] = directory.path;
  delete nodeProcess.env["REMEX_URL"];
  delete nodeProcess.env["CODEX_EXEC_SERVER_URL"];
});
afterEach(async () => {
  for (const [name, value] of before) {
    if (value === undefined) delete nodeProcess.env[name];
    else nodeProcess.env[name] = value;
  }
  await directory[Symbol.asyncDispose]();
});

async function define(text: string): Promise<void> {
  await writeFile(file, text, { mode: 0o600 });
}

async function hello(...target: Parameters<typeof connect>): Promise<string> {
  await using host = await within("a connection", connect(...target));
  return (await within("a run", host.sh("echo $GREETING; pwd", { check: true }))).stdoutText;
}

async function refused(name: string, reason: RegExp): Promise<void> {
  const error = await within("the refusal", connect(name).then(() => assert.fail(`${name} is there`), (failure: unknown) => failure));
  assert.ok(error instanceof UsageError, String(error));
  assert.match(`${error.message}; ${error.hint}`, reason);
}

test("an environment of the file is a program, with variables and a directory", async () => {
  await mkdir(join(directory.path, "remex/work"));
  await symlink(remexProgram(), join(directory.path, "remex/program"));
  await define(`
default = "build" # as for the program
[[environments]]
id = "other"
url = "ws://127.0.0.1:1"

[[environments]]
id = "build"
program = "./program"
args = ["serve", "--listen", "stdio"]
env = { GREETING = "hello" }
cwd = "work"
connect_timeout_sec = 30
initialize_timeout_sec = 20.5
reconnect_timeout_sec = "forever"
`);
  assert.equal(await hello("build"), `hello\n${directory.path}/remex/work\n`);
  await using host = await connect("build", { reconnectTimeoutMs: 1000 });
  const { connectTimeoutMs, handshakeTimeoutMs, reconnectTimeoutMs, detachTtlMs } = host.engine.options;
  assert.deepEqual([connectTimeoutMs, handshakeTimeoutMs, reconnectTimeoutMs, detachTtlMs], [30_000, 20_500, 1000, Number.MAX_SAFE_INTEGER]);
  await refused("nowhere", /unknown environment `nowhere`; known: local, other, build; add it with `remex env add nowhere/);
});

test("an environment that the program has added is found by its name", async () => {
  await using server = await RemexServer.start(["unix://{dir}/s.sock"]);
  const add = (...args: string[]): Buffer => execFileSync(remexProgram(), ["env", "add", ...args]);
  add("far", server.url);
  add("near", "--", "env", "GREETING=hello", remexProgram(), "serve", "--listen", "stdio");
  assert.match(await hello("far"), /^\n\//);
  assert.match(await hello("near"), /^hello\n\//);
});

test("an environment of the file is an address, with a token and certificates", async () => {
  const at = (name: string): string => join(directory.path, "remex", name);
  execFileSync(remexProgram(), ["cert", "new", "server", "localhost", "--dir", at("certs")]);
  execFileSync(remexProgram(), ["cert", "new", "client", "me", "--dir", at("certs")]);
  const token = randomBytes(32).toString("hex");
  await writeFile(at("token"), `# of build\n${token} name=ci\n`, { mode: 0o600 });
  await using server = await RemexServer.start(
    ["wss://127.0.0.1:0", "unix://{dir}/s.sock"], "--ws-auth", "capability-token", "--ws-token-file", at("token"),
    "--tls-cert", at("certs/localhost.pem"), "--tls-key", at("certs/localhost.key"), "--tls-client-ca", at("certs/ca.pem"),
  );
  const secure = server.urls.find((url) => url.startsWith("wss:"))!.replace("127.0.0.1", "localhost");
  const socket = server.urls.find((url) => url.startsWith("unix:"))!;
  await symlink(socket.slice("unix://".length), at("socket"));
  const { publicKey } = new X509Certificate(await readFile(at("certs/localhost.pem")));
  const digest = createHash("sha256").update(publicKey.export({ type: "spki", format: "der" })).digest();
  const client = 'auth_bearer_token_file = "token"\nclient_cert = "certs/me.pem"\nclient_key = "certs/me.key"';
  const pin = `sha256:${digest.toString("hex")}`;
  await define([
    `[[environments]]\nid = "ca"\nurl = "${secure}"\nca = "certs/ca.pem"\n${client}`,
    `[[environments]]\nid = "pin"\nurl = "${secure}"\npin = "${pin}"\n${client}`,
    `[[environments]]\nid = "curl"\nurl = "${secure}"\npin = "sha256//${digest.toString("base64")}"\n${client}`,
    `[[environments]]\nid = "both"\nurl = "${secure}"\npin = "${pin}"\nca = "certs/ca.pem"\n${client}`,
    `[[environments]]\nid = "wrong-pin"\nurl = "${secure}"\npin = "sha256:${"0".repeat(64)}"\n${client}`,
    `[[environments]]\nid = "wrong-ca"\nurl = "${secure}"\npin = "${pin}"\nca = "certs/me.pem"\n${client}`,
    `[[environments]]\nid = "no-ca"\nurl = "${secure}"\n${client}`,
    `[[environments]]\nid = "socket"\nurl = "unix:socket"`,
  ].join("\n\n"));
  for (const name of ["ca", "pin", "curl", "both", "socket"]) assert.match(await hello(name), /^\n\//, name);
  await assert.rejects(within("the refusal", connect("wrong-pin")), (error: unknown) => error instanceof UnreachableError && error.message.includes(pin));
  for (const name of ["wrong-ca", "no-ca"]) await assert.rejects(within("the refusal", connect(name)), UnreachableError, name);
  await assert.rejects(within("the refusal", connect("ca", { token: "another" })), UnauthorizedError);
  await chmod(at("token"), 0o644);
  await refused("ca", /other users can read it; run `chmod 600/);
});

test("an environments file that others can change, or that is invalid, is refused", async () => {
  await define('[[environments]]\nid = "build"\nurl = "ws://127.0.0.1:1"\n');
  await chmod(file, 0o620);
  await refused("build", /other users can write to it, and could make it run programs; run `chmod go-w/);
  await chmod(file, 0o600);
  for (const [text, reason] of [
    ["id = ", /environments\.toml:1: a value is missing/],
    ['a = 1\nb = "open', /environments\.toml:2: a text has no end/],
    ["environments = 5", /`environments` is not a list of tables/],
    ['[[environments]]\nid = "build"', /neither `url` nor `program`/],
    ['[[environments]]\nid = "build"\nurl = "ws://a"\nprogram = "b"', /a `url` and a `program`/],
    ['[[environments]]\nid = "build"\nurl = "ws://a"\n[[environments]]\nid = "build"\nurl = "ws://b"', /defined twice/],
    ['[[environments]]\nid = "build"\nurl = "http://a"', /cannot use `http:\/\/a` as a server/],
    ['[[environments]]\nid = "build"\nprogram = "a"\nargs = "b"', /`args` is not a list of texts/],
    ['[[environments]]\nid = "build"\nurl = "ws://a"\nconnect_timeout_sec = 0', /`connect_timeout_sec` is not a number of seconds/],
    ['[[environments]]\nid = "build"\nurl = "wss://a"\nca = "~/ca.pem"', /begins with `~`/],
    ['[[environments]]\nid = "build"\nurl = "wss://a"\npin = "abc"', /not the digest of a public key/],
  ] as const) {
    await define(text);
    await refused("build", reason);
  }
});

test("without the file, a variable defines `remote`", async () => {
  await using server = await RemexServer.start(["unix://{dir}/s.sock"]);
  nodeProcess.env["REMEX_URL"] = server.url;
  assert.match(await hello("remote"), /^\n\//);
  await refused("build", /known: local, remote/);
  nodeProcess.env["REMEX_URL"] = "None";
  await refused("remote", /known: none/);
  delete nodeProcess.env["REMEX_URL"];
  await refused("remote", /known: local/);
});

test("`ssh://` runs ssh, and refuses anything that ssh could take for a flag", async () => {
  const log = join(directory.path, "arguments");
  await writeFile(join(directory.path, "ssh"), `#!/bin/sh\nprintf '%s\\n' "$@" > '${log}'\nexec '${remexProgram()}' serve --listen stdio\n`, { mode: 0o755 });
  nodeProcess.env["PATH"] = `${directory.path}:${nodeProcess.env["PATH"]}`;
  assert.match(await hello("ssh://me@build.example:2222"), /^\n\//);
  assert.equal(await readFile(log, "utf8"), "-p\n2222\nme@build.example\nremex\nproxy\n");
  assert.deepEqual(sshProxy("ssh://build/"), ["ssh", "build", "remex", "proxy"]);
  assert.deepEqual(sshProxy("ssh://me@[::1]:22"), ["ssh", "-p", "22", "me@::1", "remex", "proxy"]);
  for (const address of ["ssh://", "ssh://-oProxyCommand=x", "ssh://a@-b", "ssh://a b", "ssh://a:0", "ssh://a:70000", "ssh://a:b", "ssh://a/path", "ssh://@a", "ssh://a:pw@b", "ssh://[::1]x"]) {
    assert.throws(() => sshProxy(address), UsageError, address);
  }
  assert.throws(() => dialTo("ssh://me:secret@host", {}), (error: unknown) => error instanceof UsageError && !error.message.includes("secret"));
});

test("TOML is parsed", () => {
  const plain = (table: TomlTable): unknown => JSON.parse(JSON.stringify(table));
  const text = String.raw`# a comment
title = "a \"b\" \\ \t \u00fc \U0001F389" # behind
'quoted key' = 'C:\raw'
numbers = [1, -2, 1_000, 0xff, 0o17, 0b101, 1.5, 1e3, -0.5] # mixed
a.b."c d" = true
empty = ""
long = """
first
second \
   joined "quoted" """"
raw = '''
\n stays'''
nested = [ [1, 2], ["a",
  # inside
  "b",], ]
inline = { x = 1, y.z = "2", list = [{ a = 1 }] }
when = 2026-11-19 10:00:00Z

[table]
key = "value"
[table.below.deep]
key = false
[[list]]
id = 1
[list.sub]
x = 1
[[list]]
id = 2
`;
  assert.deepEqual(plain(parseToml(text.replaceAll("\n", "\r\n"))), plain(parseToml(text)) as object);
  assert.deepEqual(plain(parseToml(text)), {
    title: 'a "b" \\ \t ü 🎉', "quoted key": "C:\\raw", numbers: [1, -2, 1000, 255, 15, 5, 1.5, 1000, -0.5],
    a: { b: { "c d": true } }, empty: "", long: 'first\nsecond joined "quoted" "', raw: "\\n stays",
    nested: [[1, 2], ["a", "b"]], inline: { x: 1, y: { z: "2" }, list: [{ a: 1 }] }, when: "2026-11-19 10:00:00Z",
    table: { key: "value", below: { deep: { key: false } } }, list: [{ id: 1, sub: { x: 1 } }, { id: 2 }],
  });
  assert.equal(parseToml("__proto__ = 1")["__proto__"], 1);
  for (const wrong of ["a", "a =", "a = 1 b = 2", "= 1", "a = 01", "a = 'x", 'a = "\\q"', "a = 1\na = 2", "[a]\n[a]", "a = 1\n[a]", "[a", "a = [1 2]", "a = {b = 1", "a = yes", "[[a]]\n[a]\n[a]", 'a = "\\ud800"', "a = 1\n[[a]]"]) {
    assert.throws(() => parseToml(wrong), TomlError, JSON.stringify(wrong));
  }
});
