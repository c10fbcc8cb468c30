/** One call in other languages: as code for `run`, for a shell, and for a Python program. */
import { token } from "../core/api.js";
import { fill, h } from "../core/h.js";
import { copyButton, tabs } from "../core/parts.js";
import { CONSTANTS, KEYWORDS } from "../core/python-words.js";
import { say } from "../core/say.js";
import { clipped } from "../core/text.js";

const LONGEST = 20_000;
const IDENTIFIER = /^[\p{ID_Start}_][\p{ID_Continue}]*$/u;

/** JSON as Python writes it. */
export function python(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object")
    return `{${Object.entries(value)
      .map(([key, item]) => `${text(key)}: ${python(item)}`)
      .join(", ")}}`;
  return typeof value === "string" ? text(value) : String(value);
}

/** What JSON writes in quotes, Python reads; but for half a pair of surrogates, which both spell alike. */
const text = (value) =>
  JSON.stringify(value).replace(
    /[\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g,
    (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );

const isName = (name) => IDENTIFIER.test(name) && !KEYWORDS.has(name) && !CONSTANTS.has(name);

export function forRun(tool, args) {
  const name = tool.pythonName ?? tool.name;
  const isPlain = name.split(".").every(isName) && Object.keys(args).every(isName);
  const given = isPlain
    ? Object.entries(args).map(([key, value]) => `${key}=${python(value)}`)
    : [text(tool.name), ...(Object.keys(args).length ? [`**${python(args)}`] : [])];
  return `${isPlain ? name : "ot.call"}(${given.join(", ")})`;
}

export function forShell(tool, args) {
  const address = `${location.origin}/api/tools/${encodeURIComponent(tool.name).replaceAll("'", "%27")}/call`;
  return [
    `curl -X POST '${address}'`,
    ...(token() ? ['-H "Authorization: Bearer $ONETOOL_TOKEN"'] : []),
    "-H 'Content-Type: application/json'",
    `-d '${JSON.stringify({ args }).replaceAll("'", "'\\''")}'`,
  ].join(" \\\n  ");
}

export function forProgram(tool, args) {
  return [
    "import asyncio",
    "import os",
    "from pathlib import Path",
    "",
    "from onetool.app import OneTool, read_settings",
    "",
    "async def main():",
    "    async with OneTool(read=lambda: read_settings(os.environ, Path.cwd())) as app:",
    `        result = await app.bus.call_tool(${text(tool.name)}, ${python(args)}, app.context())`,
    "        print(result.unwrap())",
    "",
    "asyncio.run(main())",
  ].join("\n");
}

class Snippets extends HTMLElement {
  use(tool, args) {
    const ways = [
      ["run", forRun],
      ["curl", forShell],
      ["toolbus", forProgram],
    ];
    this.refresh = () => {
      for (const [place, code] of [...this.querySelectorAll("pre code")].entries()) {
        const made = ways.find(([id]) => id === code.dataset.way)[1](tool, args());
        if (place < ways.length) fill(code, clipped(made, LONGEST));
      }
    };
    this.append(
      tabs(
        say("tester.code"),
        ways.map(([id, make]) => ({
          id,
          label: say(`snippet.${id}`),
          panel: () =>
            h(
              "div.snippet",
              {},
              copyButton(() => make(tool, args())),
              h("pre", { tabindex: "0" }, h("code", { data: { way: id } }, clipped(make(tool, args()), LONGEST))),
            ),
        })),
      ),
    );
    return this;
  }
}

customElements.define("ot-snippets", Snippets);
export const snippets = (tool, args) => document.createElement("ot-snippets").use(tool, args);
