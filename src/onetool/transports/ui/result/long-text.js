/** A text of any length, of which a part is shown at a time. */
import { h } from "../core/h.js";
import { button } from "../core/parts.js";
import { say } from "../core/say.js";
import { visible } from "../core/text.js";

const PART = 20_000; // characters: quickly laid out, and more than anybody reads

export function longText(text) {
  const body = h("pre", { tabindex: "0", "aria-label": say("result.text") });
  const more = button("", () => grow(), { class: "quiet" });
  let shown = 0;
  function grow() {
    const end = whole(text, Math.min(text.length, shown + PART));
    body.append(document.createTextNode(visible(text.slice(shown, end))));
    shown = end;
    more.hidden = shown >= text.length;
    more.textContent = say("result.more", { n: text.length - shown });
  }
  grow();
  return h("div.long-text", {}, body, more);
}

/** Not through the middle of a character. */
function whole(text, end) {
  const code = text.charCodeAt(end - 1);
  return end < text.length && code >= 0xd800 && code <= 0xdbff ? end - 1 : end;
}
