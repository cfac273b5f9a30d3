// The web server of the behaviour suite.
import type { Server } from "node:http";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";

export class WebServer implements AsyncDisposable {
  private constructor(readonly url: string, private readonly server: Server) {}

  static async start(): Promise<WebServer> {
    const server = createServer((request, response) => {
      const path = request.url ?? "/";
      const number = Number(path.split("/")[2]);
      if (path.startsWith("/echo")) {
        response.writeHead(200, { "x-method": request.method ?? "", "x-sent": request.headers["x-sent"] ?? "", "set-cookie": ["a=1", "b=2"] });
        request.pipe(response);
      } else if (path.startsWith("/status/")) {
        response.writeHead(number).end(`status ${number}`);
      } else if (path.startsWith("/zeros/")) {
        response.writeHead(200).end(Buffer.alloc(number));
      } else {
        response.writeHead(404).end();
      }
    });
    await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
    return new WebServer(`http://127.0.0.1:${(server.address() as AddressInfo).port}`, server);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.server.closeAllConnections();
    await new Promise((done) => this.server.close(done));
  }
}
