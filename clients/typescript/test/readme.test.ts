// The examples of the README run on this version of Node as they are written; those of the guide and of the types parse.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync, readFileSync, readdirSync } from "node:fs";
import { chmod, mkdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import nodeProcess from "node:process";
import { test } from "node:test";
import ts from "typescript";
import { TemporaryDirectory, remexProgram, repository, within } from "./server.js";

const own = join(repository, "clients/typescript");
const guide = join(repository, "docs/typescript.md");

/** Returns the blocks of a text in a language. */
function blocks(text: string, language: string): string[] {
  return [...text.matchAll(new RegExp(`^\`\`\`${language}\\n(.*?)^\`\`\``, "gms"))].map((match) => match[1]!);
}

/** Returns what is not JavaScript or TypeScript, or defines a name that hides one of Node. */
function mistakes(code: string): string[] {
  const { diagnostics = [] } = ts.transpileModule(code, {
    reportDiagnostics: true,
    compilerOptions: { target: ts.ScriptTarget.ESNext, module: ts.ModuleKind.ESNext },
  });
  const found = diagnostics.map(({ messageText }) => ts.flattenDiagnosticMessageText(messageText, "\n"));
  if (/\b(const|let|using) (\{[^}]*\b)?process\b/.test(code)) found.push("it hides `process`");
  return found;
}

async function run(args: string[], cwd: string, env: Record<string, string>): Promise<{ code: number | null; said: string }> {
  const child = spawn(nodeProcess.execPath, args, { cwd, env: { ...nodeProcess.env, ...env }, stdio: ["ignore", "pipe", "pipe"] });
  let said = "";
  for (const stream of [child.stdout, child.stderr]) stream.setEncoding("utf8").on("data", (text: string) => (said += text));
  const code = await within("the end of an example", new Promise<number | null>((done) => child.on("close", done)), 60_000);
  return { code, said };
}

test("the examples of the README run", async () => {
  const readme = readFileSync(join(own, "README.md"), "utf8");
  const examples = blocks(readme, "js");
  assert.ok(examples.length >= 4, "the README has examples");
  assert.ok(examples.every((example) => !example.includes("await using")), "Node 20 cannot parse that");
  await using directory = await TemporaryDirectory.make();
  const home = join(directory.path, "home");
  for (const name of ["src", "site", "notes", "home", "bin"]) await mkdir(join(directory.path, name));
  await writeFile(join(directory.path, "site/page"), "page");
  await writeFile(join(home, "build.log"), "built");
  // The host of the README, with ssh and make.
  const [ssh, make] = ["ssh", "make"].map((name) => join(directory.path, "bin", name)) as [string, string];
  await writeFile(make, '#!/bin/sh\necho "makes $*"; echo warning >&2\n');
  await writeFile(ssh, `#!/bin/sh\nexec "$PROGRAM" serve --listen stdio\n`);
  for (const program of [ssh, make]) await chmod(program, 0o755);
  const program = remexProgram();
  const env = { PATH: `${directory.path}/bin:${nodeProcess.env["PATH"]}`, HOME: home, PROGRAM: program };
  const first = `import { connect } from "remex-client";\nconst host = await connect("ssh://me@build.example");\n`;
  const library = JSON.stringify(join(own, "build/src/index.js"));
  let said = "";
  for (const [index, example] of examples.entries()) {
    const whole = example.includes("connect(") ? example : `${first}${example}await host.end();\n`;
    const code = whole.replace('"remex-client"', library).replaceAll("/tmp/site", `${directory.path}/copied`);
    await writeFile(join(directory.path, `example-${index}.mjs`), code);
    const outcome = await run([`example-${index}.mjs`], directory.path, env);
    assert.equal(outcome.code, 0, `${example}\n${outcome.said}`);
    said += outcome.said;
  }
  for (const expected of ["0 makes test\n warning\n", "stdout makes -j8\n", "Linux", "/notes/today 1 hello undefined\n"]) assert.ok(said.includes(expected), `${expected}: ${said}`);
  for (const [name, content] of [["notes/today", "hello\n"], ["copied/page", "page"], ["build.log", "built"]] as const) {
    assert.equal(await readFile(join(directory.path, name), "utf8"), content);
  }
});

test("the examples of the guide and of the types parse", async () => {
  await using directory = await TemporaryDirectory.make();
  const readme = readFileSync(join(own, "README.md"), "utf8");
  for (const example of blocks(readme, "ts")) assert.deepEqual(mistakes(example), [], example);
  for (const name of readdirSync(join(own, "src"), { recursive: true, encoding: "utf8" }).filter((each) => each.endsWith(".ts"))) {
    const comments = readFileSync(join(own, "src", name), "utf8").replaceAll(/^ *\* ?/gm, "");
    for (const example of blocks(comments, "ts")) assert.deepEqual(mistakes(example), [], `${name}: ${example}`);
  }
  if (!existsSync(guide)) return;
  const examples = [...blocks(readFileSync(guide, "utf8"), "js"), ...blocks(readme, "js")];
  assert.ok(examples.length > 10 && blocks(readFileSync(guide, "utf8"), "ts").length === 0);
  for (const [index, example] of examples.entries()) {
    assert.deepEqual(mistakes(example), [], example);
    await writeFile(join(directory.path, `example-${index}.mjs`), example);
    const { code, said } = await run(["--check", `example-${index}.mjs`], directory.path, {});
    assert.equal(code, 0, `${example}\n${said}`);
  }
});

test("the package has the metadata of a registry, and its links work there", () => {
  const description = JSON.parse(readFileSync(join(own, "package.json"), "utf8"));
  for (const member of ["description", "license", "author", "keywords", "engines"]) assert.ok(description[member], member);
  assert.equal(description.dependencies, undefined);
  const readme = readFileSync(join(own, "README.md"), "utf8");
  for (const [, target] of readme.matchAll(/\]\(([^)]*)\)/g)) {
    const isThere = /^(https:\/\/|#)/.test(target!) || description.files.includes(target);
    assert.ok(isThere, `${target} is not in the package`);
  }
  assert.ok(!/^npm install remex-client/m.test(readme) || description.private === false, "it is not published yet");
});

test("the entry for browsers imports nothing of Node", () => {
  const seen = new Set<string>();
  const visit = (file: string): void => {
    if (seen.has(file)) return;
    seen.add(file);
    const code = readFileSync(file, "utf8");
    for (const [, from] of code.matchAll(/^(?:import|export) [\w{},\s*]+? from ["']([^"']+)["']/gm)) {
      assert.ok(from!.startsWith("./") || from!.startsWith("../"), `${file} imports ${from}`);
      visit(join(file, "..", from!));
    }
  };
  visit(join(own, "build/src/browser.js"));
  assert.ok(seen.size > 20);
});
