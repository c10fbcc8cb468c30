/** Filters and order of the list of runs. */
import { get } from "../core/api.js";
import { fill, h, newId } from "../core/h.js";
import { t } from "../core/i18n.js";
import { tabStorage } from "../core/state.js";

const STATES = ["running", "waiting", "done", "failed"];
const ORDERS = ["newest", "slowest", "oldest"];
const DURATIONS = [100, 1000, 10_000, 60_000]; // minimum, in milliseconds
const INPUT_DELAY_MS = 150;
const NAMES = ["text", "agent", "actor", "tool", "state", "minMs", "order"];

class RunFilters extends HTMLElement {
  configure(onChange) {
    this.onChange = onChange;
    this.controls = {
      text: this.#input("text", "search"),
      agent: this.#input("agent", "text", true),
      actor: this.#input("actor", "text", true),
      tool: this.#input("tool", "text"),
      state: this.#select("state", [["", t("runs.state.all")], ...STATES.map((one) => [one, t(`state.${one}`)])]),
      minMs: this.#select("minMs", [["", t("runs.minMs.all")], ...DURATIONS.map((ms) => [String(ms), t(`runs.minMs.${ms}`)])]),
      order: this.#select(
        "order",
        ORDERS.map((one) => [one, t(`runs.order.${one}`)]),
      ),
    };
    const stored = tabStorage.read("runFilters", {});
    for (const name of NAMES) this.controls[name].value = stored[name] ?? (name === "order" ? "newest" : "");
    const { text, agent, actor, tool, state, minMs, order } = this.controls;
    this.setAttribute("role", "search");
    this.append(text, h("div.selects", {}, state, minMs, order), h("div.selects", {}, agent, actor, tool));
    this.#suggest();
    return this;
  }

  get value() {
    return Object.fromEntries(NAMES.map((name) => [name, this.controls[name].value.trim()]));
  }

  /** Whether all runs are listed, the newest first. */
  get isPlain() {
    return Object.entries(this.value).every(([name, value]) => !value || (name === "order" && value === "newest"));
  }

  set(values) {
    for (const name of NAMES) this.controls[name].value = values[name] ?? (name === "order" ? "newest" : "");
    this.#apply();
  }

  #input(name, type, hasList = false) {
    const label = t(`runs.${name}`);
    const input = h("input", {
      type,
      "aria-label": label,
      placeholder: label,
      autocomplete: "off",
      spellcheck: "false",
      oninput: () => this.#schedule(),
    });
    if (hasList) {
      input.suggestions = h("datalist", { id: newId("names") });
      input.setAttribute("list", input.suggestions.id);
      this.append(input.suggestions);
    }
    return input;
  }

  #select(name, options) {
    return h(
      "select",
      { "aria-label": t(`runs.${name}`), onchange: () => this.#apply() },
      options.map(([value, text]) => h("option", { value }, text)),
    );
  }

  /** Suggest the agents and tokens that have made runs. */
  async #suggest() {
    const { spending } = await get("/api/spending").catch(() => ({ spending: [] }));
    for (const name of ["agent", "actor"]) {
      const values = [...new Set(spending.map((row) => row[name]).filter(Boolean))];
      fill(
        this.controls[name].suggestions,
        values.map((value) => h("option", { value })),
      );
    }
  }

  #schedule() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#apply(), INPUT_DELAY_MS);
  }

  #apply() {
    tabStorage.write("runFilters", this.value);
    this.onChange();
  }
}

customElements.define("ot-run-filters", RunFilters);
export const runFilters = (onChange) => document.createElement("ot-run-filters").configure(onChange);
