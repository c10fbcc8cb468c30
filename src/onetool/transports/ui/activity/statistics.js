/** Statistics: what was called, how it went, and what was saved by the measured formula. */
import { get } from "../core/api.js";
import { fill, h } from "../core/h.js";
import { load } from "../core/loading.js";
import { nothing } from "../core/parts.js";
import { link } from "../core/router.js";
import { say } from "../core/say.js";
import { ofThisBrowser } from "../core/store.js";
import { duration, few, number } from "../core/text.js";
import { bars, share } from "./plots.js";

const PERIODS = ["day", "week", "month", "all"];
const PRICE = 3; // dollars a million tokens, until somebody says what theirs is
const MAX_TOOLS = 50;

class Statistics extends HTMLElement {
  connectedCallback() {
    this.period = h(
      "select",
      { "aria-label": say("stats.period"), onchange: () => this.#load() },
      PERIODS.map((one) => h("option", { value: one }, say(`period.${one}`))),
    );
    this.period.value = "all";
    this.price = h("input", {
      type: "number",
      min: "0",
      step: "0.1",
      value: ofThisBrowser.read("price", PRICE),
      "aria-label": say("stats.price"),
      oninput: () => this.#priced(),
    });
    this.body = h("div.figures");
    this.append(h("div.bar", {}, this.period, h("label.price", {}, say("stats.price"), this.price)), this.body);
    this.#load();
  }

  #load() {
    return load(this.body, async () => {
      this.found = await get("/api/stats", { period: this.period.value });
      return this.#shown();
    });
  }

  #priced() {
    ofThisBrowser.write("price", this.#price);
    if (this.found) fill(this.body, this.#shown());
  }

  get #price() {
    return Math.max(0, Number(this.price.value) || 0);
  }

  #shown() {
    const found = this.found;
    if (!found.isEnabled) return nothing(say("stats.off"), say("stats.off.advice"));
    const money = (found.contextSaved / 1e6) * this.#price;
    return [
      found.problem ? h("p.reason", {}, found.problem) : null,
      h(
        "div.cards",
        {},
        card(
          say("stats.calls"),
          few(found.totalCalls),
          found.successRate == null ? "" : say("stats.success", { rate: found.successRate }),
        ),
        card(
          say("stats.runs"),
          few(found.runs.total),
          found.runs.p50Ms == null
            ? ""
            : say("stats.middle", { time: duration(found.runs.p50Ms), slow: duration(found.runs.p95Ms) }),
        ),
        card(say("stats.tokens"), few(found.contextSaved), say("stats.tokens.how")),
        card(
          say("stats.money"),
          money.toLocaleString(undefined, {
            style: "currency",
            currency: "USD",
            maximumFractionDigits: money < 1 ? 4 : money < 100 ? 2 : 0,
          }),
          say("stats.money.how"),
        ),
        card(
          say("stats.time"),
          duration(found.timeSavedMs),
          say("stats.time.how", { n: Math.round(found.savings.roundTrips), time: duration(found.savings.roundTripMs) }),
        ),
      ),
      h("section.card", {}, h("h2", {}, say("stats.overTime")), bars(found.series)),
      h("section.card", {}, h("h2", {}, say("stats.formula")), formula(found)),
      found.tools.length
        ? h("section.card", {}, h("h2", {}, say("stats.byTool")), byTool(found.tools))
        : nothing(say("stats.none"), say("stats.none.advice")),
      Object.keys(found.errors).length
        ? h("section.card", {}, h("h2", {}, say("stats.errors")), counts(found.errors))
        : null,
    ];
  }
}

const card = (name, value, note) =>
  h("div.card.figure-card", {}, h("p.name", {}, name), h("p.value", {}, value), h("p.hint", {}, note));

function formula({ savings, contextSaved }) {
  const part = (word, value, sign = "") =>
    h("tr", {}, h("th", { scope: "row" }, say(word, { n: savings.sessions })), h("td.figure", {}, sign, number(value)));
  return h(
    "table.sum",
    {},
    h(
      "tbody",
      {},
      part("formula.definitions", savings.definitionTokens),
      part("formula.own", savings.ownTokens, "− "),
      part("formula.results", savings.resultTokens, "+ "),
      h("tr.total", {}, h("th", { scope: "row" }, say("formula.saved")), h("td.figure", {}, number(contextSaved))),
    ),
  );
}

function byTool(tools) {
  const most = Math.max(...tools.map(({ calls }) => calls));
  const head = ["tool", "calls", "success", "p50", "p95", "tokens"].map((name, place) =>
    h("th", { scope: "col", class: place ? "figure" : "" }, say(`column.${name}`)),
  );
  return h(
    "div.table",
    { tabindex: "0", role: "group", "aria-label": say("stats.byTool") },
    h(
      "table",
      {},
      h("thead", {}, h("tr", {}, head)),
      h(
        "tbody",
        {},
        tools
          .slice(0, MAX_TOOLS)
          .map((tool) =>
            h(
              "tr",
              {},
              h("td", {}, h("a", { href: link("tools", tool.name) }, tool.name), share(tool.calls, most)),
              h("td.figure", {}, number(tool.calls)),
              h(
                "td.figure",
                { data: tool.successRate < 95 ? { mood: "bad" } : {} },
                tool.successRate == null ? "–" : `${tool.successRate}%`,
              ),
              h("td.figure", {}, duration(tool.p50Ms)),
              h("td.figure", {}, duration(tool.p95Ms)),
              h("td.figure", {}, few(tool.resultTokens)),
            ),
          ),
      ),
    ),
  );
}

function counts(errors) {
  const most = Math.max(...Object.values(errors));
  return h(
    "table.sum",
    {},
    h(
      "tbody",
      {},
      Object.entries(errors).map(([type, count]) =>
        h("tr", {}, h("th", { scope: "row" }, type, share(count, most)), h("td.figure", {}, number(count))),
      ),
    ),
  );
}

customElements.define("ot-statistics", Statistics);
export const statistics = () => document.createElement("ot-statistics");
