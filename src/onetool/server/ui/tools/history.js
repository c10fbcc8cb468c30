/** Calls made in this tab, newest first. */
import { fill, h } from "../core/h.js";
import { button } from "../core/components.js";
import { t, tOr } from "../core/i18n.js";
import { tabStorage } from "../core/state.js";
import { truncate, formatDuration, formatTime } from "../core/text.js";

const MAX_CALLS = 100;
const MAX_CHARS = 20_000; // longer arguments are not stored: session storage is small

export function addToHistory(name, call) {
  if (JSON.stringify(call.args).length > MAX_CHARS) return;
  tabStorage.write("history", [{ name, ...call }, ...tabStorage.read("history", [])].slice(0, MAX_CALLS));
}

class CallHistory extends HTMLElement {
  configure(name, onReuse) {
    Object.assign(this, { name, onReuse });
    this.refresh();
    return this;
  }

  refresh() {
    const calls = tabStorage.read("history", []).filter((call) => call.name === this.name);
    fill(
      this,
      calls.length
        ? h(
            "ul.calls",
            {},
            calls.map((call) => this.#row(call)),
          )
        : h("p.hint", {}, t("history.none")),
    );
  }

  #row({ args, outcome, ms, at }) {
    return h(
      "li",
      {},
      h("time", { datetime: new Date(at).toISOString() }, formatTime(at)),
      h("code", {}, truncate(JSON.stringify(args), 160)),
      h("span", { data: { tone: outcome === "ok" ? "good" : "bad" } }, tOr(`outcome.${outcome}`, outcome)),
      h("span.time", {}, formatDuration(ms)),
      button(t("history.reuse"), () => this.onReuse(args), { class: "quiet" }),
    );
  }
}

customElements.define("ot-history", CallHistory);
export const callHistory = (name, onReuse) => document.createElement("ot-history").configure(name, onReuse);
