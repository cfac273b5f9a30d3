/**
 * A connection over the standard streams of a program, such as ssh.
 *
 * @module
 */
import type { ChildProcess } from "node:child_process";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { ProgramEndedError, UnreachableError } from "../errors.js";
import type { Link } from "../link.js";
import { CLOSE_TIMEOUT_MS } from "../link.js";
import { LineLink } from "./lines.js";

/** A program that speaks the protocol on its standard streams. */
export interface ProgramTarget {
  readonly argv: readonly string[];
  /** Variables to set, beyond those of this process. */
  readonly env?: Readonly<Record<string, string>> | undefined;
  /** The directory in which it runs; that of this process by default. */
  readonly cwd?: string | undefined;
}

/** How much of the program's standard error is kept for messages. */
const STDERR_LEN = 4096;

/** Starts a program and speaks the protocol with it. */
export async function openProgram({ argv, env, cwd }: ProgramTarget, signal: AbortSignal): Promise<Link> {
  const [program, ...args] = argv;
  const line = argv.join(" ");
  const isUnix = process.platform !== "win32";
  // In a session of its own it has no terminal, so that ssh fails instead of prompting, and Ctrl-C does not reach it.
  const child = spawn(program!, args, { stdio: ["pipe", "pipe", "pipe"], detached: isUnix, env: { ...process.env, ...env }, cwd });
  let stderr = "";
  child.stderr.setEncoding("utf8").on("data", (text: string) => (stderr = (stderr + text).slice(-STDERR_LEN)));
  const exited = once(child, "exit").catch(() => undefined);
  const link = new LineLink(child.stdout, child.stdin);
  try {
    await once(child, "spawn", { signal });
  } catch (error) {
    if (signal.aborted) kill(child, isUnix);
    throw new UnreachableError(`cannot start \`${line}\`: ${(error as Error).message}`, { cause: error });
  }
  return {
    hasServerPings: link.hasServerPings,
    get isFull() {
      return link.isFull;
    },
    start: (receiver) => link.start(receiver),
    acceptBinary: () => link.acceptBinary(),
    send: (message) => link.send(message),
    async close() {
      const timer = setTimeout(() => kill(child, isUnix), CLOSE_TIMEOUT_MS);
      await link.close();
      await exited;
      clearTimeout(timer);
    },
    destroy() {
      link.destroy();
      if (child.exitCode === null && child.signalCode === null) kill(child, isUnix);
    },
    async explainEnd() {
      const timer = setTimeout(() => kill(child, isUnix), CLOSE_TIMEOUT_MS);
      await exited;
      clearTimeout(timer);
      const status = child.signalCode ?? `status ${child.exitCode}`;
      return new ProgramEndedError(`\`${line}\``, status, stderr);
    },
  };
}

function kill(child: ChildProcess, isGroup: boolean): void {
  try {
    if (isGroup && child.pid !== undefined) process.kill(-child.pid, "SIGKILL");
    else child.kill("SIGKILL");
  } catch {
    // It has ended meanwhile.
  }
}
