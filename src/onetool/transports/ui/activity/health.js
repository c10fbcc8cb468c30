/** Current health of the server, upstream servers, workers and isolation. */
import { get } from "../core/api.js";
import { h } from "../core/h.js";
import { load } from "../core/loading.js";
import { button, definitionList } from "../core/components.js";
import { t } from "../core/i18n.js";
import { formatNumber } from "../core/text.js";

class HealthView extends HTMLElement {
  connectedCallback() {
    this.body = h("div.figures");
    this.append(
      h(
        "div.bar",
        {},
        button(t("health.refresh"), () => this.#load()),
      ),
      this.body,
    );
    this.#load();
  }

  #load() {
    return load(this.body, async () => render(await get("/api/health")));
  }
}

function render(health) {
  return [
    health.problems.length
      ? h(
          "section.card.problems",
          {},
          h("h2", {}, t("health.problems", { n: health.problems.length })),
          h(
            "ul",
            {},
            health.problems.map((line) => h("li.pre", {}, line)),
          ),
        )
      : h("p.card.ok", { data: { tone: "good" } }, t("health.ok")),
    h(
      "section.card",
      {},
      h("h2", {}, t("health.product")),
      definitionList([
        [t("health.version"), health.version],
        [t("health.python"), health.python],
        [t("health.directory"), h("code", {}, health.cwd)],
        [t("screen.tools"), formatNumber(health.registry.toolCount)],
      ]),
    ),
    h("section.card", {}, h("h2", {}, t("health.isolation")), stateList(health.isolation, t("health.isolation.none"))),
    h("section.card", {}, h("h2", {}, t("health.servers")), stateList(health.proxy.servers, t("health.servers.none"))),
    h("section.card", {}, h("h2", {}, t("health.workers")), stateList(health.workers, t("health.workers.none"))),
  ];
}

function stateList(states, placeholder) {
  const entries = Object.entries(states ?? {});
  if (!entries.length) return h("p.hint", {}, placeholder);
  return definitionList(
    entries.map(([name, state]) => [
      name,
      h("span", { data: getTone(state) }, typeof state === "string" ? state : JSON.stringify(state)),
    ]),
  );
}

const TONES = { connected: "good", idle: "good", running: "good", disconnected: "bad", failed: "bad" };

function getTone(state) {
  return Object.hasOwn(TONES, state) ? { tone: TONES[state] } : {};
}

customElements.define("ot-health", HealthView);
export const health = () => document.createElement("ot-health");
