// Processes of the real server, beyond what the behaviour suite tells.
import assert from "node:assert/strict";
import { writeFile } from "node:fs/promises";
import nodeProcess from "node:process";
import { after, before, test } from "node:test";
import { GapError, NoMatchError, RefusedError, UsageError, connect } from "../src/index.js";
import type { Line, LocalHost, Match } from "../src/index.js";
import { RemexServer, TemporaryDirectory, within } from "./server.js";

let server: RemexServer;
let host: LocalHost;
before(async () => {
  server = await RemexServer.start(["ws://127.0.0.1:0"]);
  host = await connect(server.url);
});
after(async () => {
  await host.end();
  await server[Symbol.asyncDispose]();
});

test("a consumer that does not read holds up its own process only, in bounded memory", async () => {
  await using stalled = await host.start(["sh", "-c", "head -c 50000000 /dev/zero; : > $0", `${server.directory.path}/written`]);
  const events = stalled.events();
  await within("the first event", events.next());
  const other = await within("another process", host.run(["head", "-c", "20000000", "/dev/zero"]));
  assert.equal(other.stdout.length, 20_000_000);
  const { stdout } = (await stalled.info())!.produced;
  assert.ok(stdout < 4_000_000, `${stdout} bytes were produced for a consumer that does not read`);
  assert.equal(await host.files.exists(`${server.directory.path}/written`), false);
  // When the consumer leaves, the process goes on.
  await events.return!();
  assert.equal((await within("the exit", stalled.wait())).exitCode, 0);
});

test("a command runs as another user where the server is root", async () => {
  if (nodeProcess.geteuid!() !== 0) {
    await assert.rejects(host.run(["id"], { user: "daemon" }), UsageError);
    return;
  }
  const { stdout } = await within("the end", host.run(["sh", "-c", "id -un; echo $HOME $PWD"], { user: "daemon" }));
  assert.match(new TextDecoder().decode(stdout), /^daemon\n(\/.*) \1\n$/);
  const inRoot = await within("the end", host.run(["pwd"], { user: "1", cwd: "/" }));
  assert.equal(new TextDecoder().decode(inRoot.stdout), "/\n");
  await assert.rejects(host.run(["id"], { user: "no-such-user" }), /there is no user `no-such-user`/);
});

test("a server with small limits still sends everything", async () => {
  await using directory = await TemporaryDirectory.make();
  const config = `${directory.path}/server.toml`;
  const script = "seq 100000; i=0; while [ $i -lt 100 ]; do echo $i; i=$((i+1)); sleep 0.001; done";
  for (const limit of ["retain_events = 20", "retain_bytes = '16KiB'", "session_retain_bytes = '64KiB'"]) {
    await writeFile(config, `[limits]\n${limit}\n`);
    await using small = await RemexServer.start(["ws://127.0.0.1:0", "unix://{dir}/s"], "--config", config);
    for (const url of small.urls) {
      const host = await connect(url);
      const { stdout } = await within(`the output with ${limit}`, host.run(["sh", "-c", script]));
      assert.equal(new TextDecoder().decode(stdout).split("\n").length - 1, 100_100);
      await host.end();
    }
  }
});

test("standard streams are web streams", async () => {
  const process = await host.start(["sh", "-c", "tr a-z A-Z; echo done >&2"], { stdin: "pipe" });
  const source = new ReadableStream<string>({
    start(controller) {
      for (const text of ["hello ", "web ", "streams"]) controller.enqueue(text);
      controller.close();
    },
  });
  const written = source.pipeTo(process.stdin.writable());
  const [stdout, stderr] = await within("the output", Promise.all([textOf(process.stdout), textOf(process.stderr), written]));
  assert.deepEqual([stdout, stderr], ["HELLO WEB STREAMS", "done\n"]);
});

test("accessing the streams of a process does not block it", async () => {
  const ending = await host.start(["sh", "-c", "head -c 2000000 /dev/zero; head -c 2000000 /dev/zero >&2"]);
  const { stdin, stdout, stderr, terminal } = ending;
  ending.output();
  assert.ok(stdin && stdout && stderr && terminal);
  assert.equal((await within("the exit", ending.wait())).exitCode, 0);
  const read = await host.start(["sh", "-c", "head -c 2000000 /dev/zero; head -c 2000000 /dev/zero >&2"]);
  let length = 0;
  const streams = [read.stdout, read.stderr];
  for await (const bytes of streams[0]!) length += bytes.length;
  assert.deepEqual([length, (await within("the exit", read.wait())).exitCode], [2_000_000, 0]);
});

test("streams that are read concurrently are complete", async () => {
  const both = await host.start(["sh", "-c", "seq 1 200000; seq 1 200000 >&2"]);
  const chunks = (async () => {
    let length = 0;
    for await (const { bytes } of both.output()) length += bytes.length;
    return length;
  })();
  const [stdout, stderr, length] = await within("the output", Promise.all([textOf(both.stdout), textOf(both.stderr), chunks]));
  assert.ok(stdout === stderr && stdout.endsWith("\n200000\n"));
  assert.equal(length, stdout.length + stderr.length);
});

async function textOf(stream: ReadableStream<Uint8Array>): Promise<string> {
  let text = "";
  for await (const chunk of stream.pipeThrough(new TextDecoderStream() as unknown as ReadableWritablePair<string, Uint8Array>)) text += chunk;
  return text;
}

test("every wait can be aborted", async () => {
  await using process = await host.start(["cat"], { stdin: "pipe" });
  const reason = new Error("enough");
  const waits: ((signal: AbortSignal) => Promise<unknown>)[] = [
    (signal) => process.wait({ signal }),
    (signal) => process.waitFor("never", { signal }),
    (signal) => process.waitForSilence(1e6, { signal }),
    (signal) => process.collect({ signal }),
    (signal) => process.events({ signal }).next(),
    (signal) => process.lines({ signal }).next(),
    (signal) => process.read({ waitMs: 1e6, signal }),
    (signal) => host.call("process/wait", { processId: process.id }, { signal }),
    (signal) => host.run(["sleep", "1000"], { signal }),
    async (signal) => (await host.files.watch("/tmp", { recursive: false, signal })).next().then(() => new Promise(() => undefined)),
  ];
  for (const wait of waits) {
    const controller = new AbortController();
    const waiting = wait(controller.signal);
    setTimeout(() => controller.abort(reason), 20);
    await assert.rejects(within(String(wait), waiting), reason, String(wait));
    await assert.rejects(within(String(wait), wait(AbortSignal.abort(reason))), reason, String(wait));
  }
  await process.stdin.write("still there\n");
  assert.ok(await within("the echo", process.waitFor("still there")));
});

test("an aborted run leaves nothing behind", async () => {
  await using directory = await TemporaryDirectory.make();
  const controller = new AbortController();
  const run = host.run(["sh", "-c", `echo $$ > pid; exec sleep 1000`], { cwd: directory.path, signal: controller.signal });
  while (!(await host.files.exists(`${directory.path}/pid`)));
  controller.abort();
  await assert.rejects(run);
  const gone = await within("the end of the process", host.run(["sh", "-c", "while kill -0 $(cat pid) 2>&-; do sleep 0.01; done"], { cwd: directory.path }));
  assert.ok(gone.ok);
});

test("an aborted start does not end another process with its id", async () => {
  await using other = await connect(server.url, { session: "aborted-start" });
  const build = await other.start(["cat"], { id: "build", stdin: "pipe" });
  build.detach();
  await assert.rejects(other.start(["true"], { id: "build", signal: AbortSignal.abort() }));
  const controller = new AbortController();
  const start = other.start(["true"], { id: "build", signal: controller.signal });
  controller.abort();
  await assert.rejects(within("the abort", start));
  await within("a later start", other.run(["true"]));
  assert.deepEqual((await other.processes()).find((entry) => entry.processId === "build")?.state, "running");
  await other.end();
});

test("a search that continues after a match misses nothing", async () => {
  // The euro sign is split between two events.
  const script = "printf 'ready\\nport 80\\nname \\342'; read line; printf '\\202\\254\\n'; cat";
  await using process = await host.start(["sh", "-c", script], { stdin: "pipe" });
  const name = await within("the name", process.waitFor(/name /));
  const ready = await within("the word", process.waitFor("ready"));
  const port = await within("the port", process.waitFor(/port (\d+)/, { after: ready }));
  assert.equal(port.match[1], "80");
  await process.stdin.write("\n");
  for (const match of [name, port]) assert.ok(await within("the sign", process.waitFor(/\u20ac/, { after: match })));
  await process.stdin.close();
  await assert.rejects(within("the end", process.waitFor("ready", { after: ready })), (error: unknown) => error instanceof NoMatchError && error.exit?.exitCode === 0);
  const gone = undefined as unknown as Match;
  await assert.rejects(within("the refusal", process.waitFor("ready", { after: gone })), UsageError);
  assert.deepEqual([ready.before, port.before, name.before], ["", "\n", "ready\nport 80\n"]);
});

test("one signal can serve any number of calls", async () => {
  const warnings: Error[] = [];
  const onWarning = (warning: Error): void => void warnings.push(warning);
  nodeProcess.on("warning", onWarning);
  const controller = new AbortController();
  const { signal } = controller;
  await using directory = await TemporaryDirectory.make();
  const running = Array.from({ length: 30 }, () => host.run(["cat"], { signal, tty: true }));
  const watches = await Promise.all(Array.from({ length: 15 }, () => host.files.watch(directory.path, { signal })));
  const listed = await within("the calls", Promise.all(Array.from({ length: 30 }, () => host.info({ signal }))));
  assert.equal(listed.length, 30);
  controller.abort();
  for (const run of running) await assert.rejects(within("the abort", run), { name: "AbortError" });
  for (const watch of watches) await assert.rejects(within("the abort", watch.next()), { name: "AbortError" });
  // Warnings are emitted in a later turn.
  await new Promise((resolve) => setImmediate(resolve));
  nodeProcess.off("warning", onWarning);
  assert.deepEqual(warnings, []);
});

test("trees are copied with names that are not UTF-8", { skip: nodeProcess.platform !== "linux" && "names are UTF-8 here" }, async () => {
  await using directory = await TemporaryDirectory.make();
  const script = String.raw`d=from/$(printf 'd\377'); mkdir -p $d/sub; echo a > from/a; echo b > from/$(printf 'n\377'); echo c > $d/c; echo d > $d/sub/$(printf '%%\376'); ln -s a $d/$(printf 'l\377'); head -c 300000 /dev/zero > $d/$(printf 'big\377')`;
  assert.ok((await host.run(["sh", "-ec", script], { cwd: directory.path })).ok);
  const [from, to, back] = ["from", "to", "back"].map((name) => `${directory.path}/${name}`) as [string, string, string];
  for (const copy of [() => host.files.uploadTree(from, to), () => host.files.downloadTree(to, back)]) {
    const report = await within("the copy", copy());
    assert.deepEqual([report.failures, report.files, report.directories, report.links], [[], 5, 2, 1]);
    const again = await within("the second copy", copy());
    assert.deepEqual([again.failures, again.files, again.unchanged], [[], 0, 6]);
  }
  for (const copied of [to, back]) {
    const difference = await host.run(["diff", "-r", "--no-dereference", from, copied]);
    assert.deepEqual([difference.exitCode, difference.stdoutText], [0, ""]);
  }
});

test("a late consumer gets retained output, and a gap for the rest", async () => {
  const process = await host.start(["sh", "-c", "seq 1 200000"], { retainBytes: 65536, overflow: "evict" });
  await process.wait();
  await assert.rejects(within("the close", process.waitFor("no such text")), NoMatchError);
  const events = [];
  for await (const event of process.events()) events.push(event.type);
  assert.deepEqual([events[0], events.at(-2), events.at(-1)], ["gap", "exited", "closed"]);
  await assert.rejects(process.collect(), GapError);
  const lines: Line[] = [];
  await assert.rejects(async () => {
    for await (const line of process.lines()) lines.push(line);
  }, GapError);
  const { afterSeq } = await process.seek({ tailBytes: 100 });
  const { chunks } = await process.read({ afterSeq });
  assert.ok(Buffer.concat(chunks.map((chunk) => chunk.bytes)).toString().endsWith("199999\n200000\n"));
});

test("long lines are split between characters", async () => {
  const process = await host.start(["sh", "-c", "for i in 1 2 3 4 5 6 7; do printf 'ü'; done; printf '\\nshort\\n\\n'"]);
  const lines: [string, boolean][] = [];
  for await (const line of process.lines({ maxLen: 5 })) lines.push([line.text, line.isContinued]);
  assert.deepEqual(lines, [["üü", true], ["üü", true], ["üü", true], ["ü", false], ["short", false], ["", false]]);
});

test("`await using` ends a process with its scope", async () => {
  let id: string;
  {
    await using process = await host.start(["sleep", "1000"]);
    ({ id } = process);
  }
  const entry = (await host.processes()).find((process) => process.processId === id);
  assert.notEqual(entry?.state, "running");
});

test("arguments may be bytes, and wrong ones are refused before anything is sent", async () => {
  const { stdout } = await host.run(["printf", "%s", Uint8Array.of(0xff, 0x41)]);
  assert.deepEqual([...stdout], [0xff, 0x41]);
  await assert.rejects(host.run([]), UsageError);
  await assert.rejects(host.run("ls" as unknown as string[]), UsageError);
  await assert.rejects(host.start(["no-such-program"]), (error: unknown) => error instanceof RefusedError && error.kind === "programNotFound" && error.hint !== undefined);
});

test("hundreds of concurrent calls are all answered", async () => {
  await using process = await host.start(["sleep", "1000"]);
  const waits = Array.from({ length: 500 }, () => host.call("process/wait", { processId: process.id }));
  const reads = Array.from({ length: 2000 }, (_, index) => host.files.exists(`/no/such/${index}`));
  assert.ok((await within("the files", Promise.all(reads))).every((exists) => !exists));
  await process.kill();
  const answers = await within("the waits", Promise.all(waits));
  assert.ok(answers.every(({ signal }) => signal === "SIGKILL"));
});
