/** All packs, each with its switch and how it is doing; choosing one narrows the list of tools. */
import { withHint } from "../core/api.js";
import { fill, h } from "../core/h.js";
import { load } from "../core/loading.js";
import { notify, toggle } from "../core/parts.js";
import { say } from "../core/say.js";
import { number } from "../core/text.js";
import { list } from "../core/virtual-list.js";
import { changes, packs, switchPack } from "./catalogue.js";

const ROW = 34;

class PackList extends HTMLElement {
  #packs = [];
  #chosen = "";

  use(chosen) {
    this.chosen = chosen;
    this.list = list({
      label: say("packs"),
      height: ROW,
      row: (index) => this.#row(index),
      renew: (row, index) => this.#renew(row, index),
      open: (index) => this.#choose(index),
      key: (key, index, row) => key === " " && (row?.querySelector(".switch")?.click(), true),
    });
    this.body = h("div.fill");
    this.append(h("h2", {}, say("packs")), this.body);
    return this;
  }

  connectedCallback() {
    this.end = changes.listen(() => this.#load());
    this.#load();
  }

  disconnectedCallback() {
    this.end();
  }

  /** Told of the names of packs, now and whenever they change. */
  listen(listener) {
    if (this.listener) return;
    this.listener = listener;
    if (this.#packs.length) listener(this.#packs.map(({ name }) => name));
  }

  choose(name) {
    if (name === this.#chosen) return;
    this.#chosen = name;
    this.list.refresh();
  }

  #load() {
    return load(this.body, async () => {
      this.#packs = await packs();
      this.listener?.(this.#packs.map(({ name }) => name));
      return this.list;
    }).then(() => this.list.isConnected && this.list.show(this.#packs.length + 1));
  }

  #row(index) {
    const pack = this.#packs[index - 1];
    const row = pack
      ? this.#packRow(pack)
      : h("div.pack-row", {}, h("span.main", { role: "gridcell" }, say("packs.all")));
    row.name = pack?.name ?? "";
    this.#renew(row, index);
    return row;
  }

  #packRow(pack) {
    return h(
      "div.pack-row",
      { title: pack.description },
      h("span.main", { role: "gridcell" }, h("bdi", {}, pack.name), h("span.number"), h("span.trouble")),
      h(
        "span.end",
        { role: "gridcell" },
        toggle(say("packs.switch", { name: pack.name }), pack.isEnabled, (on) => this.#switch(pack, on), {
          tabindex: "-1",
        }),
      ),
    );
  }

  #renew(row, index) {
    const pack = this.#packs[index - 1];
    if (row.name !== (pack?.name ?? "")) return false;
    row.toggleAttribute("data-here", row.name === this.#chosen);
    if (!pack) return true;
    row.classList.toggle("off", !pack.isEnabled);
    row.querySelector(".switch").setAttribute("aria-checked", String(pack.isEnabled));
    fill(row.querySelector(".number"), number(pack.toolCount));
    fill(row.querySelector(".trouble"), state(pack));
    return true;
  }

  #choose(index) {
    this.chosen(this.#packs[index - 1]?.name ?? "");
  }

  async #switch(pack, on) {
    await switchPack(pack.name, on);
    notify(say(on ? "switched.on" : "switched.off", { name: pack.name }));
  }
}

/** Only what is worth a look: a server that is away, a file that is broken. */
function state({ problem }) {
  if (!problem) return null;
  const told = withHint(problem.message, problem.hint);
  return h("span.state", { title: told, data: { mood: "bad" } }, "!", h("span.unseen", {}, told));
}

customElements.define("ot-packs", PackList);
export const packList = (chosen) => document.createElement("ot-packs").use(chosen);
