// Loaded before the conformance tests, which cannot present a token: adds it to every request.
import { createRequire } from "node:module";
import { join } from "node:path";

const { Agent, setGlobalDispatcher } = createRequire(join(process.env.MCP_MODULES, "x.js"))("undici");
const authorization = `Bearer ${process.env.MCP_TOKEN}`;

const withToken = (dispatch) => (options, handler) => {
  let { headers } = options;
  if (headers && typeof headers[Symbol.iterator] === "function") headers = [...headers].flat();
  headers = Array.isArray(headers) ? [...headers, "authorization", authorization] : { ...headers, authorization };
  return dispatch({ ...options, headers }, handler);
};
setGlobalDispatcher(new Agent().compose(withToken));
