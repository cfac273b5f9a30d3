// Servers for tests: the real one, and one that a test plays.
import type { ChildProcess } from "node:child_process";
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import type { Server, Socket } from "node:net";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { delimiter, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

/** The root of the repository. */
export const repository = resolve(fileURLToPath(import.meta.url), "../../../../..");

/** Returns the program of the server. */
export function remexProgram(): string {
  const built = ["debug", "release"].map((profile) => join(repository, "target", profile, "remex"));
  const inPath = (process.env["PATH"] ?? "").split(delimiter).map((directory) => join(directory, "remex"));
  const found = [process.env["REMEX_BIN"] ?? "", ...built, ...inPath].find((path) => path !== "" && existsSync(path));
  if (found === undefined) throw new Error("cannot find the program `remex`: build it, or name it in REMEX_BIN");
  return found;
}

/** Fails with what was awaited if it takes too long. */
export async function within<T>(what: string, promise: Promise<T>, ms = 20_000): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`waited ${ms} ms for ${what}`)), ms);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** A directory that is removed with the scope. */
export class TemporaryDirectory implements AsyncDisposable {
  private constructor(readonly path: string) {}

  static async make(): Promise<TemporaryDirectory> {
    return new TemporaryDirectory(await mkdtemp(join(tmpdir(), "remex-ts-")));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await rm(this.path, { recursive: true, force: true });
  }
}

/** A running `remex serve`. */
export class RemexServer implements AsyncDisposable {
  private constructor(
    readonly urls: string[],
    readonly directory: TemporaryDirectory,
    private readonly child: ChildProcess,
  ) {}

  /** Starts a server; `{dir}` in an argument stands for its directory. */
  static async start(listen: string[], ...args: string[]): Promise<RemexServer> {
    const directory = await TemporaryDirectory.make();
    const own = [...listen.flatMap((url) => ["--listen", url]), ...args].map((arg) => arg.replace("{dir}", directory.path));
    const child = spawn(remexProgram(), ["serve", "--exit-on-stdin-close", ...own], { stdio: ["pipe", "pipe", "pipe"] });
    let stderr = "";
    child.stderr.setEncoding("utf8").on("data", (text: string) => (stderr += text));
    const urls = await within("the address of the server", new Promise<string[]>((done, reject) => {
      let stdout = "";
      child.stdout.setEncoding("utf8").on("data", (text: string) => {
        stdout += text;
        const lines = stdout.trim().split("\n");
        if (lines.length >= listen.length) done(lines);
      });
      child.on("exit", () => reject(new Error(`the server has ended: ${stderr}`)));
    }));
    return new RemexServer(urls, directory, child);
  }

  get url(): string {
    return this.urls[0]!;
  }

  async write(name: string, content: string): Promise<string> {
    const path = join(this.directory.path, name);
    await writeFile(path, content);
    return path;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const exited = new Promise((done) => this.child.once("exit", done));
    this.child.kill("SIGKILL");
    await exited;
    await this.directory[Symbol.asyncDispose]();
  }
}

/** One message of the protocol. */
export type Message = Record<string, any>;

/** A connection to a scripted server. */
export interface ScriptedConnection {
  /** Sends a message as a line, or bytes as they are. */
  send(message: Message | string | Buffer): void;
  disconnect(): void;
}

/** A server on a unix socket that a test plays. */
export class ScriptedServer implements AsyncDisposable {
  /** All messages that clients have sent; the bytes beside one are its member `attached`. */
  readonly received: Message[] = [];
  readonly #sockets = new Set<Socket>();
  readonly #listeners = new Set<() => void>();
  private constructor(
    readonly url: string,
    private readonly server: Server,
    private readonly directory: TemporaryDirectory,
  ) {}

  /** Listens; `onMessage` is called for each message of a client. */
  static async listen(onMessage: (message: Message, connection: ScriptedConnection) => void): Promise<ScriptedServer> {
    const directory = await TemporaryDirectory.make();
    const path = join(directory.path, "s.sock");
    const server = createServer((socket) => {
      scripted.#sockets.add(socket);
      const connection: ScriptedConnection = {
        send: (message) => {
          if (Buffer.isBuffer(message)) socket.write(message);
          else socket.write(`${typeof message === "string" ? message : JSON.stringify(message)}\n`);
        },
        disconnect: () => void socket.destroy(),
      };
      let rest: Buffer = Buffer.alloc(0);
      socket.on("data", (bytes: Buffer) => {
        rest = Buffer.concat([rest, bytes]);
        for (let taken = takeMessage(rest); taken; taken = takeMessage(rest)) {
          rest = rest.subarray(taken.length);
          scripted.received.push(taken.message);
          onMessage(taken.message, connection);
        }
        for (const listener of scripted.#listeners) listener();
      });
      socket.on("error", () => undefined);
    });
    await new Promise<void>((done) => server.listen(path, done));
    const scripted = new ScriptedServer(`unix://${path}`, server, directory);
    return scripted;
  }

  /** Waits until a client has sent a message like this. */
  async until(what: string, matches: (message: Message) => boolean): Promise<Message> {
    return within(what, new Promise<Message>((done) => {
      const check = (): void => {
        const found = this.received.find(matches);
        if (found === undefined) return;
        this.#listeners.delete(check);
        done(found);
      };
      this.#listeners.add(check);
      check();
    }));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    await new Promise((done) => this.server.close(done));
    await this.directory[Symbol.asyncDispose]();
  }
}

/** Takes a line, or a binary message with JSON. */
function takeMessage(bytes: Buffer): { message: Message; length: number } | undefined {
  if (bytes[0] !== 0) {
    const length = bytes.indexOf(0x0a) + 1;
    return length === 0 ? undefined : { message: JSON.parse(bytes.toString("utf8", 0, length)) as Message, length };
  }
  if (bytes.length < 5 || bytes.length < 5 + bytes.readUInt32BE(1)) return undefined;
  const length = 5 + bytes.readUInt32BE(1);
  const attachedAt = 13 + bytes.readUInt32BE(9);
  const message = JSON.parse(bytes.toString("utf8", 13, attachedAt)) as Message;
  return { message: { ...message, attached: bytes.subarray(attachedAt, length) }, length };
}

/** The answer to `initialize` of a server with all capabilities. */
export function welcome(sessionId: string, isResumed: boolean): Message {
  return {
    sessionId, protocolVersion: "exec-server.v0", server: { name: "remex", version: "0.1.0" },
    capabilities: { enabled: ["processGap", "cancel", "consumed", "acks"], available: [] },
    resumed: isResumed, detachTtlMs: 30000,
    limits: { messageBytes: 67108864, processes: 4096, retainBytes: 67108864, pendingRequests: 1024, handles: 128 },
  };
}
