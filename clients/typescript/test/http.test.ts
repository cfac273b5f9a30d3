// HTTP requests, beyond what the behaviour suite tells.
import assert from "node:assert/strict";
import { test } from "node:test";
import { connect } from "../src/index.js";
import { RemexServer, within } from "./server.js";
import { WebServer } from "./web.js";

test("headers are those of `fetch`, and the raw ones as well", async () => {
  await using web = await WebServer.start();
  await using server = await RemexServer.start(["unix://{dir}/s.sock"]);
  await using host = await connect(server.url);
  for (const headers of [{ "X-Sent": "one" }, new Headers({ "X-Sent": "one" }), [{ name: "X-Sent", value: "one" }]]) {
    const response = await within("a response", host.http.request(`${web.url}/echo`, { headers }));
    assert.deepEqual([response.status, response.ok, response.headers.get("X-Method"), response.headers.get("x-sent")], [200, true, "GET", "one"]);
    assert.deepEqual(response.headers.getSetCookie(), ["a=1", "b=2"]);
    assert.deepEqual(response.rawHeaders.filter(({ name }) => name === "set-cookie").map(({ value }) => value), ["a=1", "b=2"]);
  }
  const { ok, status, body } = await within("a response", host.http.stream(`${web.url}/status/404`));
  await body.cancel();
  assert.deepEqual([ok, status], [false, 404]);
});
