// Disconnects at places that a seed decides: nothing is lost, and nothing happens twice.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { RequestInterruptedError, connect } from "../src/index.js";
import type { ConnectOptions, LocalHost } from "../src/index.js";
import { FaultProxy, randomFrom } from "./fault-proxy.js";
import type { Fault } from "./fault-proxy.js";
import { RemexServer, TemporaryDirectory, within } from "./server.js";

const SEEDS = (process.env["REMEX_SEEDS"] ?? "1,2,3").split(",").map(Number);

const OPTIONS: ConnectOptions = {
  keepAliveIntervalMs: 100, keepAliveTimeoutMs: 200, connectTimeoutMs: 1000, handshakeTimeoutMs: 1000,
  connectRetryMs: 20_000, detachTtlMs: 60_000,
};

let server: RemexServer;
before(async () => void (server = await RemexServer.start(["ws://127.0.0.1:0"])));
after(() => server[Symbol.asyncDispose]());

/** Fails a number of connections, each after a random number of bytes, then lets them pass. */
function faults(seed: number, count: number, maxBytes: number): () => Fault | undefined {
  const random = randomFrom(seed);
  let left = count;
  return () => (left-- > 0 ? { afterBytes: 600 + Math.floor(random() ** 2 * maxBytes), kind: random() < 0.8 ? "cut" : "silence" } : undefined);
}

async function withFaults(seed: number, count: number, maxBytes: number, story: (host: LocalHost, proxy: FaultProxy) => Promise<void>): Promise<void> {
  await using proxy = await FaultProxy.start(server.url, faults(seed, count, maxBytes));
  const host = await within("a connection", connect(proxy.url, OPTIONS), 30_000);
  try {
    await within("the end of the story", story(host, proxy), 60_000);
    // On a busy machine the client itself gives up connections that have not failed yet.
    assert.ok(proxy.faults > 0 || host.disconnects > 0, "nothing went wrong");
  } finally {
    await host.end();
  }
}

function sha256(...parts: (Uint8Array | string)[]): string {
  const hash = createHash("sha256");
  for (const part of parts) hash.update(part);
  return hash.digest("hex");
}

// Most of the time is spent waiting before reconnects.
describe("disconnects", { concurrency: true }, () => {
  for (const seed of SEEDS) tellStories(seed);
});

function tellStories(seed: number): void {
  test(`large output arrives complete across disconnects, seed ${seed}`, () =>
    withFaults(seed, 7, 800_000, async (host) => {
      const process = await host.start(["sh", "-c", "seq 1 600000; seq 1 60000 >&2; exit 3"], { overflow: "hold", retainMs: 60_000 });
      const [stdout, stderr] = [createHash("sha256"), createHash("sha256")];
      let last = 0;
      for await (const event of process.events()) {
        assert.equal(event.seq, last + 1, "an event is missing or comes twice");
        last = event.seq;
        if (event.type === "output") (event.stream === "stdout" ? stdout : stderr).update(event.bytes);
        else assert.notEqual(event.type, "gap");
      }
      const numbers = (count: number): string => Array.from({ length: count }, (_, index) => `${index + 1}\n`).join("");
      assert.deepEqual([stdout.digest("hex"), stderr.digest("hex")], [sha256(numbers(600_000)), sha256(numbers(60_000))]);
      assert.equal((await process.wait()).exitCode, 3);
      assert.ok(host.disconnects > 0);
    }));

  test(`large input arrives once across disconnects, seed ${seed}`, () =>
    withFaults(seed, 7, 800_000, async (host) => {
      const input = Buffer.from(Uint8Array.from({ length: 4_000_000 }, (_, index) => (index * 7 + (index >> 8)) % 256));
      const process = await host.start(["sha256sum"], { stdin: "pipe", overflow: "hold" });
      // Pieces of several sizes, all on their way at once.
      const random = randomFrom(seed);
      const writes: Promise<void>[] = [];
      for (let at = 0; at < input.length; ) {
        const length = 1 + Math.floor(random() * 300_000);
        writes.push(process.stdin.write(input.subarray(at, at + length)));
        at += length;
      }
      await Promise.all(writes);
      await process.stdin.close();
      assert.equal((await process.collect()).stdoutText, `${sha256(input)}  -\n`);
    }));

  test(`each start happens once across disconnects, seed ${seed}`, () =>
    withFaults(seed, 7, 40_000, async (host) => {
      await using scratch = await TemporaryDirectory.make();
      const started = join(scratch.path, "started");
      await Promise.all(Array.from({ length: 60 }, async (_, index) => {
        const output = await host.run(["sh", "-c", `echo ${index} >> ${started}; seq 1 500`], { overflow: "hold", retainMs: 60_000 });
        assert.equal(output.stdoutText.trim().split("\n").length, 500);
      }));
      const numbers = (await readFile(started, "utf8")).trim().split("\n").map(Number).sort((a, b) => a - b);
      assert.deepEqual(numbers, Array.from({ length: 60 }, (_, index) => index));
    }));

  test(`files and trees are copied completely across disconnects, seed ${seed}`, () =>
    withFaults(seed, 7, 900_000, async (host) => {
      await using scratch = await TemporaryDirectory.make();
      const [from, up, down] = ["from", "up", "down"].map((name) => join(scratch.path, name)) as [string, string, string];
      await mkdir(join(from, "below"), { recursive: true });
      for (let index = 0; index < 40; index++) await writeFile(join(from, "below", `${index}`), `${index}\n`.repeat(1000));
      await writeFile(join(from, "large"), Buffer.alloc(3_000_000, "remex"));
      const sent = await host.files.uploadTree(from, up, { stopAtFirstFailure: true });
      assert.deepEqual([sent.files, sent.failures], [41, []]);
      const fetched = await host.files.downloadTree(up, down, { stopAtFirstFailure: true });
      assert.deepEqual([fetched.files, fetched.failures], [41, []]);
      const check = `diff -r ${from} ${up} && diff -r ${from} ${down} && cd ${from} && find . -type f -exec stat -c '%n %Y %a' {} + | sort > ${from}.list && cd ${down} && find . -type f -exec stat -c '%n %Y %a' {} + | sort | cmp - ${from}.list`;
      const { ok, stdoutText, stderrText } = await host.run(["sh", "-c", check], { overflow: "hold" });
      assert.ok(ok, stdoutText + stderrText);
      assert.deepEqual([(await host.files.uploadTree(from, up)).files, (await host.files.downloadTree(up, down)).files], [0, 0]);
    }));
}

test("a call that cannot be repeated fails as interrupted", async () => {
  // The proxy lets the handshake pass, then the first request and no answer.
  let isFirst = true;
  await using proxy = await FaultProxy.start(server.url, () => {
    const fault = isFirst ? ({ afterBytes: 1e9, kind: "cut" } as const) : undefined;
    isFirst = false;
    return fault;
  });
  const host = await connect(proxy.url, OPTIONS);
  try {
    const process = await host.start(["sleep", "1000"]);
    const signalled = process.signal("CONT");
    proxy.cutAll();
    await assert.rejects(within("the signal", signalled), RequestInterruptedError);
    await process.kill();
    assert.equal((await within("the exit", process.wait())).signal, "SIGKILL");
    assert.equal(host.disconnects, 1);
  } finally {
    await host.end();
  }
});

test("a file too long for any single connection is read completely", async () => {
  await using directory = await TemporaryDirectory.make();
  const path = join(directory.path, "large");
  const content = Buffer.from(Uint8Array.from({ length: 12_000_000 }, (_, index) => (index * 7 + (index >> 8)) % 256));
  await writeFile(path, content);
  await using proxy = await FaultProxy.start(server.url, () => ({ afterBytes: 4_000_000, kind: "cut" }));
  const host = await within("a connection", connect(proxy.url, { ...OPTIONS, detachTtlMs: 1000 }));
  const read = await within("the file", host.files.read(path), 60_000);
  assert.ok(content.equals(read));
  assert.ok(host.disconnects > 3, String(host.disconnects));
  await host.close();
});

test("a file is copied over connections that are too short for a block", async () => {
  await using directory = await TemporaryDirectory.make();
  const [path, copy] = [join(directory.path, "large"), join(directory.path, "copy")];
  const content = Buffer.from(Uint8Array.from({ length: 100_000 }, (_, index) => (index * 7 + (index >> 8)) % 256));
  await writeFile(path, content);
  await using proxy = await FaultProxy.start(server.url, () => ({ afterBytes: 60_000, kind: "cut" }));
  const open = (): Promise<LocalHost> => within("a connection", connect(proxy.url, OPTIONS));
  const [up, down] = await Promise.all([open(), open()]);
  const blocks: Uint8Array[] = [];
  const read = async (): Promise<void> => {
    for await (const block of await down.files.open(path)) blocks.push(block);
  };
  await within("both copies", Promise.all([up.files.upload([content], copy), read()]), 60_000);
  assert.ok(content.equals(await readFile(copy)) && content.equals(Buffer.concat(blocks)));
  for (const host of [up, down]) assert.ok(host.disconnects > 3, String(host.disconnects));
  await Promise.all([up.end(), down.end()]);
});
