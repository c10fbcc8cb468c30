/** Editor for names and values, such as headers and query parameters. */
import { h } from "../core/h.js";
import { quietButton } from "../core/components.js";
import { t } from "../core/i18n.js";
import { isSecret } from "./secrets.js";

class Pairs extends HTMLElement {
  configure(label, entries = {}) {
    this.rows = h("div.pairs");
    this.append(
      h(
        "fieldset",
        {},
        h("legend", {}, label),
        this.rows,
        quietButton(t("pairs.add"), () => this.#add().querySelector("input").focus(), { class: "quiet add" }),
      ),
    );
    for (const [name, value] of Object.entries(entries)) this.#add(name, value);
    return this;
  }

  get value() {
    const pairs = [...this.rows.children].map((row) => row.read());
    return Object.fromEntries(pairs.filter(([name]) => name));
  }

  #add(name = "", value = "") {
    const hidden = isSecret(name, String(value)) ? String(value) : "";
    const key = input(t("pairs.name"), name);
    const text = input(t("pairs.value"), hidden ? "" : String(value));
    if (hidden) text.placeholder = t("secret.hidden");
    const row = h(
      "div.pair",
      {},
      key,
      text,
      quietButton("×", () => row.remove(), { "aria-label": t("pairs.remove") }),
    );
    row.read = () => [key.value, text.value || hidden];
    this.rows.append(row);
    return row;
  }
}

const input = (label, value) =>
  h("input", { "aria-label": label, placeholder: label, value, spellcheck: "false", autocomplete: "off" });

customElements.define("ot-pairs", Pairs);
export const pairs = (label, entries) => document.createElement("ot-pairs").configure(label, entries);
