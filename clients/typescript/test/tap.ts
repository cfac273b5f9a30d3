// A proxy that records what both sides send.
import type { Server, Socket } from "node:net";
import { connect, createServer } from "node:net";
import type { AddressInfo } from "node:net";
import { TemporaryDirectory } from "./server.js";

export class Tap implements AsyncDisposable {
  readonly #sockets = new Set<Socket>();
  readonly #fromClient: Buffer[] = [];
  readonly #fromServer: Buffer[] = [];
  private constructor(
    readonly url: string,
    private readonly isWebSocket: boolean,
    private readonly server: Server,
    private readonly directory: TemporaryDirectory,
  ) {}

  /** Starts a proxy of the same kind before a server on a unix socket or a WebSocket. */
  static async start(target: string): Promise<Tap> {
    const isWebSocket = target.startsWith("ws:");
    const directory = await TemporaryDirectory.make();
    const server = createServer((client) => {
      const { hostname, port } = new URL(target);
      const upstream = isWebSocket ? connect(Number(port), hostname) : connect(target.slice("unix://".length));
      for (const [from, to, record] of [[client, upstream, tap.#fromClient], [upstream, client, tap.#fromServer]] as const) {
        tap.#sockets.add(from);
        from.on("data", (chunk: Buffer) => record.push(chunk)).on("error", () => to.destroy());
        from.pipe(to);
      }
    });
    const path = `${directory.path}/tap.sock`;
    await new Promise<void>((done) => (isWebSocket ? server.listen(0, "127.0.0.1", done) : server.listen(path, done)));
    const url = isWebSocket ? `ws://127.0.0.1:${(server.address() as AddressInfo).port}` : `unix://${path}`;
    const tap = new Tap(url, isWebSocket, server, directory);
    return tap;
  }

  /** What the client has sent on its only connection, without masks. */
  get fromClient(): Buffer {
    const sent = Buffer.concat(this.#fromClient);
    return this.isWebSocket ? unmasked(sent) : sent;
  }

  /** What the server has sent. */
  get fromServer(): Buffer {
    return Buffer.concat(this.#fromServer);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    await new Promise((done) => this.server.close(done));
    await this.directory[Symbol.asyncDispose]();
  }
}

/** Removes the head of the request and the masks of the frames behind it. */
function unmasked(sent: Buffer): Buffer {
  const payloads: Buffer[] = [];
  for (let at = sent.indexOf("\r\n\r\n") + 4; at < sent.length;) {
    const short = sent[at + 1]! & 0x7f;
    const length = short === 127 ? Number(sent.readBigUInt64BE(at + 2)) : short === 126 ? sent.readUInt16BE(at + 2) : short;
    const keyAt = at + (short === 127 ? 10 : short === 126 ? 4 : 2);
    const payload = Buffer.from(sent.subarray(keyAt + 4, keyAt + 4 + length));
    for (let index = 0; index < payload.length; index++) payload[index]! ^= sent[keyAt + (index & 3)]!;
    payloads.push(payload);
    at = keyAt + 4 + length;
  }
  return Buffer.concat(payloads);
}
