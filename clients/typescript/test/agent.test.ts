import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { ControlFilter, Truncator } from "../src/agent-text.js";
import { Agent, UsageError, connect } from "../src/index.js";
import type { LocalHost } from "../src/index.js";
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

function truncated(budget: number, text: string): string {
  const truncator = new Truncator(budget);
  truncator.push(text);
  return truncator.finish(budget).text;
}

test("the middle is omitted, preferably at line ends", () => {
  const output = Array.from({ length: 1000 }, (_, line) => `line ${String(line).padStart(3, "0")}\n`).join("");
  const text = "line 000\nline 001\nline 002\n[… 8946 bytes omitted …]\nline 997\nline 998\nline 999\n";
  assert.equal(truncated(90, output), text);
  assert.equal(truncated(70, "x".repeat(1000)), `${"x".repeat(20)}\n[… 960 bytes omitted …]\n${"x".repeat(20)}`);
  assert.equal(truncated(8, "grüße\n"), "grüße\n");
});

test("a budget is never exceeded, and characters are not split", () => {
  for (let budget = 30; budget < 200; budget++) {
    const truncator = new Truncator(1 << 16);
    for (let round = 0; round < 100; round++) truncator.push("grüße 🎉\n");
    const { text, omittedBytes, totalBytes } = truncator.finish(budget);
    assert.ok(new TextEncoder().encode(text).length <= budget);
    assert.ok(!text.includes("\ufffd") && omittedBytes > 0 && totalBytes === 1300);
  }
});

test("output that the server dropped is counted", () => {
  const truncator = new Truncator(1000);
  truncator.push("before\n");
  truncator.skip(500);
  truncator.push("after\n");
  assert.deepEqual(truncator.finish(1000), { text: "before\n[… 500 bytes omitted …]\nafter\n", omittedBytes: 500, totalBytes: 513, count: "exact" });
});

test("control sequences are removed, in whatever pieces they arrive", () => {
  const raw = "10%\r100%\n\x1b[1;31merror:\x1b[0m no space\n\x1b]0;title\x07ab\bc\n\x1b[2K\rdone";
  for (const size of [1, 2, 3, 7, raw.length]) {
    const filter = new ControlFilter();
    let text = "";
    for (let at = 0; at < raw.length; at += size) text += filter.push(raw.slice(at, at + size));
    assert.equal(text + filter.finish(), "100%\nerror: no space\nac\ndone");
  }
});

test("a step ends with its process or its timeout", async () => {
  await using agent = new Agent(host);
  const ended = await within("a step", agent.exec(["sh", "-c", "echo built; exit 2"]));
  assert.deepEqual([ended.output.text, ended.progress.state === "ended" && ended.progress.exit.exitCode], ["built\n", 2]);

  const running = await within("a step", agent.exec(["sh", "-c", "read name; echo hello, $name"], { stdin: "pipe", yieldAfterMs: 0 }));
  assert.equal(running.progress.state, "running");
  const step = await within("a step", agent.write(running.handle, "world\n"));
  assert.deepEqual([step.output.text, step.acceptedBytes, step.progress.state], ["hello, world\n", 6, "ended"]);
  await assert.rejects(agent.write(running.handle, "more"), UsageError);
  await assert.rejects(agent.write(99), /there is no process 99/);
  assert.deepEqual(agent.list().map(({ handle, unseenBytes }) => [handle, unseenBytes]), [[1, 0], [2, 0]]);
});

test("a step returns in time although the process does not read", async () => {
  await using agent = new Agent(host);
  const { handle } = await agent.exec(["sleep", "1000"], { stdin: "pipe", yieldAfterMs: 0 });
  const step = await within("a step", agent.write(handle, new Uint8Array(8 << 20), { yieldAfterMs: 300 }));
  assert.ok(step.acceptedBytes < 8 << 20, String(step.acceptedBytes));
  await agent.interrupt(handle);
  const { progress } = await within("the end", agent.write(handle));
  assert.equal(progress.state === "ended" && progress.exit.signal, "SIGINT");
});

test("control sequences are removed by default, and the input of a terminal can be ended", async () => {
  await using agent = new Agent(host);
  const red = await within("a step", agent.exec(["printf", "\\033[31mred\\033[0m\\n"], { yieldAfterMs: 20_000 }));
  assert.equal(red.output.text, "red\n");
  const { handle } = await within("a step", agent.exec(["cat"], { tty: true, yieldAfterMs: 0 }));
  const step = await within("the end", agent.write(handle, "no newline", { end: true, yieldAfterMs: 20_000 }));
  assert.equal(step.progress.state === "ended" && step.progress.exit.exitCode, 0);
  await using raw = new Agent(host, { controlSequences: "keep" });
  assert.equal((await within("a step", raw.exec(["printf", "\\033[31mred"], { yieldAfterMs: 20_000 }))).output.text, "\x1b[31mred");
});

test("much output is truncated to the budget, and no process waits for the next step", async () => {
  await using agent = new Agent(host, { controlSequences: "remove" });
  const step = await within("a step", agent.exec(["seq", "1000000"], { maxOutputBytes: 1000, yieldAfterMs: 30_000 }), 40_000);
  assert.ok(step.output.text.startsWith("1\n2\n") && step.output.text.endsWith("999999\n1000000\n"));
  assert.equal(step.output.totalBytes, 6_888_896);
  assert.ok(step.output.text.length <= 1000 && step.output.omittedBytes > 6_000_000);
  const all = await agent.output(step.handle, 500);
  assert.ok(all.text.startsWith("1\n2\n") && all.totalBytes === 6_888_896);
});
