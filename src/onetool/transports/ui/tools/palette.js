/** The palette: find a tool by a few letters, Enter opens its form, `Run` runs it. */
import { get } from "../core/api.js";
import { fill, h, newId } from "../core/h.js";
import { badge, modal, quiet } from "../core/parts.js";
import { link } from "../core/router.js";
import { say } from "../core/say.js";
import { clipped } from "../core/text.js";
import { tool } from "./catalogue.js";

const MOST = 30;
const LONGEST = 300;
const PAUSE = 70;

class Palette extends HTMLElement {
  #found = [];
  #active = 0;
  #aborter = null;

  connectedCallback() {
    const id = newId("found");
    this.options = h("ul.found", { role: "listbox", id, "aria-label": say("palette.found") });
    this.words = h("input", {
      type: "text",
      role: "combobox",
      "aria-expanded": "true",
      "aria-controls": id,
      "aria-autocomplete": "list",
      autocomplete: "off",
      spellcheck: "false",
      "aria-label": say("palette.words"),
      placeholder: say("palette.words"),
      oninput: () => this.#soon(),
      onkeydown: (event) => this.#pressed(event),
    });
    this.note = h("p.hint", { role: "status" });
    fill(this, this.words, this.note, this.options);
    this.words.focus();
    this.#search();
  }

  #soon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#search(), PAUSE);
  }

  async #search() {
    this.#aborter?.abort();
    this.#aborter = new AbortController();
    try {
      const { tools, total } = await get(
        "/api/tools",
        { q: this.words.value.trim(), isEnabled: "true", pageSize: MOST },
        this.#aborter.signal,
      );
      this.#found = tools;
      this.#active = 0;
      fill(
        this.options,
        tools.map((one, place) => this.#option(one, place)),
      );
      fill(this.note, total ? say("palette.count", { n: total }) : say("tools.unfound"));
      this.#mark();
    } catch (error) {
      if (error.name !== "AbortError") fill(this.note, error.message);
    }
  }

  #option(one, place) {
    return h(
      "li",
      { role: "option", id: newId("option"), onclick: () => this.#open(place) },
      h("span.name", {}, h("bdi", {}, clipped(one.name, LONGEST))),
      h("span.about", { dir: "auto" }, clipped(one.description, LONGEST)),
      badge(one.kind),
    );
  }

  #mark() {
    [...this.options.children].forEach((option, place) =>
      option.setAttribute("aria-selected", String(place === this.#active)),
    );
    const active = this.options.children[this.#active];
    if (!active) return this.words.removeAttribute("aria-activedescendant");
    this.words.setAttribute("aria-activedescendant", active.id);
    active.scrollIntoView({ block: "nearest" });
  }

  #pressed(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && this.#found.length) this.#active = (this.#active + step + this.#found.length) % this.#found.length;
    else if (event.key === "Enter") this.#open(this.#active);
    else return;
    event.preventDefault();
    this.#mark();
  }

  async #open(place) {
    const chosen = this.#found[place];
    if (!chosen) return;
    try {
      const [found, { tester }] = await Promise.all([tool(chosen.name), import("./tester.js")]);
      this.#show(found, tester(found));
    } catch (error) {
      fill(this.note, error.message);
    }
  }

  #show(found, body) {
    fill(
      this,
      h(
        "div.chosen",
        {},
        quiet("←", () => this.connectedCallback(), { "aria-label": say("palette.back") }),
        h("h3", {}, h("bdi", {}, found.name)),
        badge(found.kind),
        h(
          "a",
          { href: link("tools", found.name), onclick: () => this.closest("dialog").close() },
          say("palette.details"),
        ),
      ),
      h("p.description", { dir: "auto" }, clipped(found.description.split("\n")[0], 2000)),
      body,
    );
    (body.querySelector("ot-form :is(input, textarea, select)") ?? body.querySelector(".run")).focus();
  }
}

customElements.define("ot-palette", Palette);

export function openPalette() {
  modal(say("palette.title"), document.createElement("ot-palette"), [], { class: "palette" });
}
