// Measures the client for `remex-bench`: `benchmark.mjs URL RUNS BYTES` prints the figures as JSON.
import { connect } from "../dist/index.js";

const WARM_UP = 50;
const MIB = 1 << 20;

const [url, runs, size] = process.argv.slice(2);
const host = await connect(url);
const times = [];
for (let round = 0; round < WARM_UP + Number(runs); round++) {
  const began = performance.now();
  const { exitCode } = await host.run(["/bin/true"]);
  times.push(performance.now() - began);
  if (exitCode !== 0) throw new Error(`\`/bin/true\` ended with ${exitCode}`);
}
const sorted = times.slice(WARM_UP).sort((a, b) => a - b);

const began = performance.now();
const child = await host.start(["head", "-c", size, "/dev/zero"]);
let received = 0;
for await (const chunk of child.output()) received += chunk.bytes.length;
const seconds = (performance.now() - began) / 1000;
if (received !== Number(size)) throw new Error(`${received} bytes came`);
await host.end();

// The median of a run in microseconds, and the rate of output in MiB per second.
const figures = { run: sorted[sorted.length >> 1] * 1000, rate: Number(size) / MIB / seconds };
console.log(JSON.stringify(figures));
