/** Bundles and their tools over the REST of the store. */
import { ask, get, path, send } from "../core/api.js";
import { Pages } from "../core/pages.js";
import { changed } from "../tools/catalogue.js";

const PAGE = 256;

async function all(target, kind, query = {}) {
  const found = [];
  let pageToken;
  do {
    const page = await get(target, { ...query, includeDisabled: "true", pageSize: PAGE, pageToken });
    found.push(...page[kind]);
    pageToken = page.nextPageToken;
  } while (pageToken);
  return found;
}

const of = (bundle) => `/tools/bundles${path(bundle)}`;
const at = (bundle, slug, version) => `${of(bundle)}/tools${path(slug)}/version${path(version)}`;

export const bundles = () => all("/tools/bundles", "bundles");
export const bundle = (id) => get(of(id));
export const toolsOf = (id) => all("/tools/tools", "tools", { bundleIDs: id });
/** The same, as far as somebody looks. How many there are is known at the end only. */
export function toolPages(id) {
  let seen = 0;
  return new Pages(async (pageToken, signal) => {
    const { tools, nextPageToken } = await get(
      "/tools/tools",
      { bundleIDs: id, includeDisabled: "true", pageSize: PAGE, pageToken },
      signal,
    );
    seen += tools.length;
    return { items: tools, total: seen + 1, next: nextPageToken };
  });
}

export const storedTool = (id, slug, version) => get(at(id, slug, version));
export const invoke = (id, slug, version, args, signal) =>
  send("POST", `${at(id, slug, version)}/invoke`, { args }, signal);

const told = async (method, target, body) => {
  const answer = await send(method, target, body);
  changed();
  return answer;
};

export const putBundle = (id, body) => told("PUT", of(id), body);
export const switchBundle = (id, isEnabled) => told("PATCH", of(id), { isEnabled });
export const deleteBundle = (id) => told("DELETE", of(id));
export const putTool = (id, slug, version, body) => told("PUT", at(id, slug, version), body);
export const switchStored = (id, slug, version, isEnabled) => told("PATCH", at(id, slug, version), { isEnabled });
export const deleteTool = (id, slug, version) => told("DELETE", at(id, slug, version));

/** The archive as bytes. */
export const exported = async (id) =>
  (await ask("GET", `/api/bundles${path(id)}/export`, { accept: "application/zip" })).blob();

export async function imported(file, query) {
  const type =
    /\.zip$/i.test(file.name) || file.type === "application/zip"
      ? "application/zip"
      : /\.json$/i.test(file.name)
        ? "application/json"
        : "application/yaml";
  const answer = await (await ask("POST", "/api/import", { body: file, query, type })).json();
  changed();
  return answer;
}

/** An id as the store wants it: UUID version 7, the time first. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  const now = Date.now();
  for (let place = 0; place < 6; place += 1) bytes[place] = Math.floor(now / 256 ** (5 - place)) % 256;
  bytes[6] = 0x70 | (bytes[6] & 0x0f);
  bytes[8] = 0x80 | (bytes[8] & 0x3f);
  const text = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return text.replace(/(.{8})(.{4})(.{4})(.{4})(.{12})/, "$1-$2-$3-$4-$5");
}
