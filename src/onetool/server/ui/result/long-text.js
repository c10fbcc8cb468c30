/** A long string, shown in parts. */
import { h } from "../core/h.js";
import { button } from "../core/components.js";
import { t } from "../core/i18n.js";
import { escapeInvisible } from "../core/text.js";

const PART_CHARS = 20_000; // few enough for a fast layout

export function longText(text) {
  const body = h("pre", { tabindex: "0", "aria-label": t("result.text") });
  const more = button("", () => showMore(), { class: "quiet" });
  let shownCount = 0;
  function showMore() {
    const end = avoidSplit(text, Math.min(text.length, shownCount + PART_CHARS));
    body.append(document.createTextNode(escapeInvisible(text.slice(shownCount, end))));
    shownCount = end;
    more.hidden = shownCount >= text.length;
    more.textContent = t("result.more", { n: text.length - shownCount });
  }
  showMore();
  return h("div.long-text", {}, body, more);
}

/** Return the end, moved if it would split a surrogate pair. */
function avoidSplit(text, end) {
  const code = text.charCodeAt(end - 1);
  return end < text.length && code >= 0xd800 && code <= 0xdbff ? end - 1 : end;
}
