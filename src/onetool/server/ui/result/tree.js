/** Data as a collapsible tree. Closed branches are rendered when they are opened. */
import { h } from "../core/h.js";
import { button } from "../core/components.js";
import { t } from "../core/i18n.js";
import { truncate } from "../core/text.js";

const PART_ITEMS = 100;
const MAX_CHARS = 500;
const OPEN_LEVELS = 2;
const MAX_OPEN = 20; // children of branches that are open initially

export function tree(value) {
  return h("div.tree", { tabindex: "0", role: "group", "aria-label": t("result.tree") }, branch(null, value, 0));
}

function branch(key, value, level) {
  const label = key === null ? null : [h("span.key", {}, truncate(String(key), MAX_CHARS)), ": "];
  if (value === null || typeof value !== "object") return h("div.leaf", {}, label, leaf(value));
  const entries = Array.isArray(value) ? value : Object.entries(value);
  if (!entries.length) return h("div.leaf", {}, label, h("span.type", {}, Array.isArray(value) ? "[]" : "{}"));
  const isOpen = level < OPEN_LEVELS && (level === 0 || entries.length <= MAX_OPEN);
  const body = h("div.children");
  const element = h(
    "details",
    { open: isOpen, ontoggle: () => element.open && showMore() },
    h("summary", {}, label, h("span.type", {}, summary(value, entries.length))),
    body,
  );
  const more = button("", () => showMore(true), { class: "quiet" });
  let shownCount = 0;
  function showMore(isContinued = false) {
    if (shownCount && !isContinued) return;
    const part = entries.slice(shownCount, shownCount + PART_ITEMS);
    more.remove();
    body.append(
      ...part.map((item, index) =>
        Array.isArray(value) ? branch(shownCount + index, item, level + 1) : branch(item[0], item[1], level + 1),
      ),
    );
    shownCount += part.length;
    more.textContent = t("result.moreItems", { n: entries.length - shownCount });
    if (shownCount < entries.length) body.append(more);
  }
  if (isOpen) showMore();
  return element;
}

function leaf(value) {
  const kind = value === null ? "null" : typeof value;
  if (kind !== "string" || value.length <= MAX_CHARS) return h("span.value", { data: { kind } }, JSON.stringify(value));
  return h(
    "span.value",
    { data: { kind } },
    JSON.stringify(value.slice(0, MAX_CHARS)),
    " ",
    h("span.type", {}, t("result.more", { n: value.length - MAX_CHARS })),
  );
}

function summary(value, count) {
  return Array.isArray(value) ? t("result.items", { n: count }) : t("result.keys", { n: count });
}
