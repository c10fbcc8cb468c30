/** Tools: every tool of every kind, found, looked at, switched and tried. */
import { lazily } from "../core/lazy.js";
import { failure, whenBack } from "../core/loading.js";
import { Unreachable } from "../core/api.js";
import { fill, h } from "../core/h.js";
import { badge, notify, nothing, toggle } from "../core/parts.js";
import { go, link } from "../core/router.js";
import { say } from "../core/say.js";
import { clipped } from "../core/text.js";
import { list } from "../core/virtual-list.js";
import { changes, switchTool, toolPages } from "./catalogue.js";
import { filters } from "./filters.js";
import { packList } from "./pack-list.js";

const ROW = 58;
const LONGEST = 300; // characters of what a row can show

class ToolsScreen extends HTMLElement {
  #pages = toolPages({});
  #coming = null;
  #shown = "";
  #end = null;

  connectedCallback() {
    this.filters = filters(() => this.#search());
    this.packs = packList((name) => this.filters.choosePack(name));
    this.list = list({
      label: say("tools.list"),
      height: ROW,
      row: (index) => this.#row(index),
      renew: (row, index) => this.#renew(row, index),
      open: (index) => this.#open(index),
      need: (last) => this.#need(last),
      key: (key, index, row) => key === " " && (row?.querySelector(".switch")?.click(), true),
    });
    this.count = h("p.count", { role: "status" });
    this.none = h("div.none", { hidden: true });
    this.detail = h("section.detail", { "aria-label": say("tools.detail") });
    this.append(
      h("aside.packs", { "aria-label": say("packs") }, this.packs),
      h(
        "section.browse",
        { "aria-label": say("screen.tools") },
        h("h1.unseen", {}, say("screen.tools")),
        this.filters,
        this.count,
        this.none,
        this.list,
      ),
      this.detail,
    );
    this.#end = changes.listen(({ tool }) => (tool ? this.#update(tool) : this.#search({ keep: true })));
    this.#search();
  }

  disconnectedCallback() {
    this.#end();
    this.#coming?.cancel();
    this.#pages.cancel();
  }

  async show(name) {
    this.classList.toggle("has-detail", Boolean(name));
    this.filters.syncPacks(this.packs);
    if (!name) {
      this.#shown = "";
      fill(this.detail, nothing(say("tools.choose"), say("tools.choose.advice")));
      return;
    }
    if (name === this.#shown) return;
    this.#shown = name;
    this.#mark();
    const loaded = await lazily(this.detail, () => import("./detail.js"));
    if (loaded && name === this.#shown)
      fill(this.detail, loaded.toolDetail(name, document.activeElement === this.list));
  }

  async #search({ keep = false } = {}) {
    this.#coming?.cancel(); // the answer to an older question must not come last
    const pages = (this.#coming = toolPages(this.filters.value));
    this.packs.choose(this.filters.value.pack ?? "");
    const scrollTop = keep ? this.list.scrollTop : 0; // to ask makes the browser lay out the page
    this.setAttribute("aria-busy", "true");
    try {
      await pages.begin();
    } catch (error) {
      if (error.name !== "AbortError") this.#failed(error);
      return;
    } finally {
      if (pages === this.#coming) this.removeAttribute("aria-busy");
    }
    this.#pages.cancel();
    this.#pages = pages;
    this.none.hidden = pages.total > 0;
    this.list.hidden = !pages.total;
    if (!pages.total) fill(this.none, this.#nothingFound());
    fill(this.count, say("tools.count", { n: pages.total }));
    this.list.show(pages.total, { top: !keep });
    if (keep) this.list.scrollTop = scrollTop;
  }

  #failed(error) {
    fill(
      this.none,
      failure(error, () => this.#search()),
    ).hidden = false;
    this.list.hidden = true;
    if (error instanceof Unreachable) whenBack(this, () => this.#search());
  }

  #nothingFound() {
    if (!this.filters.isSet) return nothing(say("tools.none"), say("tools.none.advice"));
    return nothing(
      say("tools.unfound"),
      say("tools.unfound.advice"),
      h("button", { type: "button", onclick: () => this.filters.clear() }, say("tools.clear")),
    );
  }

  #need(last) {
    const pages = this.#pages;
    const arrived = (first, until) => {
      if (pages !== this.#pages) return;
      this.list.refresh(first, until);
      if (pages.total !== this.list.count) this.list.show(pages.total);
    };
    pages.need(
      last,
      arrived,
      (error) => (notify(error.message, "bad"), whenBack(this, () => this.#search({ keep: true }))),
    );
  }

  #row(index) {
    const tool = this.#pages.items[index];
    if (!tool)
      return h("div.tool-row.waiting", {}, h("span", { role: "gridcell" }, h("span.unseen", {}, say("loading"))));
    const [pack, short] = split(tool);
    const row = h(
      "div.tool-row",
      {},
      h(
        "span.main",
        { role: "gridcell" },
        h(
          "a.name",
          { href: link("tools", tool.name), tabindex: "-1" },
          pack ? h("span.pack", {}, `${pack}.`) : null,
          h("bdi", {}, clipped(short, LONGEST)),
        ),
        h("span.about", { dir: "auto" }),
      ),
      h(
        "span.end",
        { role: "gridcell" },
        badge(tool.kind),
        toggle(say("tools.switch", { name: tool.name }), tool.isEnabled, (on) => this.#switch(tool, on), {
          tabindex: "-1",
        }),
      ),
    );
    row.name = tool.name;
    this.#renew(row, index);
    return row;
  }

  #renew(row, index) {
    const tool = this.#pages.items[index];
    if (!tool || tool.name !== row.name) return false;
    row.classList.toggle("off", !tool.isEnabled);
    row.toggleAttribute("data-here", tool.name === this.#shown);
    row.querySelector(".switch").setAttribute("aria-checked", String(tool.isEnabled));
    fill(
      row.querySelector(".about"),
      clipped((!tool.isEnabled && tool.disabledReason) || tool.description || tool.signature, LONGEST),
    );
    return true;
  }

  /** A row of its own: who has scrolled far is not sent back. */
  #update(tool) {
    const index = this.#pages.items.findIndex(({ name }) => name === tool.name);
    if (index < 0) return;
    this.#pages.items[index] = tool;
    this.list.refresh(index, index);
  }

  async #switch(tool, on) {
    await switchTool(tool.name, on);
    notify(say(on ? "switched.on" : "switched.off", { name: tool.name }));
  }

  #open(index) {
    const tool = this.#pages.items[index];
    if (tool) go("tools", tool.name);
  }

  #mark() {
    this.list.refresh();
  }
}

function split({ name, pack }) {
  return pack ? [pack, name.slice(pack.length + 1)] : ["", name];
}

customElements.define("ot-tools", ToolsScreen);
