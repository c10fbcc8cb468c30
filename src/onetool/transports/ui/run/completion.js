/** Completions at the caret: packs, and the tools of a pack with their signatures. */
import { get } from "../core/api.js";
import { changes, listPacks } from "../tools/catalog.js";

const MAX_OPTIONS = 60;
const MAX_CONTEXT_CHARS = 4000; // before the caret
const cache = { packs: null, tools: new Map() };
changes.listen(clearCache);

function clearCache() {
  cache.packs = null;
  cache.tools.clear();
}

/** Return `{ prefix, options: [{ text, about }] }` for the code before the caret, or null. */
export async function findCompletions(before) {
  const line = before.slice(-MAX_CONTEXT_CHARS);
  const member = /([\p{L}_][\p{L}\p{N}_]*)\.([\p{L}\p{N}_]*)$/u.exec(line);
  if (member)
    return selectOptions(
      member[2],
      (await cachedTools(member[1])).map(({ short, signature, description }) => ({
        text: short,
        about: signature,
        note: description,
      })),
    );
  const word = /(?<![.\p{L}\p{N}_"'])([\p{L}_][\p{L}\p{N}_]*)$/u.exec(line);
  if (!word) return null;
  return selectOptions(
    word[1],
    (await cachedPacks()).map(({ name, description, toolCount }) => ({
      text: name,
      about: description || String(toolCount),
      note: "",
    })),
  );
}

/** Return the signature of the call around the caret. */
export async function findSignature(before) {
  const name = findOpenCall(before.slice(-MAX_CONTEXT_CHARS));
  if (!name) return "";
  return (await cachedTools(name[0])).find(({ short }) => short === name[1])?.signature ?? "";
}

function findOpenCall(text) {
  let depth = 0;
  for (let index = text.length - 1; index >= 0; index -= 1) {
    if (text[index] === ")") depth += 1;
    else if (text[index] === "(" && depth) depth -= 1;
    else if (text[index] === "(") {
      const match = /([\p{L}_][\p{L}\p{N}_]*)\.([\p{L}_][\p{L}\p{N}_]*)\s*$/u.exec(text.slice(0, index));
      return match ? [match[1], match[2]] : null;
    }
  }
  return null;
}

function selectOptions(prefix, options) {
  const lower = prefix.toLowerCase();
  const startingWith = options.filter(({ text }) => text.toLowerCase().startsWith(lower) && text !== prefix);
  const containing =
    lower.length > 1
      ? options.filter(({ text }) => !text.toLowerCase().startsWith(lower) && text.toLowerCase().includes(lower))
      : [];
  const selected = [...startingWith, ...containing].slice(0, MAX_OPTIONS);
  return selected.length ? { prefix, options: selected } : null;
}

async function cachedPacks() {
  cache.packs ??= listPacks().then((all) =>
    all.filter((pack) => pack.isEnabled).map((pack) => ({ ...pack, name: toIdentifier(pack.name) })),
  );
  return cache.packs.catch(() => ((cache.packs = null), []));
}

async function cachedTools(pack) {
  if (!(await cachedPacks()).some(({ name }) => name === pack)) return [];
  if (!cache.tools.has(pack)) {
    cache.tools.set(
      pack,
      get("/api/tools", { pack, isEnabled: "true", pageSize: 250 }).then(({ tools }) =>
        tools.map((tool) => ({ ...tool, short: tool.pythonName.slice(tool.pythonName.lastIndexOf(".") + 1) })),
      ),
    );
  }
  return cache.tools.get(pack).catch(() => (cache.tools.delete(pack), []));
}

const toIdentifier = (name) => name.replace(/[^\p{L}\p{N}_]/gu, "_");
