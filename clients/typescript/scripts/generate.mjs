// Generates src/protocol.ts from spec/protocol.schema.json: types of all params, results and notifications.
//
// `node scripts/generate.mjs` writes the file, `--check` fails if it is stale.
import { readFileSync, writeFileSync } from "node:fs";

const schemaFile = new URL("../../../spec/protocol.schema.json", import.meta.url);
const outputFile = new URL("../src/protocol.ts", import.meta.url);
const schema = JSON.parse(readFileSync(schemaFile, "utf8"));
const definitions = schema.$defs;

// Envelopes are written by hand in the engine; only what they carry is a model.
const isEnvelope = (name) => /(Request|Response|Notification)$/.test(name) || /^(Client|Server)Message$/.test(name) || name === "ServerAnswer";

/** Returns the name of the definition that a schema refers to. */
const refName = (ref) => ref.slice("#/$defs/".length);

function doc(description, indent) {
  if (!description) return "";
  const lines = description.replaceAll("*/", "* /").split("\n");
  if (lines.length === 1) return `${indent}/** ${lines[0]} */\n`;
  return `${indent}/**\n${lines.map((line) => `${indent} * ${line}`.trimEnd()).join("\n")}\n${indent} */\n`;
}

function union(types) {
  const unique = [...new Set(types)];
  // A plain string beside words keeps the words for completion.
  const isOpen = unique.includes("string") && unique.some((type) => type.startsWith('"'));
  return unique.map((type) => (isOpen && type === "string" ? "(string & {})" : type)).join(" | ");
}

const plain = { string: "string", integer: "number", number: "number", boolean: "boolean", null: "null" };

function type(node, indent) {
  if (node === true || node === undefined) return "unknown";
  if (node === false) return "never";
  if (node.$ref) return refName(node.$ref);
  if ("const" in node) return JSON.stringify(node.const);
  if (node.enum) return union(node.enum.map((word) => JSON.stringify(word)));
  const alternatives = node.anyOf ?? node.oneOf;
  if (alternatives) {
    const choice = union(alternatives.map((alternative) => type(alternative, indent)));
    return node.properties ? `${object(node, indent)} & (${choice})` : choice;
  }
  if (Array.isArray(node.type)) return union(node.type.map((name) => type({ ...node, type: name }, indent)));
  if (node.type === "array") {
    const item = type(node.items, indent);
    return /[|&]/.test(item) ? `(${item})[]` : `${item}[]`;
  }
  if (node.type === "object" || node.properties) return object(node, indent);
  return plain[node.type] ?? "unknown";
}

function object(node, indent) {
  const names = Object.keys(node.properties ?? {});
  if (names.length === 0) {
    const values = node.additionalProperties;
    return values && typeof values === "object" ? `Record<string, ${type(values, indent)}>` : "Record<string, unknown>";
  }
  const inner = `${indent}  `;
  const members = names.map((name) => {
    const property = node.properties[name];
    const optional = node.required?.includes(name) ? "" : "?";
    const value = type(property, inner);
    const absent = optional ? " | undefined" : "";
    return `${doc(property.description, inner)}${inner}${name}${optional}: ${value}${absent};\n`;
  });
  return `{\n${members.join("")}${indent}}`;
}

let output = `// Generated from spec/protocol.schema.json by scripts/generate.mjs; do not edit.

/** The version of the protocol that these types describe. */
export const PROTOCOL_VERSION = ${JSON.stringify(schema.protocolVersion)};
`;

for (const name of Object.keys(definitions).sort()) {
  if (isEnvelope(name)) continue;
  const node = definitions[name];
  const body = type(node, "");
  const isInterface = body.startsWith("{") && node.properties && !node.anyOf && !node.oneOf;
  const head = isInterface
    ? `export interface ${name} ${body}`
    : `export type ${name} = ${body};`;
  output += `\n${doc(node.description, "")}${head}\n`;
}

function table(name, description, entries) {
  output += `\n/** ${description} */\nexport interface ${name} {\n${entries.join("")}}\n`;
}

const of = (node) => (node ? type(node, "  ") : "Record<string, never>");
table("Methods", "The params and the result of every method.", Object.entries(schema.methods).map(
  ([method, { params, result }]) => `  ${JSON.stringify(method)}: { params: ${of(params)}; result: ${of(result)} };\n`,
));
table("ClientNotifications", "The params of every notification of a client.", Object.entries(schema.clientNotifications).map(
  ([method, { params }]) => `  ${JSON.stringify(method)}: ${of(params)};\n`,
));
table("ServerNotifications", "The params of every notification of a server.", Object.entries(schema.serverNotifications).map(
  ([method, { params }]) => `  ${JSON.stringify(method)}: ${of(params)};\n`,
));

if (process.argv.includes("--check")) {
  if (readFileSync(outputFile, "utf8") !== output) {
    console.error("src/protocol.ts is stale: run `npm run generate`");
    process.exit(1);
  }
} else {
  writeFileSync(outputFile, output);
}
