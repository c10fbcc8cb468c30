/** Asks the server for names and definitions of tools while code is written. Only recent answers are kept. */
import { encodePath, get } from "../core/api.js";
import { changes } from "../tools/catalog.js";

const MAX_ENTRIES = 200;
const cache = new Map();
changes.listen(() => cache.clear());

/** Return the packs, or the tools of `pack.`, whose names begin with the prefix. */
export async function findNames(prefix) {
  for (let end = prefix.length; end >= 0; end -= 1) {
    const known = cache.get(`names ${prefix.slice(0, end)}`);
    if (known && (end === prefix.length || (await known)?.isComplete)) return filterNames(await known, prefix);
    if (prefix[end - 1] === ".") break;
  }
  return filterNames(await remember(`names ${prefix}`, () => get("/api/completions", { prefix })), prefix);
}

/** Return the tool with its schema, or null. `name` is written as in code. */
export const findTool = (name) => remember(`tool ${name}`, () => get(`/api/tools${encodePath(name)}`));

function filterNames(found, prefix) {
  const start = prefix.slice(prefix.lastIndexOf(".") + 1).toLowerCase();
  return (found?.completions ?? []).filter(({ text }) => text.toLowerCase().startsWith(start));
}

/** Return the cached answer; null if there is none, such as for a name that is not a tool. */
function remember(key, request) {
  if (!cache.has(key)) {
    if (cache.size >= MAX_ENTRIES) cache.delete(cache.keys().next().value);
    cache.set(
      key,
      request().catch((error) => {
        if (error.status !== 404) cache.delete(key);
        return null;
      }),
    );
  }
  return cache.get(key);
}
