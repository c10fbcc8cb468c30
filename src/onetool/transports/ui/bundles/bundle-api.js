/** REST API of bundles and stored tools. */
import { request, get, encodePath, send } from "../core/api.js";
import { Pages } from "../core/pages.js";
import { publishChange } from "../tools/catalog.js";

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
export const getBundle = (id) => get(bundlePath(id));
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

const sendChange = async (method, target, body) => {
  const response = await send(method, target, body);
  publishChange();
  return response;
};

export const putBundle = (id, body) => sendChange("PUT", bundlePath(id), body);
export const setBundleEnabled = (id, isEnabled) => sendChange("PATCH", bundlePath(id), { isEnabled });
export const deleteBundle = (id) => sendChange("DELETE", bundlePath(id));
export const putTool = (id, slug, version, body) => sendChange("PUT", toolPath(id, slug, version), body);
export const setToolEnabled = (id, slug, version, isEnabled) =>
  sendChange("PATCH", toolPath(id, slug, version), { isEnabled });
export const deleteTool = (id, slug, version) => sendChange("DELETE", toolPath(id, slug, version));

/** Return the bundle as a ZIP file. */
export const exportBundle = async (id) =>
  (await request("GET", `/api/bundles${encodePath(id)}/export`, { accept: "application/zip" })).blob();

export async function importDocument(file, query) {
  const type =
    /\.zip$/i.test(file.name) || file.type === "application/zip"
      ? "application/zip"
      : /\.json$/i.test(file.name)
        ? "application/json"
        : "application/yaml";
  const response = await (await request("POST", "/api/import", { body: file, query, type })).json();
  publishChange();
  return response;
}

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
