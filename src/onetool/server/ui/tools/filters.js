/** Filters of the tool list: search text, kind, pack and state. */
import { fill, h } from "../core/h.js";
import { t } from "../core/i18n.js";
import { tabStorage } from "../core/state.js";

const KINDS = ["built-in", "extension", "proxy", "bundle"];
const INPUT_DELAY_MS = 90;

class Filters extends HTMLElement {
  configure(onChange) {
    this.onChange = onChange;
    this.search = h("input", {
      type: "search",
      "aria-label": t("tools.search"),
      placeholder: t("tools.search"),
      autocomplete: "off",
      spellcheck: "false",
      oninput: () => this.#scheduleChange(),
    });
    this.kind = this.#select(
      "filter.kind",
      KINDS.map((kind) => [kind, t(`kind.${kind}`)]),
    );
    this.state = this.#select("filter.state", [
      ["true", t("state.enabled")],
      ["false", t("state.disabled")],
    ]);
    this.pack = this.#select("filter.pack", []);
    this.pack.classList.add("of-packs");
    this.#restore(tabStorage.read("filters", {}));
    this.setAttribute("role", "search");
    this.append(this.search, h("div.selects", {}, this.kind, this.state, this.pack));
    return this;
  }

  get value() {
    return { q: this.search.value.trim(), kind: this.kind.value, isEnabled: this.state.value, pack: this.pack.value };
  }

  get isSet() {
    return Object.values(this.value).some(Boolean);
  }

  selectPack(name) {
    this.pack.value = name;
    this.#applyChange();
  }

  clear() {
    for (const control of [this.search, this.kind, this.state, this.pack]) control.value = "";
    this.#applyChange();
  }

  /** Fill the selection of packs from the list of packs. */
  syncPacks(list) {
    list.listen((names) => {
      const known = [...this.pack.options].slice(1).map(({ value }) => value);
      if (JSON.stringify(names) === JSON.stringify(known)) return; // an open list stays open
      const selected = this.pack.value;
      fill(
        this.pack,
        h("option", { value: "" }, t("filter.pack")),
        names.map((name) => h("option", { value: name }, name)),
      );
      this.pack.value = names.includes(selected) ? selected : "";
    });
  }

  /** Restore the filters after the user visited another screen. */
  #restore({ q = "", kind = "", isEnabled = "", pack = "" }) {
    Object.assign(this.search, { value: q });
    this.kind.value = kind;
    this.state.value = isEnabled;
    if (pack) this.pack.append(h("option", { value: pack }, pack));
    this.pack.value = pack;
  }

  #applyChange() {
    tabStorage.write("filters", this.value);
    this.onChange();
  }

  #select(key, options) {
    return h(
      "select",
      { "aria-label": t(key), onchange: () => this.#applyChange() },
      h("option", { value: "" }, t(key)),
      options.map(([value, text]) => h("option", { value }, text)),
    );
  }

  #scheduleChange() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#applyChange(), INPUT_DELAY_MS);
  }
}

customElements.define("ot-filters", Filters);
export const filters = (onChange) => document.createElement("ot-filters").configure(onChange);
