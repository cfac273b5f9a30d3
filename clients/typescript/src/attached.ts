/**
 * The bytes beside the JSON of a binary message.
 *
 * @module
 */
import { encodeBase64, keptPart } from "./bytes.js";
import { ProtocolError } from "./errors.js";

/** The members of answers and notifications that are bytes: base64, or a place in the attached bytes. */
export const BYTES_MEMBERS: ReadonlySet<string> = new Set([
  "chunk", "dataBase64", "deltaBase64", "bodyBase64", "targetBase64", "stdout", "stderr", "terminal", "match",
]);

/** No member with bytes lies deeper: those of `chunks` in the answer to `process/read` are the deepest. */
export const MAX_DEPTH = 3;

/** Puts attached bytes in the places that refer to them; fails if a reference is wrong. */
export function placeAttached(value: object, attached: Uint8Array): void {
  // No byte belongs to two members, so that a short message never turns into a long one.
  let next = 0;
  const take = (name: string, place: readonly unknown[]): Uint8Array => {
    const [offset, length] = place;
    if (place.length !== 2 || !isCount(offset) || !isCount(length)) throw new ProtocolError(`\`${name}\` is not a place in the attached bytes`);
    if (offset + length > attached.length) {
      throw new ProtocolError(`${length} bytes at ${offset} exceed the ${attached.length} bytes attached to this message`);
    }
    if (offset < next) {
      throw new ProtocolError(`the attached bytes at ${offset} belong to an earlier member; the next begin at ${next} or later`);
    }
    next = offset + length;
    return keptPart(attached, offset, next);
  };
  replaceBytes(value, (name, member) => (Array.isArray(member) ? take(name, member) : member));
}

/** Replaces attached bytes by base64, for callers that know the protocol. */
export function attachedToBase64(value: object): void {
  replaceBytes(value, (_, member) => (member instanceof Uint8Array ? encodeBase64(member) : member));
}

/** Replaces the members with bytes of a value, in their order. */
function replaceBytes(value: object, replacement: (name: string, member: unknown) => unknown, depth = 1): void {
  if (Array.isArray(value)) {
    for (const item of value) if (isInner(item) && depth < MAX_DEPTH) replaceBytes(item, replacement, depth + 1);
    return;
  }
  const members = value as Record<string, unknown>;
  for (const name of Object.keys(members)) {
    if (BYTES_MEMBERS.has(name)) members[name] = replacement(name, members[name]);
    const member = members[name];
    if (isInner(member) && depth < MAX_DEPTH) replaceBytes(member, replacement, depth + 1);
  }
}

function isInner(value: unknown): value is object {
  return typeof value === "object" && value !== null && !(value instanceof Uint8Array);
}

function isCount(value: unknown): value is number {
  return typeof value === "number" && Number.isSafeInteger(value) && value >= 0;
}
