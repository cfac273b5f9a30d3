// Tells the stories of spec/behaviour.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { existsSync, readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { GapError, NoMatchError, RefusedError, connect } from "../src/index.js";
import type { ConnectOptions, Exit, LocalHost, Process, StartOptions } from "../src/index.js";
import { RemexServer, TemporaryDirectory, remexProgram, repository, within } from "./server.js";
import type { Message } from "./server.js";
import { WebServer } from "./web.js";

interface Target {
  name: string;
  url?: string;
  program?: string[];
  token?: string;
  ca?: string;
  faults?: boolean;
}

interface Story {
  name: string;
  steps: Message[];
  faults?: boolean;
}

/** The longest time that a story may take. */
const STORY_MS = 120_000;

const directory = join(repository, "spec/behaviour");
const given = process.env["REMEX_BEHAVIOUR_TARGETS"];
const targets: Target[] = given ? (JSON.parse(given) as Target[]) : [{ name: "unix" }, { name: "ws" }, { name: "stdio" }];
const files = existsSync(directory) ? readdirSync(directory).filter((name) => name.endsWith(".json")) : [];

let own: RemexServer | undefined;
let web: WebServer;

before(async () => {
  web = await WebServer.start();
  if (!given) own = await RemexServer.start(["unix://{dir}/s.sock", "ws://127.0.0.1:0"]);
});

after(async () => {
  await own?.[Symbol.asyncDispose]();
  await web[Symbol.asyncDispose]();
});

for (const target of targets) {
  // Over a failing network, most of the time is spent waiting before reconnects.
  describe(target.name, { concurrency: target.faults ? 4 : 1 }, () => {
    for (const file of files) {
      for (const story of JSON.parse(readFileSync(join(directory, file), "utf8")) as Story[]) {
        if (target.faults && story.faults === false) continue;
        test(`${target.name}: ${story.name}`, () => within("the end of the story", tell(story, target), STORY_MS));
      }
    }
  });
}

test("there are stories", { skip: files.length === 0 && "spec/behaviour is not there" }, () => assert.ok(files.length > 3));

async function tell(story: Story, target: Target): Promise<void> {
  await using scratch = await TemporaryDirectory.make();
  const teller = new Teller(await open(target), scratch.path, target.faults ?? false);
  try {
    await teller.tell(story.steps, {});
  } finally {
    await teller.host.end();
  }
}

function open(target: Target): Promise<LocalHost> {
  const options: ConnectOptions = target.faults
    ? { keepAliveIntervalMs: 300, keepAliveTimeoutMs: 300, connectTimeoutMs: 1000, handshakeTimeoutMs: 3000, detachTtlMs: 60_000, connectRetryMs: 60_000 }
    : {};
  return connect(target.url ?? target.program ?? ownTarget(target.name), {
    ...options, token: target.token, tls: target.ca === undefined ? undefined : { ca: readFileSync(target.ca) },
  });
}

function ownTarget(name: string): string | string[] {
  if (name === "stdio") return [remexProgram(), "serve", "--listen", "stdio"];
  return own!.urls.find((url) => url.startsWith(name))!;
}

class Teller {
  readonly #processes = new Map<string, Process>();

  constructor(
    readonly host: LocalHost,
    private readonly directory: string,
    private readonly isFailing: boolean,
  ) {}

  async tell(steps: Message[], variables: Record<string, string>): Promise<void> {
    for (const step of steps) await this.#step(step, variables);
  }

  async #step(step: Message, variables: Record<string, string>): Promise<void> {
    const name = Object.keys(step).find((member) => member !== "gives" && member !== "fails")!;
    if (name === "together") return void (await Promise.all((step[name] as Message[][]).map((steps) => this.tell(steps, variables))));
    if (name === "repeat") return this.#repeat(step[name], variables);
    const full = this.#substituted(step, variables);
    const outcome = await this.#do(name, full[name], variables, step[name]).then(
      (gives) => ({ gives, error: undefined }),
      (error: unknown) => ({ gives: undefined, error }),
    );
    if (full["fails"]) {
      assert.ok(outcome.error !== undefined, `${JSON.stringify(step)} does not fail`);
      const { kind } = full["fails"];
      if (kind !== undefined) assert.equal(outcome.error instanceof RefusedError && outcome.error.kind, kind, String(outcome.error));
      return;
    }
    if (outcome.error !== undefined) throw outcome.error;
    for (const [member, expected] of Object.entries(full["gives"] ?? {})) check(name, member, (outcome.gives ?? {})[member], expected);
  }

  async #repeat({ times, together, steps }: Message, variables: Record<string, string>): Promise<void> {
    const rounds = Array.from({ length: times }, (_, index) => ({ ...variables, N: String(index + 1) }));
    if (together) await Promise.all(rounds.map((round) => this.tell(steps, round)));
    else for (const round of rounds) await this.tell(steps, round);
  }

  #substituted(value: any, variables: Record<string, string>): any {
    const all: Record<string, string> = { ...variables, DIR: this.directory, WEB: web.url };
    if (typeof value === "string") return value.replace(/\$\{(DIR|WEB|N)\}/g, (whole, name: string) => all[name] ?? whole);
    if (Array.isArray(value)) return value.map((item) => this.#substituted(item, variables));
    if (typeof value !== "object" || value === null) return value;
    return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, this.#substituted(item, variables)]));
  }

  async #do(name: string, step: Message, variables: Record<string, string>, raw: Message): Promise<Message | undefined> {
    const { files } = this.host;
    const process = step["of"] === undefined ? undefined : this.#processes.get(step["of"]);
    const exit = async (): Promise<Message> => described(await process!.wait());
    switch (name) {
      case "start":
        this.#processes.set(step["as"], await this.host.start(argv(step), this.#options(step)));
        return undefined;
      case "run": {
        const input = step["stdin"] === undefined ? undefined : bytes(step["stdin"]);
        const output = await this.host.run(argv(step), { ...this.#options(step), input });
        return { ...described(output), stdout: output.stdout, stderr: output.stderr };
      }
      case "write":
        return void (await process!.stdin.write(bytes(step["data"])));
      case "closeInput":
        return process!.stdin.close() as Promise<undefined>;
      case "output":
        return outputOf(process!);
      case "lines": {
        const lines: [string, string][] = [];
        for await (const line of process!.lines()) lines.push([line.stream, line.text]);
        return { lines };
      }
      case "exit":
        return exit();
      case "waitFor": {
        try {
          return { matched: (await process!.waitFor(new RegExp(step["pattern"]))).match[0] };
        } catch (error) {
          if (!(error instanceof NoMatchError)) throw error;
          return exit();
        }
      }
      case "waitForSilence": {
        const ended = await process!.waitForSilence(step["ms"]);
        return ended ? described(ended) : { silent: true };
      }
      case "signal":
        return process!.signal(step["name"]) as Promise<undefined>;
      case "terminate":
        return process!.terminate({ graceMs: step["graceMs"] }) as Promise<undefined>;
      case "kill":
        return process!.kill() as Promise<undefined>;
      case "resize":
        return process!.resize({ rows: step["rows"], cols: step["cols"] }) as Promise<undefined>;
      case "snapshot": {
        const { stdout, omittedBytes } = await process!.snapshot({ maxBytes: step["maxBytes"] });
        return { stdoutStarts: stdout, stdoutEnds: stdout, truncated: omittedBytes > 0 };
      }
      case "attach":
        this.#processes.set(step["as"], await this.host.attach(process!.id));
        return undefined;
      case "list":
        return { running: (await this.host.processes()).filter((entry) => entry.state === "running").length };
      case "writeFile": {
        const condition = step["ifHash"] === undefined ? {} : { ifMatch: hashOf(bytes(step["ifHash"])) };
        assert.equal(await files.write(step["path"], bytes(step["data"]), condition), hashOf(bytes(step["data"])));
        return undefined;
      }
      case "readFile":
        return { data: await files.read(step["path"]) };
      case "metadata": {
        const { isSymlink, kind, size, permissions } = await files.metadata(step["path"]);
        return { kind: isSymlink ? "symlink" : kind, size, mode: permissions?.toString(8) };
      }
      case "makeDirectory":
        return files.mkdir(step["path"]) as Promise<undefined>;
      case "listDirectory": {
        const names: string[] = [];
        for await (const entry of files.list(step["path"])) names.push(entry.name);
        return { names: names.sort() };
      }
      case "copy":
        return files.copy(step["from"], step["to"], { recursive: true }) as Promise<undefined>;
      case "rename":
        return files.rename(step["from"], step["to"]) as Promise<undefined>;
      case "link":
        return files.symlink(step["path"], step["target"]) as Promise<undefined>;
      case "remove":
        return files.remove(step["path"], { recursive: true }) as Promise<undefined>;
      case "hash":
        return { of: (await files.hash(step["path"])).hash };
      case "upload": {
        const data = bytes(step["data"]);
        const blocks = Array.from({ length: Math.ceil(data.length / 100_000) }, (_, index) => data.subarray(index * 100_000, (index + 1) * 100_000));
        return void (await files.upload(blocks, step["path"]));
      }
      case "download": {
        const blocks: Uint8Array[] = [];
        for await (const block of await files.open(step["path"])) blocks.push(block);
        return { data: Buffer.concat(blocks) };
      }
      case "uploadTree":
        return { ...(await files.uploadTree(step["from"], step["to"], { stopAtFirstFailure: true })) };
      case "downloadTree":
        return { ...(await files.downloadTree(step["from"], step["to"], { stopAtFirstFailure: true })) };
      case "watch": {
        await using watch = await files.watch(step["path"]);
        await this.tell(raw["while"], variables);
        for await (const { changes, overflow } of watch) {
          if (changes.some(({ path }) => path.endsWith(step["until"]))) break;
          if (overflow) await this.tell(raw["while"], variables);
        }
        return undefined;
      }
      case "http":
        return this.#http(step);
      default:
        throw new Error(`the step \`${name}\` is not known`);
    }
  }

  async #http(step: Message): Promise<Message> {
    const request = { method: step["method"], body: step["body"] === undefined ? undefined : bytes(step["body"]) };
    const method = (headers: Headers): string | undefined => headers.get("x-method") ?? undefined;
    if (!step["stream"]) {
      const { status, body, headers } = await this.host.http.request(step["url"], request);
      return { status, body, method: method(headers) };
    }
    const { status, body, headers } = await this.host.http.stream(step["url"], request);
    const parts: Uint8Array[] = [];
    for await (const part of body) parts.push(part);
    return { status, body: Buffer.concat(parts), method: method(headers) };
  }

  #options(command: Message): StartOptions {
    return {
      cwd: command["cwd"] ?? this.directory,
      env: command["env"],
      stdin: command["input"] === "pipe" ? "pipe" : undefined,
      tty: command["tty"],
      timeoutMs: command["timeoutMs"],
      retainBytes: command["retainBytes"],
      overflow: command["overflow"] ?? (this.isFailing ? "hold" : undefined),
      retainMs: this.isFailing ? 180_000 : undefined,
    };
  }
}

function argv(command: Message): string[] {
  return command["argv"] ?? ["sh", "-c", command["shell"]];
}

function described({ exitCode, signal, cause }: Exit): Message {
  return { code: exitCode, signal: signal ?? null, cause };
}

async function outputOf(process: Process): Promise<Message> {
  const streams: Record<string, Uint8Array[]> = { stdout: [], stderr: [], pty: [] };
  let [lost, arrived, complete] = [0, 0, false];
  for await (const event of process.events()) {
    if (event.type === "output") {
      streams[event.stream]!.push(event.bytes);
      arrived += event.bytes.length;
    } else if (event.type === "gap") {
      if (event.bytes === undefined) throw new GapError(undefined);
      lost += event.bytes;
    } else if (event.type === "closed") {
      const { stdout, stderr, pty } = event.produced!;
      complete = arrived + lost === stdout + stderr + pty;
    }
  }
  const all = (name: string): Buffer => Buffer.concat(streams[name]!);
  return { stdout: all("stdout"), stderr: all("stderr"), terminal: all("pty"), lost, complete };
}

/** Returns the bytes that a story describes. */
function bytes(data: any): Buffer {
  if (typeof data === "string") return Buffer.from(data);
  if ("base64" in data) return Buffer.from(data.base64, "base64");
  if ("numbers" in data) return Buffer.from(Array.from({ length: data.numbers }, (_, index) => `${index + 1}\n`).join(""));
  if ("zeros" in data) return Buffer.alloc(data.zeros);
  if ("pattern" in data) return Buffer.from(Uint8Array.from({ length: data.pattern }, (_, index) => index % 251));
  if ("text" in data) return Buffer.from(String(data.text).repeat(data.times));
  return Buffer.concat(data.join.map(bytes));
}

function hashOf(data: Uint8Array): string {
  return `sha256:${createHash("sha256").update(data).digest("hex")}`;
}

const DATA = new Set(["stdout", "stderr", "terminal", "data", "body"]);

function check(step: string, member: string, seen: any, expected: any): void {
  const what = `\`${member}\` of \`${step}\``;
  if (step === "hash" && member === "of") return assert.equal(seen, hashOf(bytes(expected)), what);
  if (member === "stdoutStarts") return assert.deepEqual(Buffer.from(seen).subarray(0, bytes(expected).length), bytes(expected), what);
  if (member === "stdoutEnds") return assert.deepEqual(Buffer.from(seen).subarray(-bytes(expected).length), bytes(expected), what);
  if (!DATA.has(member)) return assert.deepEqual(seen, expected, what);
  const [is, wanted] = [Buffer.from(seen), bytes(expected)];
  if (is.equals(wanted)) return;
  const at = is.findIndex((byte, index) => byte !== wanted[index]);
  assert.fail(`${what} has ${is.length} bytes instead of ${wanted.length}, and differs from byte ${at} on: ${is.subarray(Math.max(0, at), at + 40).toString("latin1")}`);
}
