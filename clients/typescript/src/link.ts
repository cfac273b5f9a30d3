/**
 * What a transport is to the engine: messages in both directions, and an end.
 *
 * @module
 */
import { decodeBase64 } from "./bytes.js";
import type { ProtocolError } from "./errors.js";
import type { OutputEvent } from "./events.js";
import type { Outgoing } from "./outgoing.js";

/** Receives what arrives on a link. */
export interface Receiver {
  /** One message as JSON, and the bytes beside it. */
  onMessage(json: string, attached?: Uint8Array): void;
  /** The notification `process/output`, already decoded; one of an observed session names that. */
  onOutput(processId: string, event: OutputEvent, incarnation: number | undefined, sessionId?: string): void;
  /** A message that is neither JSON nor a binary message. */
  onMalformed(error: ProtocolError): void;
  /** The answer to a ping. */
  onPong(): void;
  /** A link that was full takes more. */
  onDrain(): void;
  /** The connection ended; nothing follows. */
  onEnd(reason: string): void;
}

/** An open connection. */
export interface Link {
  /** Whether the server asks for acknowledgements with pings of its own; otherwise the client requests `acks`. */
  readonly hasServerPings: boolean;
  /** Whether much of what was sent still waits for the server to read; then {@link Receiver.onDrain} follows. */
  readonly isFull: boolean;
  /** Starts to deliver what arrives. */
  start(receiver: Receiver): void;
  /** Sends and expects binary messages from now on, because the server has agreed to them. */
  acceptBinary(): void;
  /** Queues one message. */
  send(message: Outgoing): void;
  /** Sends a ping that {@link Receiver.onPong} follows; absent if the transport has none. */
  ping?(): void;
  /** Closes the connection after what was queued, and waits until it is closed. */
  close(): Promise<void>;
  /** Drops the connection at once. */
  destroy(): void;
  /** Returns what explains the end of a connection without a handshake, if the transport knows better. */
  explainEnd?(reason: string): Promise<Error>;
}

/** Makes a connection; a signal ends the attempt. */
export interface Dial {
  /** The address, for messages to people. */
  readonly target: string;
  (signal: AbortSignal): Promise<Link>;
}

/** The longest message that is accepted: a file of 512 MiB in base64 is the longest answer. */
export const MAX_MESSAGE_LEN = 1 << 30;

/** How long {@link Link.close} may take, in milliseconds. */
export const CLOSE_TIMEOUT_MS = 2000;

const OUTPUT_HEAD =
  /^\{"method":"process\/output","params":\{"processId":"([^"\\\x80-\uffff]*)",(?:"incarnation":(\d{1,16}),)?"seq":(\d{1,15}),"stream":"(\w+)","chunk":"/;

/** The longest beginning of a message that {@link outputHead} has to see; others are parsed as usual. */
export const OUTPUT_HEAD_LEN = 256;

/** The end of a notification of output, behind its base64. */
const OUTPUT_TAIL = '"}}';

/** The members of a `process/output` before its bytes. */
export interface OutputHead {
  readonly processId: string;
  /** The start that it belongs to, if the process may be restarted. */
  readonly incarnation: number | undefined;
  readonly seq: number;
  readonly stream: string;
  /** Where the base64 begins. */
  readonly length: number;
}

/**
 * Reads the beginning of a `process/output` as remex writes it; `undefined` for everything else.
 *
 * Bulk output is most of what arrives, and this is several times faster than parsing JSON.
 */
export function outputHead(start: string): OutputHead | undefined {
  const match = OUTPUT_HEAD.exec(start);
  if (match === null) return undefined;
  const incarnation = match[2] === undefined ? undefined : Number(match[2]);
  return { processId: match[1]!, incarnation, seq: Number(match[3]), stream: match[4]!, length: match[0].length };
}

/** Delivers a message that has arrived as text. */
export function deliver(text: string, receiver: Receiver): void {
  const head = text.startsWith('{"method":"process/output"') ? outputHead(text.slice(0, OUTPUT_HEAD_LEN)) : undefined;
  if (head !== undefined && text.endsWith(OUTPUT_TAIL)) {
    const bytes = decodeBase64(text.slice(head.length, -OUTPUT_TAIL.length));
    if (bytes !== undefined) {
      receiver.onOutput(head.processId, { type: "output", stream: head.stream, seq: head.seq, bytes }, head.incarnation);
      return;
    }
  }
  receiver.onMessage(text);
}
