/** The command palette: search for a tool, open its form and run it. */
import { get } from "../core/api.js";
import { fill, h, newId } from "../core/h.js";
import { badge, openModal, quietButton } from "../core/components.js";
import { link } from "../core/router.js";
import { t } from "../core/i18n.js";
import { truncate } from "../core/text.js";
import { getTool } from "./catalog.js";

const MAX_TOOLS = 30;
const MAX_CHARS = 300;
const INPUT_DELAY_MS = 70;

class Palette extends HTMLElement {
  #found = [];
  #active = 0;
  #aborter = null;

  connectedCallback() {
    const id = newId("found");
    this.options = h("ul.found", { role: "listbox", id, "aria-label": t("palette.found") });
    this.search = h("input", {
      type: "text",
      role: "combobox",
      "aria-expanded": "true",
      "aria-controls": id,
      "aria-autocomplete": "list",
      autocomplete: "off",
      spellcheck: "false",
      "aria-label": t("palette.search"),
      placeholder: t("palette.search"),
      oninput: () => this.#scheduleSearch(),
      onkeydown: (event) => this.#onKeydown(event),
    });
    this.note = h("p.hint", { role: "status" });
    fill(this, this.search, this.note, this.options);
    this.search.focus();
    this.#search();
  }

  #scheduleSearch() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#search(), INPUT_DELAY_MS);
  }

  async #search() {
    this.#aborter?.abort();
    this.#aborter = new AbortController();
    try {
      const { tools, total } = await get(
        "/api/tools",
        { q: this.search.value.trim(), isEnabled: "true", pageSize: MAX_TOOLS },
        this.#aborter.signal,
      );
      this.#found = tools;
      this.#active = 0;
      fill(
        this.options,
        tools.map((tool, index) => this.#option(tool, index)),
      );
      fill(this.note, total ? t("palette.count", { n: total }) : t("tools.noMatch"));
      this.#markActive();
    } catch (error) {
      if (error.name !== "AbortError") fill(this.note, error.message);
    }
  }

  #option(tool, index) {
    return h(
      "li",
      { role: "option", id: newId("option"), onclick: () => this.#open(index) },
      h("span.name", {}, h("bdi", {}, truncate(tool.name, MAX_CHARS))),
      h("span.about", { dir: "auto" }, truncate(tool.description, MAX_CHARS)),
      badge(tool.kind),
    );
  }

  #markActive() {
    [...this.options.children].forEach((option, index) =>
      option.setAttribute("aria-selected", String(index === this.#active)),
    );
    const active = this.options.children[this.#active];
    if (!active) return this.search.removeAttribute("aria-activedescendant");
    this.search.setAttribute("aria-activedescendant", active.id);
    active.scrollIntoView({ block: "nearest" });
  }

  #onKeydown(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && this.#found.length) this.#active = (this.#active + step + this.#found.length) % this.#found.length;
    else if (event.key === "Enter") this.#open(this.#active);
    else return;
    event.preventDefault();
    this.#markActive();
  }

  async #open(index) {
    const selected = this.#found[index];
    if (!selected) return;
    try {
      const [found, { tester }] = await Promise.all([getTool(selected.name), import("./tester.js")]);
      this.#show(found, tester(found));
    } catch (error) {
      fill(this.note, error.message);
    }
  }

  #show(found, body) {
    fill(
      this,
      h(
        "div.selected-tool",
        {},
        quietButton("←", () => this.connectedCallback(), { "aria-label": t("palette.back") }),
        h("h3", {}, h("bdi", {}, found.name)),
        badge(found.kind),
        h(
          "a",
          { href: link("tools", found.name), onclick: () => this.closest("dialog").close() },
          t("palette.details"),
        ),
      ),
      h("p.description", { dir: "auto" }, truncate(found.description.split("\n")[0], 2000)),
      body,
    );
    (body.querySelector("ot-form :is(input, textarea, select)") ?? body.querySelector(".run")).focus();
  }
}

customElements.define("ot-palette", Palette);

export function openPalette() {
  openModal(t("palette.title"), document.createElement("ot-palette"), [], { class: "palette" });
}
