/** What was called in this tab, newest first, to be called again. */
import { fill, h } from "../core/h.js";
import { button } from "../core/parts.js";
import { say, sayOr } from "../core/say.js";
import { ofThisTab } from "../core/store.js";
import { clipped, duration, timeOf } from "../core/text.js";

const MOST = 100;
const LONGEST = 20_000; // what is longer is not kept: there is little room

export function remember(name, call) {
  if (JSON.stringify(call.args).length > LONGEST) return;
  ofThisTab.write("history", [{ name, ...call }, ...ofThisTab.read("history", [])].slice(0, MOST));
}

class History extends HTMLElement {
  use(name, again) {
    Object.assign(this, { name, again });
    this.refresh();
    return this;
  }

  refresh() {
    const calls = ofThisTab.read("history", []).filter((call) => call.name === this.name);
    fill(
      this,
      calls.length
        ? h(
            "ul.calls",
            {},
            calls.map((call) => this.#line(call)),
          )
        : h("p.hint", {}, say("history.none")),
    );
  }

  #line({ args, outcome, ms, at }) {
    return h(
      "li",
      {},
      h("time", { datetime: new Date(at).toISOString() }, timeOf(at)),
      h("code", {}, clipped(JSON.stringify(args), 160)),
      h("span", { data: { mood: outcome === "ok" ? "good" : "bad" } }, sayOr(`outcome.${outcome}`, outcome)),
      h("span.time", {}, duration(ms)),
      button(say("history.again"), () => this.again(args), { class: "quiet" }),
    );
  }
}

customElements.define("ot-history", History);
export const historyOf = (name, again) => document.createElement("ot-history").use(name, again);
