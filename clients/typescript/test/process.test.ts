// Processes of the real server, beyond what the behaviour suite tells.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { GapError, RefusedError, UsageError, connect } from "../src/index.js";
import type { Line, LocalHost } from "../src/index.js";
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

async function textOf(stream: ReadableStream<Uint8Array>): Promise<string> {
  let text = "";
  for await (const chunk of stream.pipeThrough(new TextDecoderStream() as unknown as ReadableWritablePair<string, Uint8Array>)) text += chunk;
  return text;
}

test("everything that waits can be aborted", async () => {
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

test("a late consumer gets what is retained, and is told what is not", async () => {
  const process = await host.start(["sh", "-c", "seq 1 200000"], { retainBytes: 65536, overflow: "evict" });
  await process.wait();
  await within("the close", process.waitFor("no such text"));
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

test("long lines come in pieces that end between characters", async () => {
  const process = await host.start(["sh", "-c", "for i in 1 2 3 4 5 6 7; do printf 'ü'; done; printf '\\nshort\\n\\n'"]);
  const lines: [string, boolean][] = [];
  for await (const line of process.lines({ maxLen: 5 })) lines.push([line.text, line.isContinued]);
  assert.deepEqual(lines, [["üü", true], ["üü", true], ["üü", true], ["ü", false], ["short", false], ["", false]]);
});

test("using ends a process with its scope", async () => {
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

test("hundreds of calls at once are all answered", async () => {
  await using process = await host.start(["sleep", "1000"]);
  const waits = Array.from({ length: 500 }, () => host.call("process/wait", { processId: process.id }));
  const reads = Array.from({ length: 2000 }, (_, index) => host.files.exists(`/no/such/${index}`));
  assert.ok((await within("the files", Promise.all(reads))).every((exists) => !exists));
  await process.kill();
  const answers = await within("the waits", Promise.all(waits));
  assert.ok(answers.every(({ signal }) => signal === "SIGKILL"));
});
