/** The current call as code for `run`, as a curl command and as a Python program. */
import { getToken } from "../core/api.js";
import { fill, h } from "../core/h.js";
import { copyButton, tabs } from "../core/components.js";
import { CONSTANTS, KEYWORDS } from "../core/python-keywords.js";
import { t } from "../core/i18n.js";
import { truncate } from "../core/text.js";

const MAX_CHARS = 20_000;
const IDENTIFIER = /^[\p{ID_Start}_][\p{ID_Continue}]*$/u;

/** Return a JSON value as a Python literal. */
export function toPython(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(toPython).join(", ")}]`;
  if (typeof value === "object")
    return `{${Object.entries(value)
      .map(([key, item]) => `${quote(key)}: ${toPython(item)}`)
      .join(", ")}}`;
  return typeof value === "string" ? quote(value) : String(value);
}

/** Return a Python string literal. JSON strings are valid Python; invisible characters are escaped. */
const quote = (value) =>
  JSON.stringify(value).replace(
    /[\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );

const isIdentifier = (name) => IDENTIFIER.test(name) && !KEYWORDS.has(name) && !CONSTANTS.has(name);

function toRunCode(tool, args) {
  const name = tool.pythonName ?? tool.name;
  const isDirect = name.split(".").every(isIdentifier) && Object.keys(args).every(isIdentifier);
  const parameters = isDirect
    ? Object.entries(args).map(([key, value]) => `${key}=${toPython(value)}`)
    : [quote(tool.name), ...(Object.keys(args).length ? [`**${toPython(args)}`] : [])];
  return `${isDirect ? name : "ot.call"}(${parameters.join(", ")})`;
}

function toCurl(tool, args) {
  const url = `${location.origin}/api/tools/${encodeURIComponent(tool.name).replaceAll("'", "%27")}/call`;
  return [
    `curl -X POST '${url}'`,
    ...(getToken() ? ['-H "Authorization: Bearer $ONETOOL_TOKEN"'] : []),
    "-H 'Content-Type: application/json'",
    `-d '${JSON.stringify({ args }).replaceAll("'", "'\\''")}'`,
  ].join(" \\\n  ");
}

function toProgram(tool, args) {
  return [
    "import asyncio",
    "",
    "from onetool.app import OneTool",
    "",
    "async def main():",
    "    async with OneTool.from_files() as app:",
    `        result = await app.bus.call_tool(${quote(tool.name)}, ${toPython(args)}, app.context())`,
    "        print(result.unwrap())",
    "",
    "asyncio.run(main())",
  ].join("\n");
}

class Snippets extends HTMLElement {
  configure(tool, args) {
    const formats = [
      ["run", toRunCode],
      ["curl", toCurl],
      ["toolbus", toProgram],
    ];
    this.refresh = () => {
      for (const [index, code] of [...this.querySelectorAll("pre code")].entries()) {
        const snippet = formats.find(([id]) => id === code.dataset.format)[1](tool, args());
        if (index < formats.length) fill(code, truncate(snippet, MAX_CHARS));
      }
    };
    this.append(
      tabs(
        t("tester.code"),
        formats.map(([id, make]) => ({
          id,
          label: t(`snippet.${id}`),
          panel: () =>
            h(
              "div.snippet",
              {},
              copyButton(() => make(tool, args())),
              h("pre", { tabindex: "0" }, h("code", { data: { format: id } }, truncate(make(tool, args()), MAX_CHARS))),
            ),
        })),
      ),
    );
    return this;
  }
}

customElements.define("ot-snippets", Snippets);
export const snippets = (tool, args) => document.createElement("ot-snippets").configure(tool, args);
