/**
 * Requests as they are sent.
 *
 * @module
 */
import type { Outgoing } from "./outgoing.js";

/** Returns params with other spellings of their paths. */
export function withPaths(params: object, spell: (path: string) => string): object {
  let spelt: Record<string, unknown> | undefined;
  for (const name of ["cwd", "path", "sourcePath", "destinationPath"]) {
    const path = (params as Record<string, unknown>)[name];
    if (typeof path === "string") (spelt ??= { ...params })[name] = spell(path);
  }
  return spelt ?? params;
}

/** Params that are bytes. */
export type BytesParams = Readonly<Record<string, Uint8Array | readonly Uint8Array[] | undefined>>;

/** Returns a request; how its bytes are sent is decided when they are sent. */
export function request(id: number, method: string, params: object, bytes: BytesParams = {}): Outgoing {
  const json = JSON.stringify(params);
  const texts: string[] = [];
  const all: Uint8Array[] = [];
  let text = `{"id":${id},"method":"${method}","params":${json.slice(0, -1)}`;
  let comma = json === "{}" ? "" : ",";
  for (const [name, value] of Object.entries(bytes)) {
    if (value === undefined) continue;
    text += `${comma}"${name}":`;
    comma = ",";
    const isList = !(value instanceof Uint8Array);
    if (isList) text += "[";
    (isList ? value : [value]).forEach((item, index) => {
      texts.push(index === 0 ? text : ",");
      all.push(item);
      text = "";
    });
    if (isList) text += "]";
  }
  text += "}}";
  return all.length === 0 ? text : { texts: [...texts, text], bytes: all };
}
