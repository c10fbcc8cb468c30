/** Screen "Tools": search, inspect, enable, disable and try tools of every kind. */
import { loadModule } from "../core/lazy.js";
import { errorState, whenOnline } from "../core/loading.js";
import { NetworkError } from "../core/api.js";
import { fill, h } from "../core/h.js";
import { badge, notify, emptyState, toggle } from "../core/components.js";
import { navigate, link } from "../core/router.js";
import { t } from "../core/i18n.js";
import { truncate } from "../core/text.js";
import { virtualList, waitingRow } from "../core/virtual-list.js";
import { changes, setToolEnabled, toolPages, watchChanges } from "./catalog.js";
import { filters } from "./filters.js";
import { packList } from "./pack-list.js";

const ROW_HEIGHT = 58;
const MAX_CHARS = 300; // more does not fit in a row

class ToolsScreen extends HTMLElement {
  #pages = toolPages({});
  #loadingPages = null;
  #selected = "";
  #stopListening = null;
  #watching = null;

  connectedCallback() {
    this.filters = filters(() => this.#search());
    this.packs = packList((name) => this.filters.selectPack(name));
    this.list = virtualList({
      label: t("tools.list"),
      height: ROW_HEIGHT,
      row: (index) => this.#row(index),
      update: (row, index) => this.#updateRow(row, index),
      open: (index) => this.#open(index),
      load: (first, last) => this.#loadRows(first, last),
      key: (key, index, row) => key === " " && (row?.querySelector(".switch")?.click(), true),
    });
    this.count = h("p.count", { role: "status" });
    this.none = h("div.none", { hidden: true });
    this.detail = h("section.detail", { "aria-label": t("tools.detail") });
    this.append(
      h("aside.packs", { "aria-label": t("packs") }, this.packs),
      h(
        "section.browse",
        { "aria-label": t("screen.tools") },
        h("h1.visually-hidden", {}, t("screen.tools")),
        this.filters,
        this.count,
        this.none,
        this.list,
      ),
      this.detail,
    );
    this.#stopListening = changes.listen(({ tool }) => (tool ? this.#update(tool) : this.#refresh()));
    this.#watching = new AbortController();
    watchChanges(this.#watching.signal);
    this.#search();
  }

  disconnectedCallback() {
    this.#stopListening();
    this.#watching.abort();
    this.#loadingPages?.cancel();
    this.#pages.cancel();
  }

  async show(name) {
    this.classList.toggle("has-detail", Boolean(name));
    this.filters.syncPacks(this.packs);
    if (!name) {
      this.#selected = "";
      fill(this.detail, emptyState(t("tools.choose"), t("tools.choose.advice")));
      return;
    }
    if (name === this.#selected) return;
    this.#selected = name;
    this.#markSelected();
    const loaded = await loadModule(this.detail, () => import("./detail.js"));
    if (loaded && name === this.#selected)
      fill(this.detail, loaded.toolDetail(name, document.activeElement === this.list));
  }

  async #search() {
    this.#loadingPages?.cancel(); // an older response must not replace a newer one
    const pages = (this.#loadingPages = toolPages(this.filters.value));
    this.packs.select(this.filters.value.pack ?? "");
    this.setAttribute("aria-busy", "true");
    try {
      await pages.loadFirst();
    } catch (error) {
      if (error.name !== "AbortError") this.#showError(error);
      return;
    } finally {
      if (pages === this.#loadingPages) this.removeAttribute("aria-busy");
    }
    this.#pages.cancel();
    this.#pages = pages;
    this.#showPages({ top: true });
  }

  /** Fetch the tools that are shown again, and the others when they are shown. */
  #refresh() {
    if (this.list.hidden) return this.#search();
    for (const pages of [this.#pages, this.#loadingPages]) pages.expire();
    this.list.refresh();
  }

  #showPages(options) {
    const { total } = this.#pages;
    this.none.hidden = total > 0;
    this.list.hidden = !total;
    if (!total) fill(this.none, this.#emptyState());
    fill(this.count, t("tools.count", { n: total }));
    this.list.show(total, options);
  }

  #showError(error) {
    fill(
      this.none,
      errorState(error, () => this.#search()),
    ).hidden = false;
    this.list.hidden = true;
    if (error instanceof NetworkError) whenOnline(this, () => this.#search());
  }

  #emptyState() {
    if (!this.filters.isSet) return emptyState(t("tools.none"), t("tools.none.advice"));
    return emptyState(
      t("tools.noMatch"),
      t("tools.noMatch.advice"),
      h("button", { type: "button", onclick: () => this.filters.clear() }, t("tools.clear")),
    );
  }

  #loadRows(first, last) {
    const pages = this.#pages;
    const onLoad = (start, old) => {
      if (pages !== this.#pages) return;
      const active = old[this.list.active - start]?.name;
      if (pages.total === this.list.count) this.list.refresh();
      else this.#showPages();
      if (active && pages.items[this.list.active]?.name !== active)
        this.list.activate(pages.items.findIndex(({ name }) => name === active), false);
    };
    const onError = (error) => (notify(error.message, "bad"), whenOnline(this, () => this.#refresh()));
    pages.load(first, last, onLoad, onError);
  }

  #row(index) {
    const tool = this.#pages.items[index];
    if (!tool) return waitingRow("tool-row");
    const [pack, short] = splitName(tool);
    const change = (on) => this.#switch(this.#pages.items[row.index], on);
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
          h("bdi", {}, truncate(short, MAX_CHARS)),
        ),
        h("span.about", { dir: "auto" }),
      ),
      h(
        "span.end",
        { role: "gridcell" },
        badge(tool.kind),
        toggle(t("tools.switch", { name: tool.name }), tool.isEnabled, change, { tabindex: "-1" }),
      ),
    );
    row.name = tool.name;
    this.#updateRow(row, index);
    return row;
  }

  #updateRow(row, index) {
    const tool = this.#pages.items[index];
    if (!tool || tool.name !== row.name) return false;
    row.classList.toggle("off", !tool.isEnabled);
    row.toggleAttribute("data-selected", tool.name === this.#selected);
    row.querySelector(".switch").setAttribute("aria-checked", String(tool.isEnabled));
    fill(
      row.querySelector(".about"),
      truncate((!tool.isEnabled && tool.disabledReason) || tool.description || tool.signature, MAX_CHARS),
    );
    return true;
  }

  /** Update one row, so that the scroll position is kept. */
  #update(tool) {
    const index = this.#pages.items.findIndex(({ name }) => name === tool.name);
    if (index < 0) return;
    this.#pages.items[index] = tool;
    this.list.refresh(index, index);
  }

  async #switch(tool, on) {
    await setToolEnabled(tool, on);
    notify(t(on ? "notice.enabled" : "notice.disabled", { name: tool.name }));
  }

  #open(index) {
    const tool = this.#pages.items[index];
    if (tool) navigate("tools", tool.name);
  }

  #markSelected() {
    this.list.refresh();
  }
}

function splitName({ name, pack }) {
  return pack ? [pack, name.slice(pack.length + 1)] : ["", name];
}

customElements.define("ot-tools", ToolsScreen);
