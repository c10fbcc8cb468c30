/** A list of objects as a table. */
import { h } from "../core/h.js";
import { button } from "../core/parts.js";
import { say } from "../core/say.js";
import { clipped } from "../core/text.js";

const PART = 100;
const MAX_COLUMNS = 30;
const LONGEST = 200;

const isRow = (item) => item !== null && typeof item === "object" && !Array.isArray(item);

/** Whether the rows have enough in common to stand below each other. */
export function isTable(value) {
  if (!Array.isArray(value) || !value.length || !value.every(isRow)) return false;
  const columns = columnsOf(value);
  return columns.length > 0 && columns.length <= MAX_COLUMNS;
}

function columnsOf(rows) {
  const names = new Set();
  for (const row of rows.slice(0, 1000)) {
    for (const name of Object.keys(row)) names.add(name);
    if (names.size > MAX_COLUMNS) break;
  }
  return [...names];
}

export function table(rows) {
  const columns = columnsOf(rows);
  const body = h("tbody");
  const more = button("", () => grow(), { class: "quiet" });
  let shown = 0;
  function grow() {
    const part = rows.slice(shown, shown + PART);
    body.append(
      ...part.map((row) =>
        h(
          "tr",
          {},
          columns.map((name) => cell(row[name])),
        ),
      ),
    );
    shown += part.length;
    more.hidden = shown >= rows.length;
    more.textContent = say("result.moreItems", { n: rows.length - shown });
  }
  grow();
  const head = h(
    "thead",
    {},
    h(
      "tr",
      {},
      columns.map((name) =>
        h("th", { scope: "col", class: typeof rows[0][name] === "number" ? "figure" : "" }, clipped(name, LONGEST)),
      ),
    ),
  );
  return h(
    "div.table",
    { tabindex: "0", role: "group", "aria-label": say("result.table") },
    h("table", {}, head, body),
    more,
  );
}

function cell(value) {
  const isNumber = typeof value === "number";
  const text = value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value);
  return h(
    "td",
    { class: isNumber ? "figure" : "", title: text.length > LONGEST ? clipped(text, 1000) : null },
    clipped(text, LONGEST),
  );
}
