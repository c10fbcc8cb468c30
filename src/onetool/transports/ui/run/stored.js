/** A result that was too large to be shown: a page of it at a time, and a search in all of it. */
import { get, path } from "../core/api.js";
import { fill, h } from "../core/h.js";
import { button } from "../core/parts.js";
import { say } from "../core/say.js";
import { number, visible } from "../core/text.js";

const LINES = 200;
const CHARACTERS = 20_000;

class Stored extends HTMLElement {
  #offset = 1;
  #limit = LINES;
  #unit = "auto";

  use({ handle, summary }) {
    this.handle = handle;
    this.words = h("input", {
      type: "search",
      "aria-label": say("stored.search"),
      placeholder: say("stored.search"),
      onchange: () => this.#go(1),
    });
    this.place = h("span.size", { role: "status" });
    this.earlier = button(say("stored.earlier"), () => this.#go(this.#offset - this.#limit), { class: "quiet" });
    this.later = button(say("stored.later"), () => this.#go(this.#offset + this.#limit), { class: "quiet" });
    this.body = h("pre", { tabindex: "0", "aria-label": say("result.text") });
    this.append(
      h("p.hint", {}, summary ?? ""),
      h("div.bar", {}, this.words, this.earlier, this.later, this.place),
      this.body,
    );
    this.#go(1);
    return this;
  }

  async #go(offset) {
    try {
      await this.#load(Math.max(1, offset));
    } catch (error) {
      fill(this.place, h("span.bad", {}, error.message));
    }
  }

  async #load(offset) {
    const search = this.words.value;
    const found = await get(`/api/results${path(this.handle)}`, {
      offset,
      limit: this.#limit,
      unit: this.#unit,
      search,
    });
    if (found.unit === "chars" && this.#unit === "auto" && !search) {
      this.#unit = "chars";
      this.#limit = CHARACTERS;
      return this.#load(1);
    }
    this.#offset = offset;
    const total = search ? found.matchedLines : found.unit === "chars" ? found.totalChars : found.totalLines;
    const word = search ? "stored.matches" : found.unit === "chars" ? "stored.characters" : "stored.lines";
    fill(
      this.place,
      say(word, { first: found.returned ? number(offset) : "0", last: number(offset + found.returned - 1), n: total }),
    );
    this.body.textContent = visible(found.lines.join("\n"));
    this.body.scrollTop = 0;
    this.earlier.disabled = offset <= 1;
    this.later.disabled = !found.hasMore;
  }
}

customElements.define("ot-stored", Stored);
export const stored = (given) => document.createElement("ot-stored").use(given);

/** Whether a text of an answer stands for such a result. */
export function storedIn(value) {
  return (
    value !== null &&
    typeof value === "object" &&
    typeof value.handle === "string" &&
    typeof value.query === "string" &&
    Array.isArray(value.preview)
  );
}
