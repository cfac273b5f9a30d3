/**
 * Streams and watches that live as long as a connection.
 *
 * @module
 */
import type { RemexError } from "./errors.js";
import type { FsChangedParams, HttpRequestBodyDeltaParams } from "./protocol.js";

/** Receives the notifications of a stream, a watch or an observed session until its connection ends. */
export interface Route {
  onBody?(delta: HttpRequestBodyDeltaParams): void;
  onChanged?(changed: FsChangedParams): void;
  /** It ends with an error: the connection ended, the session is lost, or a notification was invalid. */
  onFailure(error: RemexError): void;
}

/** The open streams and watches, by what notifications say about them. */
export class Routes {
  readonly #routes = new Map<string, Route>();

  add(key: string, route: Route): void {
    this.#routes.set(key, route);
  }

  remove(key: string): void {
    this.#routes.delete(key);
  }

  onBody(delta: HttpRequestBodyDeltaParams): void {
    this.#routes.get(`http:${String(delta.requestId)}`)?.onBody?.(delta);
  }

  onChanged(changed: FsChangedParams): void {
    this.#routes.get(`watch:${String(changed.watchId)}`)?.onChanged?.(changed);
  }

  /** Fails the one that a notification names; returns whether it names any. */
  fail({ requestId, watchId }: Record<string, unknown>, error: RemexError): boolean {
    if (requestId === undefined && watchId === undefined) return false;
    const key = requestId === undefined ? `watch:${String(watchId)}` : `http:${String(requestId)}`;
    const route = this.#routes.get(key);
    this.#routes.delete(key);
    route?.onFailure(error);
    return true;
  }

  failAll(error: RemexError): void {
    const routes = [...this.#routes.values()];
    this.#routes.clear();
    for (const route of routes) route.onFailure(error);
  }
}
