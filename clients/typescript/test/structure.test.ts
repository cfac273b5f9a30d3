// The order of the files: none imports itself through others, none is too long, and no registry is named.
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { dirname, join, normalize } from "node:path";
import { test } from "node:test";
import ts from "typescript";
import { repository } from "./server.js";

const src = join(repository, "clients/typescript/src");

/** Generated, so as long as the protocol. */
const GENERATED = new Set(["protocol.ts"]);
const MAX_LINES = 600;

/** Returns the text of each source file. */
function sources(): Map<string, string> {
  const names = readdirSync(src, { recursive: true, encoding: "utf8" }).filter((name) => name.endsWith(".ts"));
  return new Map(names.map((name) => [name, readFileSync(join(src, name), "utf8")]));
}

/** Returns what a text imports, wherever it does so: types, exports from other files and imports in functions included. */
function imported(text: string): string[] {
  const found: string[] = [];
  const visit = (node: ts.Node): void => {
    const isCall = ts.isCallExpression(node) && node.expression.kind === ts.SyntaxKind.ImportKeyword;
    let from: ts.Node | undefined;
    if (ts.isImportDeclaration(node) || ts.isExportDeclaration(node)) from = node.moduleSpecifier;
    else if (ts.isExternalModuleReference(node)) from = node.expression;
    else if (ts.isImportTypeNode(node) && ts.isLiteralTypeNode(node.argument)) from = node.argument.literal;
    else if (isCall) from = node.arguments[0];
    if (from && ts.isStringLiteralLike(from)) found.push(from.text);
    else assert.ok(!isCall, "an import in a function names its file");
    ts.forEachChild(node, visit);
  };
  visit(ts.createSourceFile("imported.ts", text, ts.ScriptTarget.Latest));
  return found;
}

/** Returns which of the files each one imports, types included. */
function imports(files: ReadonlyMap<string, string>): Map<string, string[]> {
  return new Map([...files].map(([name, text]) => {
    const own = imported(text).filter((from) => from.startsWith(".")).map((from) => normalize(join(dirname(name), from)).replace(/\.js$/, ".ts"));
    for (const from of own) assert.ok(files.has(from), `${name} imports ${from}, which is not there`);
    return [name, own];
  }));
}

/** Returns a circle of imports, as the names along it, if there is one. */
function circle(imports: ReadonlyMap<string, readonly string[]>): string[] | undefined {
  const done = new Set<string>();
  const visit = (name: string, path: readonly string[]): string[] | undefined => {
    if (path.includes(name)) return [...path.slice(path.indexOf(name)), name];
    if (done.has(name)) return undefined;
    for (const from of imports.get(name) ?? []) {
      const found = visit(from, [...path, name]);
      if (found) return found;
    }
    done.add(name);
    return undefined;
  };
  for (const name of imports.keys()) {
    const found = visit(name, []);
    if (found) return found;
  }
  return undefined;
}

test("no source file imports itself through others, not even for types", () => {
  const found = circle(imports(sources()));
  assert.equal(found, undefined, found?.join(" imports "));
});

test("circles of imports are found", () => {
  const files = new Map([
    ["a.ts", 'import { b } from "./b.js";'],
    ["b.ts", 'export type { C } from "./node/c.js";'],
    ["node/c.ts", 'import type { A } from "../a.js";\nexport interface C { a: A }'],
  ]);
  assert.deepEqual(circle(imports(files)), ["a.ts", "b.ts", "node/c.ts", "a.ts"]);
  assert.equal(circle(imports(new Map([...files, ["b.ts", ""]]))), undefined);
});

test("imports are found wherever they are", () => {
  for (const text of [
    'import "./b.js";',
    'import { type B } from "./b.js";',
    'import b = require("./b.js");',
    'export * as b from "./b.js";',
    'export function later(b: import("./b.js").B): void {}',
    'async function later() { return `${await import("./b.js")}`; }',
    'const quote = /`/; const later = () => import("./b.js");',
  ]) {
    assert.deepEqual(imported(text), ["./b.js"], text);
  }
  assert.throws(() => imported("const later = (name: string) => import(name);"));
});

test("the development tools have exact versions, whatever registry they come from", () => {
  const read = (name: string): any => JSON.parse(readFileSync(join(src, "..", name), "utf8"));
  const { packages } = read("package-lock.json");
  assert.deepEqual(packages[""].devDependencies, read("package.json").devDependencies, "run `npm install --package-lock-only --omit-lockfile-registry-resolved`");
  for (const [name, { resolved, integrity }] of Object.entries(packages as Record<string, Record<string, string>>)) {
    assert.equal(resolved, undefined, name);
    assert.ok(name === "" || integrity !== undefined, name);
  }
});

test("no source file is too long", () => {
  for (const [name, text] of sources()) {
    if (GENERATED.has(name)) continue;
    const lines = text.split("\n").length - 1;
    assert.ok(lines <= MAX_LINES, `${name} has ${lines} lines: divide it by what it is about`);
  }
});
