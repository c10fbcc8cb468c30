/** Screen "Statistics": calls over time, and the savings calculated from them. */
import { get } from "../core/api.js";
import { dataTable } from "../core/data-table.js";
import { fill, h } from "../core/h.js";
import { load } from "../core/loading.js";
import { emptyState } from "../core/components.js";
import { link } from "../core/router.js";
import { t } from "../core/i18n.js";
import { formatCompact, formatDuration, formatNumber, formatPercent } from "../core/text.js";
import { loadStyles } from "../core/styles.js";
import { bars, share } from "./charts.js";
import { formatCost, readPrice, writePrice } from "./price.js";

await loadStyles("records");

const PERIODS = ["day", "week", "month", "all"];
const MAX_TOOLS = 50;

class StatisticsScreen extends HTMLElement {
  connectedCallback() {
    this.className = "page";
    this.period = h(
      "select",
      { "aria-label": t("stats.period"), onchange: () => this.#load() },
      PERIODS.map((one) => h("option", { value: one }, t(`period.${one}`))),
    );
    this.period.value = "all";
    this.price = h("input", {
      type: "number",
      min: "0",
      step: "0.1",
      value: readPrice(),
      "aria-label": t("stats.price"),
      oninput: () => this.#onPriceInput(),
    });
    this.body = h("div.figures");
    this.append(
      h(
        "div.inner",
        {},
        h(
          "div.bar",
          {},
          h("h1", {}, t("screen.statistics")),
          this.period,
          h("label.price", {}, t("stats.price"), this.price),
        ),
        this.body,
      ),
    );
    this.#load();
  }

  show() {}

  #load() {
    return load(this.body, async () => {
      this.found = await get("/api/stats", { period: this.period.value });
      return this.#render();
    });
  }

  #onPriceInput() {
    writePrice(this.#price);
    if (this.found) fill(this.body, this.#render());
  }

  get #price() {
    return Math.max(0, Number(this.price.value) || 0);
  }

  #render() {
    const found = this.found;
    if (!found.isEnabled) return emptyState(t("stats.off"), t("stats.off.advice"));
    return [
      found.problem ? h("p.reason", {}, found.problem) : null,
      h(
        "div.cards",
        {},
        card(
          t("stats.calls"),
          formatCompact(found.totalCalls),
          found.successRate == null ? "" : t("stats.success", { rate: formatPercent(found.successRate) }),
        ),
        card(
          t("stats.runs"),
          formatCompact(found.runs.total),
          found.runs.p50Ms == null
            ? ""
            : t("stats.percentiles", { p50: formatDuration(found.runs.p50Ms), p95: formatDuration(found.runs.p95Ms) }),
        ),
        card(t("stats.tokens"), formatCompact(found.contextSaved), t("stats.tokens.how")),
        card(t("stats.money"), formatCost(found.contextSaved, this.#price), t("stats.money.how")),
        card(
          t("stats.time"),
          formatDuration(found.timeSavedMs),
          t("stats.time.how", {
            n: Math.round(found.savings.roundTrips),
            time: formatDuration(found.savings.roundTripMs),
          }),
        ),
      ),
      h("section.card", {}, h("h2", {}, t("stats.overTime")), bars(found.series)),
      h("section.card", {}, h("h2", {}, t("stats.formula")), formulaTable(found)),
      found.tools.length
        ? h("section.card", {}, h("h2", {}, t("stats.byTool")), toolTable(found.tools))
        : emptyState(t("stats.none"), t("stats.none.advice")),
      Object.keys(found.errors).length
        ? h("section.card", {}, h("h2", {}, t("stats.errors")), errorTable(found.errors))
        : null,
    ];
  }
}

const card = (name, value, note) =>
  h("div.card.figure-card", {}, h("p.name", {}, name), h("p.value", {}, value), h("p.hint", {}, note));

function formulaTable({ savings, contextSaved }) {
  const row = (key, value, sign = "") =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, t(key, { n: savings.sessions })),
      h("td.figure", {}, sign, formatNumber(value)),
    );
  return h(
    "table.sum",
    {},
    h(
      "tbody",
      {},
      row("formula.definitions", savings.definitionTokens),
      row("formula.own", savings.ownTokens, "− "),
      row("formula.results", savings.resultTokens, "+ "),
      h("tr.total", {}, h("th", { scope: "row" }, t("formula.saved")), h("td.figure", {}, formatNumber(contextSaved))),
    ),
  );
}

function toolTable(tools) {
  const maximum = Math.max(...tools.map(({ calls }) => calls));
  const names = ["tool", "calls", "success", "p50", "p95", "tokens"];
  const columns = names.map((name, index) => [t(`column.${name}`), index > 0]);
  const row = ({ name, calls, successRate, p50Ms, p95Ms, resultTokens }) =>
    h(
      "tr",
      {},
      h("td", {}, h("a", { href: link("tools", name) }, name), share(calls, maximum)),
      h("td.figure", {}, formatNumber(calls)),
      h(
        "td.figure",
        { data: successRate < 95 ? { tone: "bad" } : {} },
        successRate == null ? "–" : `${formatPercent(successRate)}%`,
      ),
      h("td.figure", {}, formatDuration(p50Ms)),
      h("td.figure", {}, formatDuration(p95Ms)),
      h("td.figure", {}, formatCompact(resultTokens)),
    );
  return dataTable(t("stats.byTool"), columns, tools.slice(0, MAX_TOOLS).map(row));
}

function errorTable(errors) {
  const maximum = Math.max(...Object.values(errors));
  return h(
    "table.sum",
    {},
    h(
      "tbody",
      {},
      Object.entries(errors).map(([type, count]) =>
        h("tr", {}, h("th", { scope: "row" }, type, share(count, maximum)), h("td.figure", {}, formatNumber(count))),
      ),
    ),
  );
}

customElements.define("ot-statistics", StatisticsScreen);
