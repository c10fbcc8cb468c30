/** What the page knows of tools and packs, as the server tells it; nothing is kept longer than it is looked at. */
import { get, path, send } from "../core/api.js";
import { Pages } from "../core/pages.js";
import { signal } from "../core/store.js";

const FIRST_PAGE = 50; // what a first look can show
const LATER_PAGES = 250;
const LISTING_MS = 1500; // between two looks while servers are being listed

/** What has changed: one tool as it is now, or nothing in particular, which may be everything. */
export const changes = signal({});
export const changed = (tool = null) => (changes.value = { tool });

let lookAgain = null;

/** Load the list again while the tools of some server are on their way. */
function follow(unlisted = []) {
  clearTimeout(lookAgain);
  if (unlisted.some(({ state }) => state === "discovering")) lookAgain = setTimeout(changed, LISTING_MS);
}

/** `filters` are `{ q, pack, kind, isEnabled }`. */
export function toolPages(filters) {
  return new Pages(async (pageToken, signal) => {
    const query = { ...filters, pageSize: pageToken ? LATER_PAGES : FIRST_PAGE, pageToken };
    const { tools, total, nextPageToken, unlisted } = await get("/api/tools", query, signal);
    follow(unlisted);
    return { items: tools, total, next: nextPageToken };
  });
}

export const packs = async () => (await get("/api/packs")).packs;
export const tool = (name) => get(`/api/tools${path(name)}`);

export async function switchTool(name, isEnabled) {
  const told = await send("PATCH", `/api/tools${path(name)}`, { isEnabled });
  changed(told);
  return told;
}

export async function switchPack(name, isEnabled) {
  const told = await send("PATCH", `/api/packs${path(name)}`, { isEnabled });
  changed();
  return told;
}
