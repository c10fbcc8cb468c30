/** Client of the REST API: requests, errors, event streams, the token and the connection state. */
import { parseEvents } from "./events.js";
import { t } from "./i18n.js";
import { browserStorage, tabStorage, signal } from "./state.js";

const MIN_RETRY_MS = 500;
const MAX_RETRY_MS = 5000;
// The path under which the server is mounted; this file is at page/core/ below it.
const PREFIX = new URL("../..", import.meta.url).pathname.replace(/\/$/, "");

/** Whether the server is reachable. */
export const online = signal(true);
/** The error message if the server requires a token, otherwise null. */
export const tokenRequired = signal(null);
/** Changes whenever the person signs in or out. */
export const credentials = signal(0);

/** Return the message, with the hint on a second line. */
export const joinHint = (message, hint) => (hint ? `${message}\nHint: ${hint}` : message);

/** An error response. `code` is the error code of the server. */
export class ApiError extends Error {
  constructor(status, { code, message, details } = {}) {
    super(message ? joinHint(message, details?.hint) : t("error.status", { status }));
    Object.assign(this, { status, code: code ?? "unknown", details: details ?? {} });
  }
}

/** The server cannot be reached. */
export class NetworkError extends Error {}

export const get = async (path, query, signal) => readJson(await request("GET", path, { query, signal }));
export const send = async (method, path, body, signal) => readJson(await request(method, path, { body, signal }));

/** Yield server-sent events: `for await (const { name, data } of stream(...))`. Leaving the loop cancels. */
export async function* stream(method, path, { body, query, signal } = {}) {
  const response = await request(method, path, { body, query, signal, accept: "text/event-stream" });
  if (response.headers.get("content-type")?.startsWith("text/event-stream")) {
    yield* reportDisconnect(parseEvents(response), signal);
  } else {
    yield { name: "result", data: await readJson(response) };
  }
}

/** Send a request and return the response. Throw an ApiError if its status is not 2xx. */
export async function request(
  method,
  path,
  { body, query, signal, accept = "application/json", type, headers = {} } = {},
) {
  const response = await fetchOrFail(buildUrl(path, query), {
    method,
    signal,
    headers: { ...buildHeaders(accept, body, type), ...headers },
    body: body === undefined || type ? body : JSON.stringify(body),
    cache: "no-cache",
    keepalive: method === "DELETE", // send it even if the page is being closed
  });
  if (response.ok) return response;
  const error = new ApiError(response.status, (await response.json().catch(() => ({}))).error);
  if (response.status !== 401) throw error;
  await waitForToken(error);
  return request(method, path, { body, query, signal, accept, type, headers });
}

/** Encode path segments: `/a/b`. */
export const encodePath = (...parts) => parts.map((part) => `/${encodeURIComponent(part)}`).join("");

export const getToken = () => tabStorage.read("token", "");

export function setToken(text) {
  tabStorage.write("token", text);
  credentials.value += 1;
  tokenRequired.value = null;
}

/** The value that proves, with a cookie that scripts cannot read, that this browser has signed in. */
export const getCsrf = () => browserStorage.read("csrf", "");
export function setCsrf(value) {
  browserStorage.write("csrf", value);
  credentials.value += 1;
}

function buildUrl(target, query = {}) {
  const entries = Object.entries(query).filter(([, value]) => value != null && value !== "");
  return PREFIX + (entries.length ? `${target}?${new URLSearchParams(entries)}` : target);
}

function buildHeaders(accept, body, type) {
  const result = { accept };
  if (body !== undefined) result["content-type"] = type ?? "application/json";
  if (getToken()) result.authorization = `Bearer ${getToken()}`;
  else if (getCsrf()) result["x-onetool-csrf"] = getCsrf();
  return result;
}

async function fetchOrFail(target, options) {
  try {
    const response = await fetch(target, options);
    online.value = true;
    return response;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw markOffline();
  }
}

async function* reportDisconnect(source, signal) {
  try {
    yield* source;
  } catch (error) {
    if (signal?.aborted || error.name === "AbortError") throw new DOMException("", "AbortError");
    throw error instanceof SyntaxError ? error : markOffline();
  }
}

async function readJson(response) {
  if (response.status === 204) return null;
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError" || error instanceof SyntaxError) throw error;
    throw markOffline();
  }
}

function waitForToken(error) {
  tokenRequired.value = error.message;
  return new Promise((resolve) => {
    const stop = tokenRequired.listen((message) => {
      if (message === null) resolve(stop());
    });
  });
}

function markOffline() {
  if (online.value) pollUntilOnline();
  online.value = false;
  return new NetworkError(t("error.unreachable"));
}

async function pollUntilOnline() {
  for (let wait = MIN_RETRY_MS; ; wait = Math.min(wait * 1.5, MAX_RETRY_MS)) {
    await new Promise((resolve) => setTimeout(resolve, wait));
    const isUp = await fetch(buildUrl("/healthz"), { cache: "no-store" }).then(
      (response) => response.ok,
      () => false,
    );
    if (isUp || online.value) {
      online.value = true;
      return;
    }
  }
}
