/** REST API of tools and packs. Nothing is cached. */
import { get, encodePath, request } from "../core/api.js";
import { follow } from "../core/feed.js";
import { t } from "../core/i18n.js";
import { Pages } from "../core/pages.js";
import { signal } from "../core/state.js";

const FIRST_PAGE_SIZE = 50; // enough to fill the screen
const PAGE_SIZE = 250;
const DISCOVERY_POLL_MS = 1500; // while servers are being listed

/** The last change: `{ tool }` if one tool changed, `{ tool: null }` if anything may have changed. */
export const changes = signal({});
export const publishChange = (tool = null) => (changes.value = { tool });

// Versions of the tools, such as `2f81c0aa-17`. The number increases; the prefix is that of the server process.
let reportedVersion = "";
let loadedVersion = "";

/** Publish changes that other people and programs make, until the signal aborts. */
export const watchChanges = (signal) =>
  follow("/api/changes", ({ name, data }) => noteReported(data.version, name === "changed"), {
    signal,
    whileVisible: true,
  });

function noteReported(version, isChange) {
  const isNew = isChange || (reportedVersion && version !== reportedVersion) || isOlder(loadedVersion, version);
  reportedVersion = version;
  if (isNew) publishChange();
}

/** Note the version of tools that were loaded. A change may have been reported before they arrived. */
function noteLoaded(version) {
  loadedVersion = version;
  if (isOlder(version, reportedVersion)) publishChange();
}

function isOlder(one, other) {
  const [[process, number], [otherProcess, otherNumber]] = [one.split("-"), other.split("-")];
  return process === otherProcess && Number(number) < Number(otherNumber);
}

let pollTimer = null;

/** Reload the list while servers are being discovered. */
function pollDiscovery(unlisted = []) {
  clearTimeout(pollTimer);
  if (unlisted.some(({ state }) => state === "discovering")) pollTimer = setTimeout(publishChange, DISCOVERY_POLL_MS);
}

/** Return the matching tools page by page. `filters` are `{ q, pack, kind, isEnabled }`. */
export function toolPages(filters) {
  const fetchPage = async (pageToken, signal) => {
    const query = { ...filters, pageSize: pageToken ? PAGE_SIZE : FIRST_PAGE_SIZE, pageToken };
    const { tools, total, version, nextPageToken, unlisted } = await get("/api/tools", query, signal);
    noteLoaded(version);
    pollDiscovery(unlisted);
    return { items: tools, total, next: nextPageToken };
  };
  return new Pages(fetchPage, ({ name }) => name);
}

export const listPacks = async () => (await get("/api/packs")).packs;
export const getTool = (name) => get(`/api/tools${encodePath(name)}`);

/** Enable or disable something that the person sees, and return it. Throw if somebody else has changed it since: these
 * are the fields that are compared. */
export async function switchItem(path, seen, fields, isEnabled) {
  const read = await request("GET", path);
  const found = await read.json();
  const isSame = fields.every((field) => JSON.stringify(found[field]) === JSON.stringify(seen[field]));
  const headers = { "if-match": read.headers.get("etag") };
  const changed = isSame ? await request("PATCH", path, { body: { isEnabled }, headers }).catch(findConflict) : null;
  if (!changed) {
    publishChange();
    throw new Error(t("conflict.switch", { name: seen.name ?? seen.slug }));
  }
  const updated = await changed.json();
  for (const field of fields) seen[field] = updated[field];
  return updated;
}

/** Return null for a conflict. Throw other errors. */
function findConflict(error) {
  if (error.status !== 412) throw error;
  return null;
}

export async function setToolEnabled(tool, isEnabled) {
  const fields = ["isEnabled", "signature", "permissions", "effects"];
  publishChange(await switchItem(`/api/tools${encodePath(tool.name)}`, tool, fields, isEnabled));
}

export async function setPackEnabled(pack, isEnabled) {
  await switchItem(`/api/packs${encodePath(pack.name)}`, pack, ["isEnabled", "kind"], isEnabled);
  publishChange();
}
