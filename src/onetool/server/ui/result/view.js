/** The result of a tool as media, table or tree, if possible, and as text. */
import { h } from "../core/h.js";
import { copyButton, quietButton, downloadFile, tabs } from "../core/components.js";
import { t } from "../core/i18n.js";
import { formatBytes } from "../core/text.js";
import { longText } from "./long-text.js";
import { findMedia, mediaView } from "./media.js";
import { isTable, table } from "./table.js";
import { tree } from "./tree.js";

export function resultView(value, note = "") {
  const isText = typeof value === "string";
  const text = lazy(() => (isText ? value : (JSON.stringify(value, null, 2) ?? "null")));
  const tabList = views(value, text);
  return h(
    "div.result",
    {},
    h(
      "div.bar",
      {},
      h("span.size", {}, [note, describeSize(value)].filter(Boolean).join(" · ")),
      copyButton(text),
      quietButton(t("download"), () => downloadFile(isText ? "result.txt" : "result.json", text())),
    ),
    tabList.length === 1 ? tabList[0].panel() : tabs(t("result"), tabList),
  );
}

function views(value, text) {
  const found = [{ id: "text", label: t("result.text"), panel: () => longText(text()) }];
  if (value !== null && typeof value === "object")
    found.unshift({ id: "tree", label: t("result.tree"), panel: () => tree(value) });
  if (isTable(value)) found.unshift({ id: "table", label: t("result.table"), panel: () => table(value) });
  const images = findMedia(value);
  if (images.length) found.unshift({ id: "picture", label: t("result.picture"), panel: () => images.map(mediaView) });
  return found;
}

function describeSize(value) {
  if (typeof value === "string") return formatBytes(value.length);
  if (Array.isArray(value)) return t("result.items", { n: value.length });
  return value !== null && typeof value === "object" ? t("result.keys", { n: Object.keys(value).length }) : "";
}

/** Call `make` on first use: serializing large data is slow. */
function lazy(make) {
  let value;
  return () => (value ??= make());
}
