/** Data as a tree that opens where one looks; what is closed does not exist yet. */
import { h } from "../core/h.js";
import { button } from "../core/parts.js";
import { say } from "../core/say.js";
import { clipped } from "../core/text.js";

const PART = 100;
const LONGEST = 500;
const OPEN_LEVELS = 2;
const MAX_OPEN = 20; // children of what is open by itself

export function tree(value) {
  return h("div.tree", { tabindex: "0", role: "group", "aria-label": say("result.tree") }, branch(null, value, 0));
}

function branch(key, value, level) {
  const label = key === null ? null : [h("span.key", {}, clipped(String(key), LONGEST)), ": "];
  if (value === null || typeof value !== "object") return h("div.leaf", {}, label, leaf(value));
  const entries = Array.isArray(value) ? value : Object.entries(value);
  if (!entries.length) return h("div.leaf", {}, label, h("span.type", {}, Array.isArray(value) ? "[]" : "{}"));
  const isOpen = level < OPEN_LEVELS && (level === 0 || entries.length <= MAX_OPEN);
  const body = h("div.children");
  const element = h(
    "details",
    { open: isOpen, ontoggle: () => element.open && grow() },
    h("summary", {}, label, h("span.type", {}, summary(value, entries.length))),
    body,
  );
  const more = button("", () => grow(true), { class: "quiet" });
  let shown = 0;
  function grow(further = false) {
    if (shown && !further) return;
    const part = entries.slice(shown, shown + PART);
    more.remove();
    body.append(
      ...part.map((item, place) =>
        Array.isArray(value) ? branch(shown + place, item, level + 1) : branch(item[0], item[1], level + 1),
      ),
    );
    shown += part.length;
    more.textContent = say("result.moreItems", { n: entries.length - shown });
    if (shown < entries.length) body.append(more);
  }
  if (isOpen) grow();
  return element;
}

function leaf(value) {
  const kind = value === null ? "null" : typeof value;
  if (kind !== "string" || value.length <= LONGEST) return h("span.value", { data: { kind } }, JSON.stringify(value));
  return h(
    "span.value",
    { data: { kind } },
    JSON.stringify(value.slice(0, LONGEST)),
    " ",
    h("span.type", {}, say("result.more", { n: value.length - LONGEST })),
  );
}

function summary(value, count) {
  return Array.isArray(value) ? say("result.items", { n: count }) : say("result.keys", { n: count });
}
