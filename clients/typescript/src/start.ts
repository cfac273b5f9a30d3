/**
 * Starting processes.
 *
 * @module
 */
import { toBytes, toText } from "./bytes.js";
import type { CallOptions, Params } from "./calls.js";
import type { Engine } from "./engine.js";
import { UsageError, isRefused } from "./errors.js";
import type { Path } from "./path.js";
import { toWirePath } from "./path.js";
import type { TerminalSize } from "./process.js";
import { Process } from "./process.js";
import type { Source } from "./source.js";
import type { ProcessEnvInherit, ProcessOverflow, ProcessResourceLimits, ProcessRestart, ProcessStartResult, SandboxContext } from "./protocol.js";

/** A program and its arguments; bytes for words that are not UTF-8. */
export type Argv = readonly (string | Uint8Array)[];

/** Options of a start. */
export interface StartOptions extends CallOptions {
  /** Its id in the session; a random one by default. */
  id?: string | undefined;
  /** The working directory, absolute, relative to that of the session or below `~`; that of the session by default. */
  cwd?: Path | undefined;
  /** Variables to set, beyond what is inherited. */
  env?: Record<string, string> | undefined;
  /** What to inherit of the server's environment; `all` by default. */
  inherit?: ProcessEnvInherit | undefined;
  /** Whether to inherit variables with KEY, SECRET or TOKEN in their names; not by default. */
  inheritSecrets?: boolean | undefined;
  /** Variables not to inherit, as globs. */
  envExclude?: readonly string[] | undefined;
  /** The only variables to keep, as globs. */
  envIncludeOnly?: readonly string[] | undefined;
  /** A terminal instead of pipes; `true` is one of 24 rows and 80 columns. */
  tty?: boolean | Partial<TerminalSize> | undefined;
  /** `"pipe"` keeps the standard input writable; with `"ignore"`, the default, there is none. A terminal always has input. */
  stdin?: "pipe" | "ignore" | undefined;
  /** The name that the program sees as its own. */
  arg0?: string | undefined;
  /** Kills the process tree after this time. */
  timeoutMs?: number | undefined;
  /** Kills the process tree after this time without output. */
  idleTimeoutMs?: number | undefined;
  /** Sends SIGTERM when one of these times has passed, and kills what is left after this time; kills at once by default. */
  timeoutGraceMs?: number | undefined;
  /** How long after the exit to wait for a background process that holds the output open; until it ends by default. */
  lingerMs?: number | undefined;
  /** Whether it outlives the server; by default if the server can keep it. */
  durable?: boolean | undefined;
  /** Whether the output of a durable process is on disk before it is announced. */
  sync?: boolean | undefined;
  /** Runs it again when it fails or whenever it ends, `maxRestarts` times at most, as one process with one output. */
  restart?: ProcessRestart | undefined;
  /** Keeps what was asked for in the memory of the server, so that {@link Process.restart} can start it again. */
  restartable?: boolean | undefined;
  /** Resource limits. */
  limits?: ProcessResourceLimits | undefined;
  /** The confinement, as section 6.3 of the protocol describes it. */
  sandbox?: SandboxContext | undefined;
  /**
   * The account of the host as which it runs, by name or uid in decimal digits, where the server runs as root; without a
   * `cwd` it starts in the home of that account.
   */
  user?: string | undefined;
  /** Gives the process tree pids of its own. */
  isolatePids?: boolean | undefined;
  /** How much output stays readable, in bytes; 1 MiB by default. */
  retainBytes?: number | undefined;
  /** How long it stays readable after the close; 80 s by default. */
  retainMs?: number | undefined;
  /** What a full log does; `pause`, the default, makes the process wait for this client. */
  overflow?: ProcessOverflow | undefined;
  /** Words for people and tools, listed with the process. */
  labels?: Record<string, string> | undefined;
}

/** Options of a run. */
export interface RunOptions extends StartOptions {
  /** What to write to its standard input, which is then closed; a stream is read as the process reads. */
  input?: Source | undefined;
  /** Whether a command that fails is an error, `CommandFailedError`; otherwise look at `ok` or `exitCode`. */
  check?: boolean | undefined;
}

/** The `TERM` of programs on a terminal; nearly every terminal emulator understands it. */
const DEFAULT_TERM = "xterm-256color";

/** Starts a process, at most once, also if the connection is lost meanwhile. */
export async function start(engine: Engine, argv: Argv, options: StartOptions): Promise<Process> {
  const params = startParams(engine, argv, options);
  const { processId } = params;
  const cap = engine.welcome.limits?.retainBytes;
  const wasUnfollowed = engine.queues.isUnfollowed(processId);
  const queue = engine.queues.add(processId, options.retainBytes === undefined ? cap : Math.min(options.retainBytes, cap ?? Infinity));
  const { disconnects } = engine;
  // Without a handle, the caller could not end it.
  const terminate = (incarnation?: number | null): void => void engine.call("process/terminate", { processId, incarnation }).catch(() => undefined);
  const onGivenUp = (outcome: Promise<ProcessStartResult>): void => {
    if (options.id === undefined) terminate();
    // Until the server says that it was started, the id may be that of another process.
    else outcome.then(({ incarnation }) => terminate(incarnation), () => undefined);
  };
  let started: Partial<Pick<ProcessStartResult, "pid" | "replayed" | "incarnation">>;
  try {
    started = await engine.callWithBytes("process/start", params, { argvBase64: argvBytes(argv) }, { signal: options.signal, onGivenUp });
  } catch (error) {
    // A server of the base dialect does not know `startId`: a repeated start finds its own process.
    const isOwn = isRefused(error, "processExists") && engine.disconnects !== disconnects;
    if (!isOwn) {
      // One with this id that nobody here follows must not wait for what came to this queue.
      engine.queues.remove(queue, { isRunning: wasUnfollowed || queue.hasArrived });
      throw error;
    }
    started = { replayed: true };
  }
  queue.onStarted({ hasHistory: started.replayed ?? false, incarnation: started.incarnation });
  return new Process(engine, { processId, incarnation: queue.incarnation }, queue, { pid: started.pid ?? undefined, isTerminal: params.tty });
}

function startParams(engine: Engine, argv: Argv, options: StartOptions): Params<"process/start"> {
  if (typeof argv === "string" || argv.length === 0) {
    throw new UsageError("a command is an array of the program and its arguments", { hint: 'use `host.sh("…")` for a line of a shell' });
  }
  const { tty, stdin, user } = options;
  if (stdin !== undefined && stdin !== "pipe" && stdin !== "ignore") {
    throw new UsageError(`\`stdin\` is ${JSON.stringify(stdin)}`, { hint: 'write "pipe" or "ignore"; `run` takes `input`' });
  }
  if (tty && stdin === "ignore") throw new UsageError("a terminal always has input", { hint: "leave `stdin` out, or leave `tty` out" });
  if (user !== undefined && engine.welcome.environmentInfo?.capabilities?.processUser !== true) {
    throw new UsageError("this server cannot run a command as another user", { hint: "leave `user` out, or use a current `remex serve` there that runs as root and starts any process" });
  }
  if (options.restart !== undefined && engine.welcome.environmentInfo?.capabilities?.processRestart !== true) {
    throw new UsageError("this server cannot run a command again when it ends", { hint: "leave `restart` out, or use a current `remex serve` there" });
  }
  const size = typeof tty === "object" ? tty : {};
  return {
    processId: options.id ?? engine.name("p"),
    startId: engine.name("s"),
    argv: argv.map((word) => (typeof word === "string" ? word : toText(word))),
    cwd: options.cwd === undefined ? (user === undefined ? (engine.welcome.environmentInfo?.cwd ?? "/") : undefined) : toWirePath(options.cwd),
    user,
    env: tty ? { TERM: DEFAULT_TERM, ...options.env } : (options.env ?? {}),
    envPolicy: {
      inherit: options.inherit ?? "all",
      ignoreDefaultExcludes: options.inheritSecrets ?? false,
      exclude: [...(options.envExclude ?? [])],
      set: {},
      includeOnly: [...(options.envIncludeOnly ?? [])],
    },
    tty: Boolean(tty),
    pipeStdin: !tty && stdin === "pipe",
    rows: size.rows,
    cols: size.cols,
    arg0: options.arg0,
    timeoutMs: options.timeoutMs,
    idleTimeoutMs: options.idleTimeoutMs,
    timeoutGraceMs: options.timeoutGraceMs,
    lingerMs: options.lingerMs,
    durable: options.durable,
    sync: options.sync,
    restart: options.restart,
    // A server that does not know it could refuse the start.
    restartable: (options.restartable && engine.welcome.environmentInfo?.capabilities?.processRestartRequest) || undefined,
    limits: options.limits,
    sandbox: options.sandbox,
    isolatePids: options.isolatePids,
    output: { retainBytes: options.retainBytes, retainMs: options.retainMs, overflow: options.overflow },
    labels: options.labels,
  };
}

/** Returns the words as bytes, if one of them may not be UTF-8. */
function argvBytes(argv: Argv): Uint8Array[] | undefined {
  return argv.some((word) => typeof word !== "string") ? argv.map(toBytes) : undefined;
}
