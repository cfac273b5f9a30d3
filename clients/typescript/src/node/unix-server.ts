/**
 * Whether what listens on a unix socket can be trusted with command lines and environments.
 *
 * Node cannot find out which process is at the other end. What is known: the owner of the socket, the processes in remex
 * sandboxes, whether they listen on any socket, and in which directories they can create them.
 *
 * @module
 */
import { readFile, readdir, readlink, realpath, stat } from "node:fs/promises";
import { dirname } from "node:path";
import { UnreachableError } from "../errors.js";

const ROOT = 0;

/** Lets others than the owner create files in a directory. */
const OTHERS_WRITE = 0o022;

/** The command line of the first process in a remex sandbox; nothing in the sandbox can change it. */
const FIRST_PROCESS = "remex-init\0";

/** The flag of a socket that accepts connections, as `/proc/net/unix` shows it. */
const LISTENS = "00010000";

/**
 * Checks what listens on a unix socket, before anything is sent to it.
 *
 * It is trusted if the socket belongs to this user, to root or to the owner of a directory that only they can write to, and
 * if no process in a sandbox can have created it: such a process has the same user, and could pose as a server.
 */
export async function checkUnixServer(path: string): Promise<void> {
  if (process.platform !== "linux") return;
  const { uid } = await stat(path);
  if (uid !== ROOT && uid !== process.geteuid?.() && !(await isPrivatePlaceOf(uid, path))) {
    throw new UnreachableError(`cannot trust unix://${path}: what listens there belongs to user ${uid}, and others can create files in that directory`, {
      hint: "let the server listen in a directory in which only its user can create files, or check the path",
    });
  }
  for (const pid of await confinedProcesses()) {
    // First, because a process that is still being set up shares the descriptors of its server.
    if (!(await isSetUp(pid))) continue;
    if (!(await listens(pid)) || !(await canCreateIn(pid, dirname(path)))) continue;
    throw new UnreachableError(`cannot trust unix://${path}: process ${pid}, which may listen there, is in a remex sandbox`, {
      hint: "end that process, or connect to a server outside of the sandbox",
    });
  }
}

/** Returns whether only this user or root can have created a socket. */
async function isPrivatePlaceOf(user: number, path: string): Promise<boolean> {
  const directory = await stat(dirname(path));
  return (directory.uid === user || directory.uid === ROOT) && (directory.mode & OTHERS_WRITE) === 0;
}

/** Returns the processes in remex sandboxes that this user may inspect, except those in its own. */
async function confinedProcesses(): Promise<string[]> {
  const namespace = (pid: string): Promise<string | undefined> => readlink(`/proc/${pid}/ns/pid`).catch(() => undefined);
  const own = await namespace("self");
  const pids = (await readdir("/proc").catch(() => [])).filter((name) => /^\d+$/.test(name));
  const members = new Map<string, string[]>();
  await Promise.all(pids.map(async (pid) => {
    const theirs = await namespace(pid);
    if (theirs !== undefined && theirs !== own) members.set(theirs, [...(members.get(theirs) ?? []), pid]);
  }));
  const confined: string[] = [];
  for (const there of members.values()) {
    const commands = await Promise.all(there.map((pid) => readFile(`/proc/${pid}/cmdline`, "utf8").catch(() => "")));
    const isFirst = (pid: string, at: number): Promise<boolean> => commands[at] === FIRST_PROCESS ? isFirstOfNamespace(pid) : Promise.resolve(false);
    if ((await Promise.all(there.map(isFirst))).includes(true)) confined.push(...there);
  }
  return confined;
}

/** Returns whether a process in a sandbox runs its program; until then, its server has not given it mounts of its own. */
async function isSetUp(pid: string): Promise<boolean> {
  const mounts = (of: string): Promise<string | undefined> => readlink(`/proc/${of}/ns/mnt`).catch(() => undefined);
  const [theirs, own, status] = await Promise.all([mounts(pid), mounts("self"), readFile(`/proc/${pid}/status`, "utf8").catch(() => "")]);
  // In a container the server itself has other mounts than this process.
  return theirs !== own && /^NoNewPrivs:\t1$/m.test(status);
}

async function isFirstOfNamespace(pid: string): Promise<boolean> {
  const status = await readFile(`/proc/${pid}/status`, "utf8").catch(() => "");
  return /^NSpid:.*\t1$/m.test(status);
}

/** Returns whether a process listens on a unix socket. */
async function listens(pid: string): Promise<boolean> {
  const table = await readFile(`/proc/${pid}/net/unix`, "utf8").catch(() => "");
  const inodes = new Set<string>();
  for (const line of table.split("\n")) {
    const [, , , flags, , , inode] = line.split(/\s+/);
    if (flags === LISTENS && inode !== undefined) inodes.add(`socket:[${inode}]`);
  }
  const descriptors = await readdir(`/proc/${pid}/fd`).catch(() => []);
  const targets = await Promise.all(descriptors.map((descriptor) => readlink(`/proc/${pid}/fd/${descriptor}`).catch(() => "")));
  return targets.some((target) => inodes.has(target));
}

/** Returns whether a directory is one that a process can write to, as far as its mounts tell. */
async function canCreateIn(pid: string, directory: string): Promise<boolean> {
  const here = await realpath(directory);
  const [own, theirs] = await Promise.all([stat(here), stat(`/proc/${pid}/root${here}`).catch(() => undefined)]);
  if (own.dev !== theirs?.dev || own.ino !== theirs.ino) return false;
  const mounts = await readFile(`/proc/${pid}/mountinfo`, "utf8").catch(() => "");
  let best = { place: "", isWritable: true };
  for (const line of mounts.split("\n")) {
    const [, , , , escaped, options] = line.split(" ");
    if (escaped === undefined || options === undefined) continue;
    const place = escaped.replace(/\\([0-7]{3})/g, (_, digits: string) => String.fromCharCode(parseInt(digits, 8)));
    const contains = place === "/" || here === place || here.startsWith(`${place}/`);
    // A later mount covers an earlier one.
    if (contains && place.length >= best.place.length) best = { place, isWritable: options.split(",").includes("rw") };
  }
  return best.isWritable;
}
