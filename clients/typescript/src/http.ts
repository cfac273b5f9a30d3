/**
 * HTTP requests from the remote host.
 *
 * @module
 */
import { onAbort } from "./abort.js";
import type { BytesLike } from "./bytes.js";
import { toBytes, toText, concat } from "./bytes.js";
import type { CallOptions, Params } from "./calls.js";
import { bytesOf, integer } from "./decode.js";
import type { Engine } from "./engine.js";
import { ProtocolError, RefusedError } from "./errors.js";
import type { HttpRequestHeader, HttpRequestResult, HttpResponseHeader } from "./protocol.js";

/** A request. */
export interface HttpRequest extends CallOptions {
  /** `GET` by default. */
  method?: string | undefined;
  /** `Headers`, a record, or a list of `{name, value, valueEnvVar?}` to repeat names or to append a variable of the server. */
  headers?: Headers | Record<string, string> | readonly HttpRequestHeader[] | undefined;
  body?: BytesLike | undefined;
  /** The timeout for the whole exchange, including the body. */
  timeoutMs?: number | undefined;
  /** `follow` by default. */
  redirect?: "follow" | "stop" | undefined;
}

/** The beginning of a response. */
export interface HttpHead {
  readonly status: number;
  /** Whether the status is 200 to 299. */
  readonly ok: boolean;
  /** As those of `fetch`: `headers.get("content-type")`, `headers.getSetCookie()`. */
  readonly headers: Headers;
  /** The same as they were sent, in their order and with repeats; names are in lower case. */
  readonly rawHeaders: readonly HttpResponseHeader[];
}

/** A response whose body is complete. */
export interface HttpResponse extends HttpHead {
  readonly body: Uint8Array;
  /** The body as text. */
  readonly text: string;
}

/** A response whose body is read as it arrives. */
export interface HttpStream extends HttpHead {
  /** Read it to its end or cancel it; it fails if the connection to the server is lost. */
  readonly body: ReadableStream<Uint8Array>;
}

/** How many parts are consumed before that is reported; 16 may be in flight. */
const REPORT_PARTS = 4;

/** Makes HTTP requests from the remote host. */
export class Http {
  readonly #engine: Engine;

  /** @internal */
  constructor(engine: Engine) {
    this.#engine = engine;
  }

  /**
   * Makes a request and returns its response with the whole body, of at most 32 MiB; any status is a response.
   *
   * After a disconnect, GET, HEAD and OPTIONS are sent again; others fail with `RequestInterruptedError`.
   */
  async request(url: string | URL, request: HttpRequest = {}): Promise<HttpResponse> {
    const reply = await this.#send(params(url, request, this.#engine.name("h")), request);
    const body = bytesOf(reply.bodyBase64, "bodyBase64");
    return { ...head(reply), body, get text() { return toText(body); } };
  }

  /**
   * Makes a request and returns its response as soon as the head has arrived; the body has any length.
   *
   * ```ts
   * const { status, body } = await host.http.stream("http://127.0.0.1:8080/large");
   * for await (const chunk of body) console.log(chunk.length);
   * ```
   */
  async stream(url: string | URL, request: HttpRequest = {}): Promise<HttpStream> {
    const requestId = this.#engine.name("h");
    const id = this.#engine.nextCallId;
    const body = new Body(this.#engine, requestId, id);
    try {
      const reply = await this.#send({ ...params(url, request, requestId), streamResponse: true }, request);
      if (request.signal) body.cancelOn(request.signal);
      return { ...head(reply), body: body.readable };
    } catch (error) {
      body.end();
      throw error;
    }
  }

  #send(params: Params<"http/request">, { body, signal }: HttpRequest): Promise<HttpRequestResult> {
    const bytes = body === undefined ? undefined : toBytes(body);
    return this.#engine.callWithBytes("http/request", params, { bodyBase64: bytes }, { signal });
  }
}

type BodyState = { is: "open" } | { is: "done" } | { is: "failed"; error: unknown };

/** The parts of a streamed body, in order. */
class Body {
  readonly readable: ReadableStream<Uint8Array>;
  readonly #engine: Engine;
  readonly #key: string;
  readonly #requestId: string;
  readonly #callId: number;
  #parts: Uint8Array[] = [];
  #arrived = 0;
  #reported = 0;
  #state: BodyState = { is: "open" };
  #wake: (() => void) | undefined;
  #stopListening: (() => void) | undefined;

  constructor(engine: Engine, requestId: string, callId: number) {
    this.#engine = engine;
    this.#requestId = requestId;
    this.#callId = callId;
    this.#key = `http:${requestId}`;
    engine.routes.add(this.#key, {
      onBody: (delta) => {
        const [seq, bytes] = [integer(delta.seq, "seq"), bytesOf(delta.deltaBase64, "deltaBase64")];
        // Parts cannot be read again.
        if (seq !== this.#arrived + 1) throw new ProtocolError(`part ${this.#arrived + 1} of a body is missing`);
        this.#arrived = seq;
        if (bytes.length > 0) this.#parts.push(bytes);
        if (delta.error != null) this.#finish({ is: "failed", error: incomplete(delta.error) });
        else if (delta.done) this.#finish({ is: "done" });
        this.#wake?.();
      },
      onFailure: (error) => this.#finish({ is: "failed", error }),
    });
    this.readable = new ReadableStream<Uint8Array>({
      pull: (controller) => this.#pull(controller),
      cancel: () => this.cancel(undefined),
    }, { highWaterMark: 0 });
  }

  async #pull(controller: ReadableStreamDefaultController<Uint8Array>): Promise<void> {
    while (this.#parts.length === 0 && this.#state.is === "open") {
      await new Promise<void>((resolve) => (this.#wake = resolve));
    }
    if (this.#parts.length > 0) {
      const parts = this.#parts;
      this.#parts = [];
      if (this.#state.is === "open" && this.#arrived - this.#reported >= REPORT_PARTS) {
        this.#reported = this.#arrived;
        this.#engine.bodyConsumed(this.#requestId, this.#arrived);
      }
      controller.enqueue(concat(parts));
    } else if (this.#state.is === "failed") {
      throw this.#state.error;
    } else {
      controller.close();
    }
  }

  cancelOn(signal: AbortSignal): void {
    if (this.#state.is === "open") this.#stopListening = onAbort(signal, () => this.cancel(signal.reason));
  }

  cancel(reason: unknown): void {
    if (this.#state.is !== "open") return;
    this.#engine.cancel(this.#callId);
    this.#finish(reason === undefined ? { is: "done" } : { is: "failed", error: reason });
  }

  end(): void {
    this.#finish({ is: "done" });
  }

  #finish(state: BodyState): void {
    if (this.#state.is !== "open") return;
    this.#state = state;
    this.#stopListening?.();
    this.#engine.routes.remove(this.#key);
    this.#wake?.();
  }
}

function incomplete(reason: string): RefusedError {
  return new RefusedError({ code: -32603, kind: "httpFailed", message: `the body of the response is incomplete: ${reason}` });
}

function params(url: string | URL, request: HttpRequest, requestId: string): Params<"http/request"> {
  const { headers } = request;
  return {
    method: request.method ?? "GET",
    url: String(url),
    requestId,
    headers: headers === undefined ? [] : toHeaderList(headers),
    timeoutMs: request.timeoutMs,
    redirectPolicy: request.redirect,
  };
}

function toHeaderList(headers: NonNullable<HttpRequest["headers"]>): HttpRequestHeader[] {
  if (Array.isArray(headers)) return [...headers];
  const entries = headers instanceof Headers ? [...headers] : Object.entries(headers as Record<string, string>);
  return entries.map(([name, value]) => ({ name, value }));
}

function head(reply: HttpRequestResult): HttpHead {
  const status = integer(reply.status, "status");
  const headers = new Headers();
  for (const { name, value } of reply.headers) headers.append(name, latin1(value));
  return { status, ok: status >= 200 && status <= 299, headers, rawHeaders: reply.headers };
}

/** Returns a value as `fetch` shows it: a character for each byte. */
function latin1(value: string): string {
  if (/^[\x00-\xff]*$/.test(value)) return value;
  return Array.from(toBytes(value), (byte) => String.fromCharCode(byte)).join("");
}
