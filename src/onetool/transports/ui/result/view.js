/** What a tool gave: a picture where it is one, a table where it is one, else a tree, and always the text. */
import { h } from "../core/h.js";
import { copyButton, quiet, save, tabs } from "../core/parts.js";
import { say } from "../core/say.js";
import { bytes } from "../core/text.js";
import { longText } from "./long-text.js";
import { picture, picturesOf } from "./picture.js";
import { isTable, table } from "./table.js";
import { tree } from "./tree.js";

export function resultView(value, note = "") {
  const isText = typeof value === "string";
  const text = once(() => (isText ? value : (JSON.stringify(value, null, 2) ?? "null")));
  const shown = views(value, text);
  return h(
    "div.result",
    {},
    h(
      "div.bar",
      {},
      h("span.size", {}, [note, extent(value)].filter(Boolean).join(" · ")),
      copyButton(text),
      quiet(say("download"), () => save(isText ? "result.txt" : "result.json", text())),
    ),
    shown.length === 1 ? shown[0].panel() : tabs(say("result"), shown),
  );
}

function views(value, text) {
  const found = [{ id: "text", label: say("result.text"), panel: () => longText(text()) }];
  if (value !== null && typeof value === "object")
    found.unshift({ id: "tree", label: say("result.tree"), panel: () => tree(value) });
  if (isTable(value)) found.unshift({ id: "table", label: say("result.table"), panel: () => table(value) });
  const images = picturesOf(value);
  if (images.length) found.unshift({ id: "picture", label: say("result.picture"), panel: () => images.map(picture) });
  return found;
}

function extent(value) {
  if (typeof value === "string") return bytes(value.length);
  if (Array.isArray(value)) return say("result.items", { n: value.length });
  return value !== null && typeof value === "object" ? say("result.keys", { n: Object.keys(value).length }) : "";
}

/** Large data takes a while to be written, and most people never look at it as text. */
function once(make) {
  let made;
  return () => (made ??= make());
}
