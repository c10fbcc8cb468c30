/** A stored result, which is too large to show at once: pages, and search in the full result. */
import { get, encodePath } from "../core/api.js";
import { fill, h } from "../core/h.js";
import { button } from "../core/components.js";
import { t } from "../core/i18n.js";
import { formatNumber, escapeInvisible } from "../core/text.js";

const PAGE_LINES = 200;
const PAGE_CHARS = 20_000;

class StoredResult extends HTMLElement {
  #offset = 1;
  #limit = PAGE_LINES;
  #unit = "auto";

  configure({ handle, summary }) {
    this.handle = handle;
    this.search = h("input", {
      type: "search",
      "aria-label": t("stored.search"),
      placeholder: t("stored.search"),
      onchange: () => this.#show(1),
    });
    this.position = h("span.size", { role: "status" });
    this.previous = button(t("stored.previous"), () => this.#show(this.#offset - this.#limit), { class: "quiet" });
    this.next = button(t("stored.next"), () => this.#show(this.#offset + this.#limit), { class: "quiet" });
    this.body = h("pre", { tabindex: "0", "aria-label": t("result.text") });
    this.append(
      h("p.hint", {}, summary ?? ""),
      h("div.bar", {}, this.search, this.previous, this.next, this.position),
      this.body,
    );
    this.#show(1);
    return this;
  }

  async #show(offset) {
    try {
      await this.#load(Math.max(1, offset));
    } catch (error) {
      fill(this.position, h("span.bad", {}, error.message));
    }
  }

  async #load(offset) {
    const search = this.search.value;
    const found = await get(`/api/results${encodePath(this.handle)}`, {
      offset,
      limit: this.#limit,
      unit: this.#unit,
      search,
    });
    if (found.unit === "chars" && this.#unit === "auto" && !search) {
      this.#unit = "chars";
      this.#limit = PAGE_CHARS;
      return this.#load(1);
    }
    this.#offset = offset;
    const total = search ? found.matchedLines : found.unit === "chars" ? found.totalChars : found.totalLines;
    const key = search ? "stored.matches" : found.unit === "chars" ? "stored.characters" : "stored.lines";
    fill(
      this.position,
      t(key, {
        first: found.returned ? formatNumber(offset) : "0",
        last: formatNumber(offset + found.returned - 1),
        n: total,
      }),
    );
    this.body.textContent = escapeInvisible(found.lines.join("\n"));
    this.body.scrollTop = 0;
    this.previous.disabled = offset <= 1;
    this.next.disabled = !found.hasMore;
  }
}

customElements.define("ot-stored", StoredResult);
export const storedResult = (options) => document.createElement("ot-stored").configure(options);

/** Whether the value is the summary of a stored result. */
export function isStoredResult(value) {
  return (
    value !== null &&
    typeof value === "object" &&
    typeof value.handle === "string" &&
    typeof value.query === "string" &&
    Array.isArray(value.preview)
  );
}
