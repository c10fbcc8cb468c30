/** Help for the call around the caret: its arguments, the current one highlighted, and what that one means. */
import { fill, h } from "../core/h.js";
import { truncate } from "../core/text.js";
import { describeType, findArgument, listArguments, simplify, toPython } from "./argument-schema.js";
import { findCall, readContext } from "./code-context.js";
import { findTool } from "./tool-lookup.js";

const MAX_SHOWN = 8; // arguments; more are left out around the current one
const MAX_CHARS = 300;

/** Show the help for the code before the caret in the element, unless `isStale()` when it arrives. */
export async function showSignature(element, before, isStale) {
  const call = findCall(readContext(before));
  const tool = call && (await findTool(call.name));
  if (isStale()) return;
  const key = tool ? `${call.name} ${findArgument(tool, call.argument)?.name}` : "";
  if (element.dataset.key === key) return; // a screen reader would read it again
  element.dataset.key = key;
  fill(element, tool ? renderCall(tool, call) : []);
}

function renderCall(tool, { name, argument }) {
  const all = listArguments(tool);
  const current = findArgument(tool, argument);
  const index = Math.max(0, all.indexOf(all.find((one) => one.name === current?.name)));
  const first = Math.max(0, Math.min(index - MAX_SHOWN / 2, all.length - MAX_SHOWN));
  const shown = all.slice(first, first + MAX_SHOWN);
  const text = (one) => truncate(describe(one, tool), MAX_CHARS);
  const parts = shown.flatMap((one, at) => [
    at ? ", " : "",
    one.name === current?.name ? h("strong", {}, text(one)) : text(one),
  ]);
  const [before, after] = [first ? "…, " : "", first + MAX_SHOWN < all.length ? ", …" : ""];
  const about = (current && simplify(current.schema, tool.inputSchema).description) ?? tool.description.split("\n")[0];
  return [
    h("code", {}, truncate(name, MAX_CHARS), "(", before, parts, after, ")"),
    h("span.about", { dir: "auto" }, truncate(String(about), MAX_CHARS)),
  ];
}

function describe({ name, schema, isRequired }, tool) {
  const simple = simplify(schema, tool.inputSchema);
  const start = "default" in simple ? ` = ${toPython(simple.default)}` : isRequired ? "" : " = …";
  return `${name}: ${describeType(schema, tool.inputSchema)}${start}`;
}
