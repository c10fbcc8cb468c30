/** Names with values, line by line: headers, query parameters. */
import { h } from "../core/h.js";
import { quiet } from "../core/parts.js";
import { say } from "../core/say.js";
import { isSecret } from "./secrets.js";

class Pairs extends HTMLElement {
  use(label, given = {}) {
    this.rows = h("div.pairs");
    this.append(
      h(
        "fieldset",
        {},
        h("legend", {}, label),
        this.rows,
        quiet(say("pairs.add"), () => this.#add().querySelector("input").focus(), { class: "quiet add" }),
      ),
    );
    for (const [name, value] of Object.entries(given)) this.#add(name, value);
    return this;
  }

  get value() {
    const pairs = [...this.rows.children].map((row) => row.read());
    return Object.fromEntries(pairs.filter(([name]) => name));
  }

  #add(name = "", value = "") {
    const kept = isSecret(name, String(value)) ? String(value) : "";
    const key = input(say("pairs.name"), name);
    const text = input(say("pairs.value"), kept ? "" : String(value));
    if (kept) text.placeholder = say("secret.kept");
    const row = h(
      "div.pair",
      {},
      key,
      text,
      quiet("×", () => row.remove(), { "aria-label": say("pairs.remove") }),
    );
    row.read = () => [key.value, text.value || kept];
    this.rows.append(row);
    return row;
  }
}

const input = (label, value) =>
  h("input", { "aria-label": label, placeholder: label, value, spellcheck: "false", autocomplete: "off" });

customElements.define("ot-pairs", Pairs);
export const pairs = (label, given) => document.createElement("ot-pairs").use(label, given);
