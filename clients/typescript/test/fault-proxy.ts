// A proxy whose connections end after a number of bytes, from a seed.
import type { AddressInfo, Server, Socket } from "node:net";
import { connect, createServer } from "node:net";

/** Returns numbers from 0 to 1 that are always the same for a seed. */
export function randomFrom(seed: number): () => number {
  let state = seed;
  return () => {
    // Mulberry32.
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

/** What goes wrong with a connection. */
export interface Fault {
  /** How many bytes pass, in both directions together. */
  afterBytes: number;
  /** Whether the connection is closed, or just carries nothing any more. */
  kind: "cut" | "silence";
}

export class FaultProxy implements AsyncDisposable {
  /** How many connections have failed. */
  faults = 0;
  readonly #pairs = new Set<Socket>();
  private constructor(readonly url: string, private readonly server: Server) {}

  /** Starts a proxy before a server on a TCP port; `next` says what happens to the next connection, if anything. */
  static async start(target: string, next: () => Fault | undefined): Promise<FaultProxy> {
    const { hostname, port } = new URL(target);
    const server = createServer({ allowHalfOpen: true }, (client) => {
      const upstream = connect({ host: hostname, port: Number(port), allowHalfOpen: true });
      const fault = next();
      let passed = 0;
      let hasFailed = false;
      for (const [from, to] of [[client, upstream], [upstream, client]] as const) {
        proxy.#pairs.add(from);
        from.on("data", (chunk: Buffer) => {
          if (hasFailed) return;
          const room = fault ? Math.max(0, fault.afterBytes - passed) : Infinity;
          passed += chunk.length;
          to.write(chunk.subarray(0, Math.min(chunk.length, room)));
          if (chunk.length < room) return;
          hasFailed = true;
          proxy.faults += 1;
          if (fault?.kind === "cut") {
            client.destroySoon();
            upstream.destroy();
          }
        });
        from.on("end", () => to.end());
        from.on("error", () => to.destroy());
        from.on("close", () => {
          proxy.#pairs.delete(from);
          to.destroySoon();
        });
      }
    });
    await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
    const proxy = new FaultProxy(`ws://127.0.0.1:${(server.address() as AddressInfo).port}`, server);
    return proxy;
  }

  /** Ends all connections. */
  cutAll(): void {
    for (const socket of this.#pairs) socket.destroy();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.cutAll();
    await new Promise((done) => this.server.close(done));
  }
}
