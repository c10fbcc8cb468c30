/** What narrows the list of tools: words, a kind, a pack, on or off. */
import { fill, h } from "../core/h.js";
import { say } from "../core/say.js";
import { ofThisTab } from "../core/store.js";

const KINDS = ["built-in", "extension", "proxy", "bundle"];
const PAUSE = 90; // between letters; long enough for a quick hand

class Filters extends HTMLElement {
  use(changed) {
    this.changed = changed;
    this.words = h("input", {
      type: "search",
      "aria-label": say("tools.search"),
      placeholder: say("tools.search"),
      autocomplete: "off",
      spellcheck: "false",
      oninput: () => this.#soon(),
    });
    this.kind = this.#select(
      "filter.kind",
      KINDS.map((kind) => [kind, say(`kind.${kind}`)]),
    );
    this.state = this.#select("filter.state", [
      ["true", say("filter.on")],
      ["false", say("filter.off")],
    ]);
    this.pack = this.#select("filter.pack", []);
    this.pack.classList.add("of-packs");
    this.#restore(ofThisTab.read("filters", {}));
    this.setAttribute("role", "search");
    this.append(this.words, h("div.selects", {}, this.kind, this.state, this.pack));
    return this;
  }

  get value() {
    return { q: this.words.value.trim(), kind: this.kind.value, isEnabled: this.state.value, pack: this.pack.value };
  }

  get isSet() {
    return Object.values(this.value).some(Boolean);
  }

  choosePack(name) {
    this.pack.value = name;
    this.#changed();
  }

  clear() {
    for (const one of [this.words, this.kind, this.state, this.pack]) one.value = "";
    this.#changed();
  }

  /** The packs that there are to choose from, as the list of them knows. */
  syncPacks(list) {
    list.listen((names) => {
      const chosen = this.pack.value;
      fill(
        this.pack,
        h("option", { value: "" }, say("filter.pack")),
        names.map((name) => h("option", { value: name }, name)),
      );
      this.pack.value = names.includes(chosen) ? chosen : "";
    });
  }

  /** Who comes back from another screen finds what they were looking at. */
  #restore({ q = "", kind = "", isEnabled = "", pack = "" }) {
    Object.assign(this.words, { value: q });
    this.kind.value = kind;
    this.state.value = isEnabled;
    if (pack) this.pack.append(h("option", { value: pack }, pack));
    this.pack.value = pack;
  }

  #changed() {
    ofThisTab.write("filters", this.value);
    this.changed();
  }

  #select(word, options) {
    return h(
      "select",
      { "aria-label": say(word), onchange: () => this.#changed() },
      h("option", { value: "" }, say(word)),
      options.map(([value, text]) => h("option", { value }, text)),
    );
  }

  #soon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#changed(), PAUSE);
  }
}

customElements.define("ot-filters", Filters);
export const filters = (changed) => document.createElement("ot-filters").use(changed);
