/** A list of objects as a table. */
import { h } from "../core/h.js";
import { button } from "../core/components.js";
import { t } from "../core/i18n.js";
import { truncate } from "../core/text.js";

const PART_ROWS = 100;
const MAX_COLUMNS = 30;
const MAX_CHARS = 200;

const isRow = (item) => item !== null && typeof item === "object" && !Array.isArray(item);

/** Whether the value is a list of objects with few enough columns for a table. */
export function isTable(value) {
  if (!Array.isArray(value) || !value.length || !value.every(isRow)) return false;
  const columns = getColumns(value);
  return columns.length > 0 && columns.length <= MAX_COLUMNS;
}

function getColumns(rows) {
  const names = new Set();
  for (const row of rows.slice(0, 1000)) {
    for (const name of Object.keys(row)) names.add(name);
    if (names.size > MAX_COLUMNS) break;
  }
  return [...names];
}

export function table(rows) {
  const columns = getColumns(rows);
  const body = h("tbody");
  const more = button("", () => showMore(), { class: "quiet" });
  let shownCount = 0;
  function showMore() {
    const part = rows.slice(shownCount, shownCount + PART_ROWS);
    body.append(
      ...part.map((row) =>
        h(
          "tr",
          {},
          columns.map((name) => cell(row[name])),
        ),
      ),
    );
    shownCount += part.length;
    more.hidden = shownCount >= rows.length;
    more.textContent = t("result.moreItems", { n: rows.length - shownCount });
  }
  showMore();
  const head = h(
    "thead",
    {},
    h(
      "tr",
      {},
      columns.map((name) =>
        h("th", { scope: "col", class: typeof rows[0][name] === "number" ? "figure" : "" }, truncate(name, MAX_CHARS)),
      ),
    ),
  );
  return h(
    "div.table",
    { tabindex: "0", role: "group", "aria-label": t("result.table") },
    h("table", {}, head, body),
    more,
  );
}

function cell(value) {
  const isNumber = typeof value === "number";
  const text = value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value);
  return h(
    "td",
    { class: isNumber ? "figure" : "", title: text.length > MAX_CHARS ? truncate(text, 1000) : null },
    truncate(text, MAX_CHARS),
  );
}
