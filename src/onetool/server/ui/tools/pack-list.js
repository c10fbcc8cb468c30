/** The list of packs. Selecting one filters the list of tools. */
import { joinHint } from "../core/api.js";
import { fill, h } from "../core/h.js";
import { load } from "../core/loading.js";
import { notify, toggle } from "../core/components.js";
import { t } from "../core/i18n.js";
import { formatNumber } from "../core/text.js";
import { virtualList } from "../core/virtual-list.js";
import { changes, listPacks, setPackEnabled } from "./catalog.js";

const ROW_HEIGHT = 34;

class PackList extends HTMLElement {
  #packs = [];
  #selected = "";

  configure(onSelect) {
    this.onSelect = onSelect;
    this.list = virtualList({
      label: t("packs"),
      height: ROW_HEIGHT,
      row: (index) => this.#row(index),
      update: (row, index) => this.#update(row, index),
      open: (index) => this.#open(index),
      key: (key, index, row) => key === " " && (row?.querySelector(".switch")?.click(), true),
    });
    this.body = h("div.fill");
    this.append(h("h2", {}, t("packs")), this.body);
    return this;
  }

  connectedCallback() {
    this.stopListening = changes.listen(() => this.#load());
    this.#load();
  }

  disconnectedCallback() {
    this.stopListening();
  }

  /** Call the listener with the names of the packs, now and after each change. */
  listen(listener) {
    if (this.listener) return;
    this.listener = listener;
    if (this.#packs.length) listener(this.#packs.map(({ name }) => name));
  }

  select(name) {
    if (name === this.#selected) return;
    this.#selected = name;
    this.list.refresh();
  }

  async #load() {
    const render = async () => {
      const packs = await listPacks();
      return () => {
        this.#packs = packs;
        this.listener?.(packs.map(({ name }) => name));
        return this.list;
      };
    };
    await load(this.body, render, { isUpdate: true });
    if (this.list.isConnected) this.list.show(this.#packs.length + 1);
  }

  #row(index) {
    const pack = this.#packs[index - 1];
    const row = pack
      ? this.#packRow(pack)
      : h("div.pack-row", {}, h("span.main", { role: "gridcell" }, t("packs.all")));
    row.name = pack?.name ?? "";
    this.#update(row, index);
    return row;
  }

  #packRow(pack) {
    const change = (on) => this.#switch(this.#packs[row.index - 1], on);
    const row = h(
      "div.pack-row",
      { title: pack.description },
      h("span.main", { role: "gridcell" }, h("bdi", {}, pack.name), h("span.number"), h("span.problem-marker")),
      h(
        "span.end",
        { role: "gridcell" },
        toggle(t("packs.switch", { name: pack.name }), pack.isEnabled, change, { tabindex: "-1" }),
      ),
    );
    return row;
  }

  #update(row, index) {
    const pack = this.#packs[index - 1];
    if (row.name !== (pack?.name ?? "")) return false;
    row.toggleAttribute("data-selected", row.name === this.#selected);
    if (!pack) return true;
    row.classList.toggle("off", !pack.isEnabled);
    row.querySelector(".switch").setAttribute("aria-checked", String(pack.isEnabled));
    fill(row.querySelector(".number"), formatNumber(pack.toolCount));
    fill(row.querySelector(".problem-marker"), problemMarker(pack));
    return true;
  }

  #open(index) {
    this.onSelect(this.#packs[index - 1]?.name ?? "");
  }

  async #switch(pack, on) {
    await setPackEnabled(pack, on);
    notify(t(on ? "notice.enabled" : "notice.disabled", { name: pack.name }));
  }
}

/** A marker for packs with problems. */
function problemMarker({ problem }) {
  if (!problem) return null;
  const description = joinHint(problem.message, problem.hint);
  return h(
    "span.state",
    { title: description, data: { tone: "bad" } },
    "!",
    h("span.visually-hidden", {}, description),
  );
}

customElements.define("ot-packs", PackList);
export const packList = (onSelect) => document.createElement("ot-packs").configure(onSelect);
