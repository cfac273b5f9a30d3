/**
 * Processes for the tool calls of a language model.
 *
 * A model starts a command, waits a little, reads some output, and calls again. So a call returns when the command has
 * ended or a time has passed, with its output truncated to a budget; the process keeps running under a number.
 *
 * @module
 */
import type { TruncatedText } from "./agent-text.js";
import { ControlFilter, Truncator } from "./agent-text.js";
import type { BytesLike } from "./bytes.js";
import { toBytes, toText } from "./bytes.js";
import type { RemexError } from "./errors.js";
import { RemexError as AnyRemexError, ProtocolError, UsageError } from "./errors.js";
import type { Exit } from "./events.js";
import type { Host } from "./host.js";
import { checkTime, checkWhole } from "./numbers.js";
import type { Process } from "./process.js";
import type { ProcessSignalName } from "./protocol.js";
import type { Argv, StartOptions } from "./start.js";
import { sleep } from "./timing.js";

/** The limits of an agent; all of them have a default, the same in every language. */
export interface AgentLimits {
  /** How many processes may be open, including ended ones that can still be asked about; 64. */
  open: number;
  /** How long a step waits by default; 10 s. */
  yieldAfterMs: number;
  /** The shortest and the longest time of a step; 250 ms and 30 s. */
  yieldMinMs: number;
  yieldMaxMs: number;
  /** How much output a step returns by default, in bytes; 40 KiB. */
  outputBytes: number;
  /** How much output is kept between two steps, at its beginning and at its end; 512 KiB. */
  collectBytes: number;
  /** What happens to control sequences; `remove`: a model reads text. */
  controlSequences: "keep" | "remove";
}

/** The limits of one step. */
export interface Window {
  /** How long a step waits at most. */
  yieldAfterMs?: number | undefined;
  /** The longest text of the output, in bytes. */
  maxOutputBytes?: number | undefined;
}

/** Whether a process is running. */
export type AgentProgress =
  | { readonly state: "running" }
  /** It has exited, and a process in the background holds its output open. */
  | { readonly state: "exited"; readonly exit: Exit }
  /** It has exited, and all its output was received. */
  | { readonly state: "ended"; readonly exit: Exit }
  /** Unknown: the session is lost, or the server failed on the process. */
  | { readonly state: "lost"; readonly error: RemexError };

/** The result of one call. */
export interface Step {
  /** The number of the process. */
  readonly handle: number;
  /** Its output since the previous step. */
  readonly output: TruncatedText;
  readonly progress: AgentProgress;
  /** How many bytes of the input were accepted; the rest was not written. */
  readonly acceptedBytes: number;
  readonly waitedMs: number;
}

/** A process of an agent. */
export interface AgentProcess {
  readonly handle: number;
  readonly command: string;
  readonly progress: AgentProgress;
  /** Bytes of output that no step has returned yet. */
  readonly unseenBytes: number;
}

const DEFAULTS: AgentLimits = {
  open: 64, yieldAfterMs: 10_000, yieldMinMs: 250, yieldMaxMs: 30_000, outputBytes: 40 << 10, collectBytes: 512 << 10,
  controlSequences: "remove",
};

/** Defaults of the commands of an agent: a model may ask late, and background processes must not hold a step. */
const COMMAND: StartOptions = { retainBytes: 8 << 20, retainMs: 600_000, lingerMs: 5000 };

/** The largest piece of input that is accepted or not as a whole. */
const INPUT_LEN = 64 << 10;

/**
 * The processes of one model.
 *
 * All output is read between the calls and its beginning and end are kept, so that no process waits for the next call.
 *
 * ```ts
 * await using agent = new Agent(host);
 * let step = await agent.exec(["sh", "-c", "read name; echo hello, $name"], { stdin: "pipe", yieldAfterMs: 250 });
 * step = await agent.write(step.handle, "world\n");
 * console.log(step.output.text); // hello, world
 * ```
 */
export class Agent implements AsyncDisposable {
  readonly #host: Host;
  readonly #limits: AgentLimits;
  readonly #open = new Map<number, OpenProcess>();
  #lastHandle = 0;

  constructor(host: Host, limits: Partial<AgentLimits> = {}) {
    this.#host = host;
    this.#limits = { ...DEFAULTS, ...limits };
    const { open, yieldAfterMs, yieldMinMs, yieldMaxMs, outputBytes, collectBytes } = this.#limits;
    checkWhole("open", open, 1);
    for (const [name, time] of Object.entries({ yieldAfterMs, yieldMinMs, yieldMaxMs })) checkTime(name, time);
    for (const [name, bytes] of Object.entries({ outputBytes, collectBytes })) checkWhole(name, bytes);
  }

  /** Starts a command, and returns when it has ended or the time has passed. */
  async exec(argv: Argv, options: StartOptions & Window = {}): Promise<Step> {
    const { yieldAfterMs, maxOutputBytes, ...command } = options;
    checkWindow(options);
    this.#makeRoom();
    const process = await this.#host.start(argv, { ...COMMAND, ...command });
    const handle = ++this.#lastHandle;
    const shown = argv.map((word) => (typeof word === "string" ? word : toText(word))).join(" ");
    const opened = new OpenProcess(process, shown, Boolean(command.tty), this.#limits);
    this.#open.set(handle, opened);
    return this.#step(handle, opened, undefined, { yieldAfterMs, maxOutputBytes });
  }

  /**
   * Writes input, or nothing, to a process, and returns when it has ended or the time has passed.
   *
   * It returns in time even if the process does not read; `acceptedBytes` says how much it took.
   */
  async write(handle: number, input?: BytesLike, options: Window & {
    /** Closes the input afterwards. */
    end?: boolean | undefined;
  } = {}): Promise<Step> {
    const opened = this.#find(handle);
    checkWindow(options);
    if ((input !== undefined || options.end) && isFinal(opened.progress)) {
      throw new UsageError(`process ${handle} has ended`, { hint: "write nothing to get the rest of its output" });
    }
    return this.#step(handle, opened, input === undefined && !options.end ? undefined : { bytes: toBytes(input ?? ""), end: options.end ?? false }, options);
  }

  /** Returns the beginning and the end of all output of a process; steps are not affected. */
  async output(handle: number, maxBytes: number): Promise<TruncatedText> {
    checkWhole("maxBytes", maxBytes);
    const { stdout, stderr, terminal, omittedBytes } = await this.#find(handle).process.snapshot({ maxBytes: this.#limits.collectBytes });
    const text = new Truncator(maxBytes);
    for (const bytes of [stdout, stderr, terminal]) text.push(this.#filtered(toText(bytes)));
    const { totalBytes, ...rest } = text.finish(maxBytes);
    return { ...rest, omittedBytes: rest.omittedBytes + omittedBytes, totalBytes: totalBytes + omittedBytes };
  }

  /** Returns all processes, in the order of their starts. */
  list(): AgentProcess[] {
    return Array.from(this.#open, ([handle, { command, progress, unseenBytes }]) => ({ handle, command, progress, unseenBytes }));
  }

  /** Returns the process itself, for what an agent does not offer. */
  process(handle: number): Process {
    return this.#find(handle).process;
  }

  /** Interrupts a process like Ctrl-C. */
  async interrupt(handle: number): Promise<void> {
    const { process, isTerminal } = this.#find(handle);
    await (isTerminal ? process.stdin.write("\x03") : process.signal("INT"));
  }

  /** Sends a signal to the process group of a process. */
  async signal(handle: number, signal: ProcessSignalName): Promise<void> {
    await this.#find(handle).process.signal(signal);
  }

  /** Kills a process and all its descendants. */
  async kill(handle: number): Promise<void> {
    await this.#find(handle).process.kill();
  }

  /** Kills all processes. */
  async close(): Promise<void> {
    const open = [...this.#open.values()];
    this.#open.clear();
    await Promise.all(open.map(({ process }) => process[Symbol.asyncDispose]()));
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Drops the oldest process that has ended if there are too many; none is killed to make room. */
  #makeRoom(): void {
    if (this.#open.size < this.#limits.open) return;
    const ended = [...this.#open].find(([, opened]) => isFinal(opened.progress));
    if (!ended) throw new UsageError(`${this.#open.size} processes are running already`, { hint: "kill one of them" });
    ended[1].process.detach();
    this.#open.delete(ended[0]);
  }

  #find(handle: number): OpenProcess {
    const opened = this.#open.get(handle);
    if (opened) return opened;
    throw new UsageError(`there is no process ${handle}`, { hint: "use the number that starting the process returned" });
  }

  #filtered(text: string): string {
    if (this.#limits.controlSequences === "keep") return text;
    const filter = new ControlFilter();
    return filter.push(text) + filter.finish();
  }

  async #step(handle: number, opened: OpenProcess, input: { bytes: Uint8Array; end: boolean } | undefined, window: Window): Promise<Step> {
    const { yieldMinMs, yieldMaxMs, yieldAfterMs, outputBytes, collectBytes } = this.#limits;
    const began = performance.now();
    const over = new AbortController();
    const time = Math.min(Math.max(window.yieldAfterMs ?? yieldAfterMs, yieldMinMs), yieldMaxMs);
    const timer = sleep(time, over.signal).catch(() => undefined);
    let acceptedBytes = 0;
    let failure: unknown;
    const write = async (): Promise<void> => {
      for (let at = 0; input && at < input.bytes.length; at += INPUT_LEN) {
        const part = input.bytes.subarray(at, at + INPUT_LEN);
        await opened.process.stdin.write(part, { signal: over.signal });
        acceptedBytes += part.length;
      }
      if (input?.end) await opened.process.stdin.close({ signal: over.signal });
    };
    const written = write().catch((error: unknown) => {
      if (!over.signal.aborted) failure = error;
    });
    // A write that fails ends the step at once, and so does the end of the process.
    await Promise.race([timer, opened.ended, written.then(() => (failure === undefined ? opened.ended : undefined))]);
    over.abort();
    await written;
    if (failure !== undefined && !isFinal(opened.progress)) throw failure;
    const output = opened.take(Math.min(window.maxOutputBytes ?? outputBytes, collectBytes));
    return { handle, output, progress: opened.progress, acceptedBytes, waitedMs: Math.round(performance.now() - began) };
  }
}

function checkWindow({ yieldAfterMs, maxOutputBytes }: Window): void {
  if (yieldAfterMs !== undefined) checkTime("yieldAfterMs", yieldAfterMs);
  if (maxOutputBytes !== undefined) checkWhole("maxOutputBytes", maxOutputBytes);
}

function isFinal({ state }: AgentProgress): boolean {
  return state === "ended" || state === "lost";
}

/** A process whose output is collected between steps. */
class OpenProcess {
  progress: AgentProgress = { state: "running" };
  /** Resolved when the progress is final. */
  readonly ended: Promise<void>;
  readonly #limits: AgentLimits;
  readonly #decoders = new Map<string, TextDecoder>();
  readonly #filters = new Map<string, ControlFilter>();
  #truncator: Truncator;

  constructor(readonly process: Process, readonly command: string, readonly isTerminal: boolean, limits: AgentLimits) {
    this.#limits = limits;
    this.#truncator = new Truncator(limits.collectBytes);
    this.ended = this.#collect();
  }

  get unseenBytes(): number {
    return this.#truncator.totalBytes;
  }

  take(maxBytes: number): TruncatedText {
    this.#flushLines();
    const truncator = this.#truncator;
    this.#truncator = new Truncator(this.#limits.collectBytes);
    return truncator.finish(maxBytes);
  }

  async #collect(): Promise<void> {
    let exit: Exit | undefined;
    try {
      for await (const event of this.process.events()) {
        if (event.type === "output") this.#push(event.stream, event.bytes);
        else if (event.type === "gap") this.#truncator.skip(event.bytes);
        else if (event.type === "exited") {
          ({ exit } = event);
          this.progress = { state: "exited", exit };
        }
      }
      this.#flushLines();
      this.progress = exit ? { state: "ended", exit } : { state: "lost", error: new ProtocolError("a process is closed but has not exited") };
    } catch (error) {
      this.progress = { state: "lost", error: error instanceof AnyRemexError ? error : new ProtocolError(String(error)) };
    }
  }

  #push(stream: string, bytes: Uint8Array): void {
    let decoder = this.#decoders.get(stream);
    if (!decoder) this.#decoders.set(stream, (decoder = new TextDecoder("utf-8", { ignoreBOM: true })));
    const text = decoder.decode(bytes, { stream: true });
    if (this.#limits.controlSequences === "keep") return this.#truncator.push(text);
    let filter = this.#filters.get(stream);
    if (!filter) this.#filters.set(stream, (filter = new ControlFilter()));
    this.#truncator.push(filter.push(text));
  }

  #flushLines(): void {
    for (const filter of this.#filters.values()) this.#truncator.push(filter.finish());
  }
}
