// Uses the tools through the TypeScript SDK: `sdk.mjs DIRECTORY stdio PROGRAM ARG...` or `sdk.mjs DIRECTORY http URL TOKEN`.
import assert from "node:assert/strict";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const { resolve } = createRequire(join(process.env.MCP_MODULES, "x.js"));
const load = (name) => import(pathToFileURL(resolve(`@modelcontextprotocol/sdk/client/${name}.js`)));
const { Client } = await load("index");
const { StdioClientTransport } = await load("stdio");
const { StreamableHTTPClientTransport } = await load("streamableHttp");

const [directory, how, ...rest] = process.argv.slice(2);

async function connect() {
  const client = new Client({ name: "sdk.mjs", version: "1" });
  if (how === "stdio") {
    await client.connect(new StdioClientTransport({ command: rest[0], args: rest.slice(1), env: process.env, stderr: "inherit" }));
  } else {
    const headers = { authorization: `Bearer ${rest[1]}` };
    await client.connect(new StreamableHTTPClientTransport(new URL(rest[0]), { requestInit: { headers } }));
  }
  const call = (name, args, options) => client.callTool({ name, arguments: args }, undefined, options);
  return { client, call };
}

/** Waits until something is so. */
async function until(what, condition) {
  const deadline = Date.now() + 60_000;
  while (!condition()) {
    if (Date.now() > deadline) throw new Error(`waited too long for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

const path = (name) => join(directory, name);
let { client, call } = await connect();

// What ajv does not know in a schema, the SDK says on the console.
const complaints = [];
console.warn = (...words) => complaints.push(words.join(" "));
const { tools } = await client.listTools();
assert.deepEqual(complaints, []);
for (const { name, annotations } of tools) {
  const readOnly = /^(read|list|search)_/.test(name);
  assert.deepEqual([annotations.readOnlyHint, annotations.destructiveHint], [readOnly, !readOnly], name);
}

const failed = await call("run_command", { command: "echo out; echo err >&2; exit 3" });
assert.equal(failed.structuredContent.exit_code, 3);
assert.deepEqual(failed.structuredContent.output.split("\n").sort(), ["", "err", "out"]);
assert.match(failed.content[0].text, /ended with exit code 3/);

// Progress comes while the command runs: it ends only because of it.
const waiting = `until [ -e ${path("go")} ]; do sleep 0.05; done; echo done`;
const told = await call("run_command", { command: waiting }, { onprogress: () => writeFileSync(path("go"), "") });
assert.equal(told.structuredContent.output, "done\n");

// Who stops waiting ends the command with everything that it started.
const stop = new AbortController();
const pid = path("pid");
const stopped = call("run_command", { command: `sh -c 'echo $$ > ${pid}.new; mv ${pid}.new ${pid}; sleep 1000'` }, { signal: stop.signal });
await until("the command", () => existsSync(pid));
stop.abort("no longer wanted");
await assert.rejects(stopped);
await until("its end", () => !existsSync(`/proc/${readFileSync(pid, "utf8").trim()}`));

// Files, and edits that notice others.
const written = await call("write_file", { path: path("file"), content: "one\ntwo\n" });
const hash = written.structuredContent.hash;
const edited = await call("edit_file", { path: path("file"), edits: [{ old: "two", new: "2" }], if_match: hash });
assert.equal(edited.structuredContent.replacements, 1);
const late = await call("edit_file", { path: path("file"), edits: [{ old: "one", new: "1" }], if_match: hash });
assert.equal(late.isError, true);
assert.equal(readFileSync(path("file"), "utf8"), "one\n2\n");

// A process survives its client, and the next one finds it by name.
const started = await call("run_command", { command: "echo ready; read line; echo got $line", name: "kept", input: "pipe", wait_seconds: 0 });
assert.equal(started.structuredContent.running, true);
await client.close();
({ client, call } = await connect());
const { processes } = (await call("list_processes", {})).structuredContent;
assert.ok(processes.some((process) => process.process === "kept" && process.running), JSON.stringify(processes));
const answered = await call("send_input", { process: "kept", text: "it\n", wait_for: "got it" });
assert.match(answered.structuredContent.output, /got it\n/);
await assert.rejects(call("no_such_tool", {}));
await client.close();
console.log("ok");
