// Measures throughput of output and files and the latency of a run, against the server in REMEX_BIN.
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { connect } from "../dist/index.js";

const MIB = 1 << 20;
const directory = mkdtempSync(join(tmpdir(), "remex-bench-"));
const listen = ["ws://127.0.0.1:0", `unix://${directory}/s.sock`];
const server = spawn(process.env.REMEX_BIN ?? "remex", ["serve", ...listen.flatMap((url) => ["--listen", url])], { stdio: ["ignore", "pipe", "ignore"] });
const urls = await new Promise((resolve) => {
  let text = "";
  server.stdout.on("data", (chunk) => {
    text += chunk;
    const lines = text.trim().split("\n");
    if (lines.length === listen.length) resolve(lines);
  });
});

/** Runs a measurement; the share of CPU time of this process tells how fast a faster server could be. */
async function measure(name, bytes, work) {
  const [began, cpu] = [performance.now(), process.cpuUsage()];
  await work();
  const seconds = (performance.now() - began) / 1000;
  const used = process.cpuUsage(cpu);
  const busy = (used.user + used.system) / 1e6;
  console.log(`  ${name}: ${(bytes / MIB / seconds).toFixed(0)} MiB/s (CPU of the client allows ${(bytes / MIB / busy).toFixed(0)} MiB/s)`);
}

try {
  for (const url of urls) {
    console.log(url.split(":")[0]);
    const host = await connect(url);
    for (let round = 0; round < 3; round++) {
      await measure("stream 256 MiB of output", 256 * MIB, async () => {
        const process = await host.start(["head", "-c", "256M", "/dev/zero"]);
        let length = 0;
        for await (const chunk of process.output) length += chunk.bytes.length;
        if (length !== 256 * MIB) throw new Error(`got ${length} bytes`);
      });
    }
    await measure("run with 64 MiB of output", 64 * MIB, () => host.run(["head", "-c", "64M", "/dev/zero"]));
    await measure("lines of 32 MiB", 32 * MIB, async () => {
      const process = await host.start(["sh", "-c", "yes 'a line of output with some text' | head -c 32M"]);
      for await (const _ of process.lines());
    });
    await measure("write 64 MiB of input", 64 * MIB, () => host.run(["wc", "-c"], { input: new Uint8Array(64 * MIB) }));
    await measure("upload 64 MiB", 64 * MIB, () => host.files.upload(new Uint8Array(64 * MIB), `${directory}/large`));
    await measure("download 64 MiB", 64 * MIB, async () => {
      for await (const _ of await host.files.open(`${directory}/large`));
    });
    const times = [];
    for (let round = 0; round < 500; round++) {
      const began = performance.now();
      await host.run(["true"]);
      times.push(performance.now() - began);
    }
    times.sort((a, b) => a - b);
    console.log(`  run true: median ${times[250].toFixed(2)} ms, 99% ${times[495].toFixed(2)} ms`);
    await host.end();
  }
} finally {
  server.kill();
  rmSync(directory, { recursive: true, force: true });
}
