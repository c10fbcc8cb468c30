/** A table that scrolls by itself if it is too wide. */
import { h } from "./h.js";

/** `columns` are `[[text, isFigure], …]`, `rows` are elements. */
export function dataTable(label, columns, rows) {
  const head = columns.map(([text, isFigure]) => h("th", { scope: "col", class: isFigure ? "figure" : "" }, text));
  return h(
    "div.table",
    { tabindex: "0", role: "group", "aria-label": label },
    h("table.records", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)),
  );
}
