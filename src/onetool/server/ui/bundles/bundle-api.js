/** REST API of bundles and stored tools. */
import { request, get, encodePath, send } from "../core/api.js";
import { Pages } from "../core/pages.js";
import { publishChange, switchItem } from "../tools/catalog.js";

const PAGE_SIZE = 256;

async function fetchAll(target, kind, query = {}) {
  const found = [];
  let pageToken;
  do {
    const page = await get(target, { ...query, includeDisabled: "true", pageSize: PAGE_SIZE, pageToken });
    found.push(...page[kind]);
    pageToken = page.nextPageToken;
  } while (pageToken);
  return found;
}

const bundlePath = (bundle) => `/tools/bundles${encodePath(bundle)}`;
const toolPath = (bundle, slug, version) =>
  `${bundlePath(bundle)}/tools${encodePath(slug)}/version${encodePath(version)}`;

export const listBundles = () => fetchAll("/tools/bundles", "bundles");
/** Return a bundle. `sendChange` with its ETag fails if somebody else has changed it. */
export async function getBundle(id) {
  const response = await request("GET", bundlePath(id));
  return Object.assign(await response.json(), { etag: response.headers.get("etag") });
}
export const listTools = (id) => fetchAll("/tools/tools", "tools", { bundleIDs: id });
/** Return the tools page by page. The total is known only after the last page. */
export function toolPages(id) {
  let loaded = 0;
  return new Pages(async (pageToken, signal) => {
    const { tools, nextPageToken } = await get(
      "/tools/tools",
      { bundleIDs: id, includeDisabled: "true", pageSize: PAGE_SIZE, pageToken },
      signal,
    );
    loaded += tools.length;
    return { items: tools, total: loaded + 1, next: nextPageToken };
  });
}

export const getStoredTool = (id, slug, version) => get(toolPath(id, slug, version));
export const invoke = (id, slug, version, args, signal) =>
  send("POST", `${toolPath(id, slug, version)}/invoke`, { args }, signal);

const sendChange = async (method, target, body, etag) => {
  const headers = etag ? { "if-match": etag } : {};
  const response = await request(method, target, { body, headers });
  publishChange();
  return response.status === 204 ? null : response.json();
};

export const putBundle = (id, body, etag) => sendChange("PUT", bundlePath(id), body, etag);
export async function setBundleEnabled(bundle, isEnabled) {
  await switchItem(bundlePath(bundle.id), bundle, ["isEnabled", "modifiedAt"], isEnabled);
  publishChange();
}
export const deleteBundle = (id, etag) => sendChange("DELETE", bundlePath(id), undefined, etag);
export const putTool = (id, slug, version, body) => sendChange("PUT", toolPath(id, slug, version), body);
export async function setToolEnabled(tool, isEnabled) {
  const path = toolPath(tool.bundleID, tool.slug, tool.version);
  await switchItem(path, tool, ["isEnabled", "modifiedAt"], isEnabled);
  publishChange();
}
export const deleteTool = (id, slug, version) => sendChange("DELETE", toolPath(id, slug, version));

/** Return the bundle as a ZIP file. */
export const exportBundle = async (id) =>
  (await request("GET", `/api/bundles${encodePath(id)}/export`, { accept: "application/zip" })).blob();

/** Import `{ file }` or `{ url }`, or return the difference with `dryRun`. The answer has the ETag of the bundle. */
export async function importDocument({ file, url }, query, etag) {
  const pairs = Object.entries({ ...query, url }).flatMap(([name, value]) =>
    [value ?? []].flat().map((one) => [name, one]),
  );
  const response = await request("POST", `/api/import?${new URLSearchParams(pairs)}`, {
    ...(file ? { body: file, type: getType(file) } : {}),
    headers: etag ? { "if-match": etag } : {},
  });
  if (!query.dryRun) publishChange();
  return Object.assign(await response.json(), { etag: response.headers.get("etag") });
}

function getType(file) {
  if (/\.zip$/i.test(file.name) || file.type === "application/zip") return "application/zip";
  return /\.json$/i.test(file.name) ? "application/json" : "application/yaml";
}

/** Allow hosts and store secrets: `{ hosts: [], secrets: { NAME: value } }`. */
export const addRequirements = (body) => send("POST", "/api/requirements", body);
/** Return the request of a call, without sending it: `{ httpImpl, argSchema, args }`. */
export const previewRequest = (body) => send("POST", "/api/request-preview", body);

/** Return a new UUID, version 7. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  const now = Date.now();
  for (let index = 0; index < 6; index += 1) bytes[index] = Math.floor(now / 256 ** (5 - index)) % 256;
  bytes[6] = 0x70 | (bytes[6] & 0x0f);
  bytes[8] = 0x80 | (bytes[8] & 0x3f);
  const text = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return text.replace(/(.{8})(.{4})(.{4})(.{4})(.{12})/, "$1-$2-$3-$4-$5");
}
