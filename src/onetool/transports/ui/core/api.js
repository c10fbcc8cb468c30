/** The public REST interface as the page uses it: requests, refusals, streams, the token, and whether anybody
 * answers. */
import { events } from "./events.js";
import { say } from "./say.js";
import { ofThisTab, signal } from "./store.js";

const FIRST_WAIT = 500;
const MAX_WAIT = 5000;

/** Whether the server answers. */
export const online = signal(true);
/** Whether it wants a token, and what it said. */
export const wanted = signal(null);

/** A problem as one text: what is wrong, and below it what to do. */
export const withHint = (message, hint) => (hint ? `${message}\nHint: ${hint}` : message);

/** What the server refused; `code` is one of its own. */
export class Refused extends Error {
  constructor(status, { code, message, details } = {}) {
    super(message ? withHint(message, details?.hint) : say("error.status", { status }));
    Object.assign(this, { status, code: code ?? "unknown", details: details ?? {} });
  }
}

/** There was nobody. */
export class Unreachable extends Error {}

export const get = async (path, query, signal) => data(await ask("GET", path, { query, signal }));
export const send = async (method, path, body, signal) => data(await ask(method, path, { body, signal }));

/** Events, one after the other: `for await (const { name, data } of stream(...))`. Ending the loop cancels. */
export async function* stream(method, path, { body, query, signal } = {}) {
  const response = await ask(method, path, { body, query, signal, accept: "text/event-stream" });
  if (response.headers.get("content-type")?.startsWith("text/event-stream")) {
    yield* reachable(events(response), signal);
  } else {
    yield { name: "result", data: await data(response) };
  }
}

/** A request with any body; the answer as it is, if it is none of refusal. */
export async function ask(method, path, { body, query, signal, accept = "application/json", type } = {}) {
  const response = await reached(address(path, query), {
    method,
    signal,
    headers: headers(accept, body, type),
    body: body === undefined || type ? body : JSON.stringify(body),
    cache: "no-cache",
    keepalive: method === "DELETE", // what is to go goes, even where the page goes first
  });
  if (response.ok) return response;
  const refused = new Refused(response.status, (await response.json().catch(() => ({}))).error);
  if (response.status !== 401) throw refused;
  await tokenFor(refused);
  return ask(method, path, { body, query, signal, accept, type });
}

/** A path of parts that may hold anything. */
export const path = (...parts) => parts.map((part) => `/${encodeURIComponent(part)}`).join("");

export const token = () => ofThisTab.read("token", "");

export function useToken(text) {
  ofThisTab.write("token", text);
  wanted.value = null;
}

function address(target, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value != null && value !== "");
  return given.length ? `${target}?${new URLSearchParams(given)}` : target;
}

function headers(accept, body, type) {
  const sent = { accept };
  if (body !== undefined) sent["content-type"] = type ?? "application/json";
  if (token()) sent.authorization = `Bearer ${token()}`;
  return sent;
}

async function reached(target, options) {
  try {
    const response = await fetch(target, options);
    online.value = true;
    return response;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw lost();
  }
}

async function* reachable(source, signal) {
  try {
    yield* source;
  } catch (error) {
    if (signal?.aborted || error.name === "AbortError") throw new DOMException("", "AbortError");
    throw error instanceof SyntaxError ? error : lost();
  }
}

async function data(response) {
  if (response.status === 204) return null;
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError" || error instanceof SyntaxError) throw error;
    throw lost();
  }
}

function tokenFor(refused) {
  wanted.value = refused.message;
  return new Promise((resolve) => {
    const end = wanted.listen((still) => {
      if (still === null) resolve(end());
    });
  });
}

function lost() {
  if (online.value) waitForIt();
  online.value = false;
  return new Unreachable(say("error.unreachable"));
}

async function waitForIt() {
  for (let wait = FIRST_WAIT; ; wait = Math.min(wait * 1.5, MAX_WAIT)) {
    await new Promise((resolve) => setTimeout(resolve, wait));
    const answered = await fetch("/healthz", { cache: "no-store" }).then(
      (response) => response.ok,
      () => false,
    );
    if (answered || online.value) {
      online.value = true;
      return;
    }
  }
}
