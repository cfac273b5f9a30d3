// Runs the entry for browsers in a page of a headless browser. Not part of `npm test`: it needs Chromium.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createReadStream } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { join, normalize } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { RemexServer, TemporaryDirectory, within } from "../server.js";

/** The library as it was compiled together with this test. */
const dist = fileURLToPath(new URL("../../src", import.meta.url));

const PAGE = `<!doctype html><script type="module">
  import { connect, Agent } from "/dist/browser.js";
  const binary = { sent: 0, received: 0, base64: 0 };
  const isMarked = (data) => typeof data === "string" && data.includes(btoa("in base64"));
  globalThis.WebSocket = class extends WebSocket {
    constructor(target) {
      super(target);
      this.addEventListener("message", ({ data }) => (data instanceof ArrayBuffer ? binary.received++ : (binary.base64 += isMarked(data))));
    }
    send(data) {
      if (data instanceof Uint8Array) binary.sent++;
      else binary.base64 += isMarked(data);
      super.send(data);
    }
  };
  const report = (body) => fetch("/report", { method: "POST", body: JSON.stringify(body) });
  try {
    const host = await connect(new URLSearchParams(location.search).get("target"));
    const { stdoutText, exitCode } = await host.run(["sh", "-c", "echo hello from $0; exit 3"]);
    const process = await host.start(["head", "-c", "20000000", "/dev/zero"]);
    let length = 0;
    const reader = process.stdout.getReader();
    for (let step = await reader.read(); !step.done; step = await reader.read()) length += step.value.length;
    const echoed = (await host.run(["cat"], { input: "grüße 🎉" })).stdoutText;
    const marked = (await host.run(["cat"], { input: "in base64" })).stdoutText;
    const directory = new URLSearchParams(location.search).get("directory");
    await host.files.upload(new Blob(["a blob"]), directory + "/blob");
    const file = await host.files.readText(directory + "/blob");
    const refused = await connect("ws://127.0.0.1:1").catch((error) => error.name);
    const token = await connect("ws://127.0.0.1:1", { token: "x" }).catch((error) => error.name);
    await host.end();
    await report({ text: stdoutText, exitCode, length, echoed, marked, file, refused, token, state: host.state,
      binary: { sent: binary.sent > 2, received: binary.received > 100, base64: binary.base64 } });
  } catch (error) {
    await report({ error: String(error), stack: error.stack });
  }
</script>`;

test("a page runs commands over a WebSocket", async () => {
  let onReport: (report: unknown) => void;
  const reported = new Promise((resolve) => (onReport = resolve));
  const web = createServer((request, response) => {
    const path = normalize(new URL(request.url ?? "/", "http://page").pathname);
    if (path === "/report") {
      let body = "";
      request.setEncoding("utf8").on("data", (text: string) => (body += text));
      request.on("end", () => onReport(JSON.parse(body)));
      response.end();
    } else if (path.startsWith("/dist/")) {
      response.setHeader("content-type", "text/javascript");
      createReadStream(join(dist, path.slice("/dist/".length))).on("error", () => response.writeHead(404).end()).pipe(response);
    } else {
      response.setHeader("content-type", "text/html; charset=utf-8").end(PAGE);
    }
  });
  await new Promise<void>((done) => web.listen(0, "127.0.0.1", done));
  const origin = `http://127.0.0.1:${(web.address() as AddressInfo).port}`;
  await using server = await RemexServer.start(["ws://127.0.0.1:0"], "--allow-origin", origin);
  await using scratch = await TemporaryDirectory.make();
  const query = new URLSearchParams({ target: server.url, directory: scratch.path });
  const flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", `--user-data-dir=${scratch.path}/profile`];
  const browser = spawn(process.env["CHROMIUM"] ?? "chromium", [...flags, `${origin}/?${query}`], { stdio: "ignore" });
  const failed = new Promise<never>((_, reject) => browser.once("error", reject));
  try {
    assert.deepEqual(await within("the report of the page", Promise.race([reported, failed]), 120_000), {
      text: "hello from sh\n", exitCode: 3, length: 20_000_000, echoed: "grüße 🎉", marked: "in base64", file: "a blob",
      refused: "UnreachableError", token: "UsageError", state: "lost", binary: { sent: true, received: true, base64: 0 },
    });
  } finally {
    const exited = new Promise((done) => browser.once("exit", done));
    browser.kill("SIGKILL");
    await exited;
    web.closeAllConnections();
    web.close();
  }
});
