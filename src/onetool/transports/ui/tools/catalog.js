/** REST API of tools and packs. Nothing is cached. */
import { get, encodePath, send } from "../core/api.js";
import { Pages } from "../core/pages.js";
import { signal } from "../core/state.js";

const FIRST_PAGE_SIZE = 50; // enough to fill the screen
const PAGE_SIZE = 250;
const DISCOVERY_POLL_MS = 1500; // while servers are being listed

/** The last change: `{ tool }` if one tool changed, `{ tool: null }` if anything may have changed. */
export const changes = signal({});
export const publishChange = (tool = null) => (changes.value = { tool });

let pollTimer = null;

/** Reload the list while servers are being discovered. */
function pollDiscovery(unlisted = []) {
  clearTimeout(pollTimer);
  if (unlisted.some(({ state }) => state === "discovering")) pollTimer = setTimeout(publishChange, DISCOVERY_POLL_MS);
}

/** Return the matching tools page by page. `filters` are `{ q, pack, kind, isEnabled }`. */
export function toolPages(filters) {
  return new Pages(async (pageToken, signal) => {
    const query = { ...filters, pageSize: pageToken ? PAGE_SIZE : FIRST_PAGE_SIZE, pageToken };
    const { tools, total, nextPageToken, unlisted } = await get("/api/tools", query, signal);
    pollDiscovery(unlisted);
    return { items: tools, total, next: nextPageToken };
  });
}

export const listPacks = async () => (await get("/api/packs")).packs;
export const getTool = (name) => get(`/api/tools${encodePath(name)}`);

export async function setToolEnabled(name, isEnabled) {
  const updated = await send("PATCH", `/api/tools${encodePath(name)}`, { isEnabled });
  publishChange(updated);
  return updated;
}

export async function setPackEnabled(name, isEnabled) {
  const updated = await send("PATCH", `/api/packs${encodePath(name)}`, { isEnabled });
  publishChange();
  return updated;
}
