/** What could stand where the caret is: packs, and the tools of a pack with their signatures. */
import { get } from "../core/api.js";
import { changes, packs } from "../tools/catalogue.js";

const MOST = 60;
const FAR = 4000; // characters before the caret that are looked at
const cache = { packs: null, tools: new Map() };
changes.listen(forget);

export function forget() {
  cache.packs = null;
  cache.tools.clear();
}

/** `{ from, options: [{ text, about }] }` for the code before the caret; nothing where there is nothing to say. */
export async function completions(before) {
  const line = before.slice(-FAR);
  const member = /([\p{L}_][\p{L}\p{N}_]*)\.([\p{L}\p{N}_]*)$/u.exec(line);
  if (member)
    return offered(
      member[2],
      (await toolsOf(member[1])).map(({ short, signature, description }) => ({
        text: short,
        about: signature,
        note: description,
      })),
    );
  const word = /(?<![.\p{L}\p{N}_"'])([\p{L}_][\p{L}\p{N}_]*)$/u.exec(line);
  if (!word) return null;
  return offered(
    word[1],
    (await allPacks()).map(({ name, description, toolCount }) => ({
      text: name,
      about: description || String(toolCount),
      note: "",
    })),
  );
}

/** The signature of the call that the caret is in. */
export async function signatureAt(before) {
  const name = openCall(before.slice(-FAR));
  if (!name) return "";
  return (await toolsOf(name[0])).find(({ short }) => short === name[1])?.signature ?? "";
}

function openCall(text) {
  let depth = 0;
  for (let place = text.length - 1; place >= 0; place -= 1) {
    if (text[place] === ")") depth += 1;
    else if (text[place] === "(" && depth) depth -= 1;
    else if (text[place] === "(") {
      const match = /([\p{L}_][\p{L}\p{N}_]*)\.([\p{L}_][\p{L}\p{N}_]*)\s*$/u.exec(text.slice(0, place));
      return match ? [match[1], match[2]] : null;
    }
  }
  return null;
}

function offered(begun, options) {
  const wanted = begun.toLowerCase();
  const fitting = options.filter(({ text }) => text.toLowerCase().startsWith(wanted) && text !== begun);
  const others =
    wanted.length > 1
      ? options.filter(({ text }) => !text.toLowerCase().startsWith(wanted) && text.toLowerCase().includes(wanted))
      : [];
  const chosen = [...fitting, ...others].slice(0, MOST);
  return chosen.length ? { begun, options: chosen } : null;
}

async function allPacks() {
  cache.packs ??= packs().then((all) =>
    all.filter((pack) => pack.isEnabled).map((pack) => ({ ...pack, name: asCode(pack.name) })),
  );
  return cache.packs.catch(() => ((cache.packs = null), []));
}

async function toolsOf(pack) {
  if (!(await allPacks()).some(({ name }) => name === pack)) return [];
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

const asCode = (name) => name.replace(/[^\p{L}\p{N}_]/gu, "_");
