/**
 * Requests as they are sent.
 *
 * @module
 */
import type { Outgoing } from "./link.js";

/** Returns params with other spellings of their paths. */
export function withPaths(params: object, spell: (path: string) => string): object {
  let spelt: Record<string, unknown> | undefined;
  for (const name of ["cwd", "path", "sourcePath", "destinationPath"]) {
    const path = (params as Record<string, unknown>)[name];
    if (typeof path === "string") (spelt ??= { ...params })[name] = spell(path);
  }
  return spelt ?? params;
}

/** Returns a request; bytes become base64 when it is sent. */
export function request(id: number, method: string, params: object, binary: { member: string; bytes: Uint8Array } | undefined): Outgoing {
  const json = JSON.stringify(params);
  const head = `{"id":${id},"method":"${method}","params":`;
  if (!binary) return `${head}${json}}`;
  const comma = json === "{}" ? "" : ",";
  return { head: `${head}${json.slice(0, -1)}${comma}"${binary.member}":"`, bytes: binary.bytes, tail: '"}}' };
}
