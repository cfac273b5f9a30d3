// Packs the library, installs it into an empty project, and checks that it works there, with its types.
import { execFileSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const own = dirname(dirname(fileURLToPath(import.meta.url)));
const project = mkdtempSync(join(tmpdir(), "remex-package-"));
const run = (program, args, cwd = project) => execFileSync(program, args, { cwd, stdio: ["ignore", "inherit", "inherit"] });

/** What a user would write; every line is checked by the compiler of the user. */
const CONSUMER = `
import { Agent, RefusedError, connect } from "remex-client";
import type { Exit, Line, ProcessEvent } from "remex-client";
import type { ProcessEntry } from "remex-client/protocol";

const target = process.argv.slice(2);
await using host = await connect(target, { clientName: "consumer", detachTtlMs: 1000 });
const result = await host.run(["sh", "-c", "echo hello; exit 3"]);
if (result.stdoutText !== "hello\\n" || result.exitCode !== 3) throw new Error(JSON.stringify(result));
const child = await host.start(["cat"], { tty: { rows: 24, cols: 80 } });
await child.stdin.write("typed\\n");
const match: RegExpExecArray = (await child.waitFor(/typed/)).match;
await child.kill();
const exit: Exit = await child.wait();
for await (const event of child.events()) { const e: ProcessEvent = event; void e; }
for await (const line of child.lines()) { const l: Line = line; void l; }
const listed: ProcessEntry[] = await host.processes();
try {
  await host.files.read("/no/such/file");
} catch (error) {
  if (!(error instanceof RefusedError) || error.kind !== "notFound") throw error;
}
await using agent = new Agent(host, { outputBytes: 1000 });
const step = await agent.exec(["true"]);
console.log(match[0], exit.signal, listed.length, step.progress.state);
// @ts-expect-error: a command is an array
host.run("ls").catch(() => undefined);
await host.end();
`;

try {
  run("npm", ["pack", "--silent", "--pack-destination", project], own);
  const tarball = readdirSync(project).find((name) => name.endsWith(".tgz"));
  writeFileSync(join(project, "package.json"), JSON.stringify({ name: "consumer", type: "module", private: true }));
  writeFileSync(join(project, "consumer.ts"), CONSUMER);
  const strict = { target: "ES2022", lib: ["ES2023", "ESNext.Disposable"], module: "NodeNext", strict: true, exactOptionalPropertyTypes: true, types: ["node"] };
  writeFileSync(join(project, "tsconfig.json"), JSON.stringify({ compilerOptions: strict, include: ["consumer.ts"] }));
  run("npm", ["install", "--silent", "--no-audit", "--no-fund", `./${tarball}`]);
  const installed = readdirSync(join(project, "node_modules")).filter((name) => !name.startsWith("."));
  if (installed.join() !== "remex-client") throw new Error(`the library brought ${installed}`);
  run("npm", ["install", "--silent", "--no-audit", "--no-fund", "typescript@5.9.3", "@types/node@20.19.0"]);
  run("npx", ["tsc", "-p", "."]);
  run(process.execPath, ["consumer.js", process.env.REMEX_BIN ?? "remex", "serve", "--listen", "stdio"]);
  console.log("the package works");
} finally {
  rmSync(project, { recursive: true, force: true });
}
