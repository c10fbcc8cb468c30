/** Screen "Health": problems with fixes, failures, connected clients, upstream servers, workers and isolation. */
import { get, send } from "../core/api.js";
import { h } from "../core/h.js";
import { load } from "../core/loading.js";
import { actionButton, definitionList, notify } from "../core/components.js";
import { t } from "../core/i18n.js";
import { loadStyles } from "../core/styles.js";
import { formatNumber } from "../core/text.js";
import { clients } from "./clients.js";
import { errors } from "./errors.js";

await loadStyles("records");

class HealthScreen extends HTMLElement {
  connectedCallback() {
    this.className = "page";
    this.body = h("div.figures");
    this.lists = [clients(), errors()];
    const refresh = actionButton(t("health.refresh"), () => this.#refresh());
    this.append(
      h(
        "div.inner",
        {},
        h("div.bar", {}, h("h1", {}, t("screen.health")), refresh),
        this.body,
        h(
          "div.figures",
          {},
          this.lists.map((list) => h("section.card", {}, list)),
        ),
      ),
    );
    this.#load();
  }

  show() {}

  #refresh() {
    return Promise.all([this.#load(), ...this.lists.map((list) => list.update())]);
  }

  #load() {
    return load(this.body, async () => this.#render(await get("/api/health")));
  }

  #render(health) {
    return [
      health.findings.length
        ? h(
            "section.card.problems",
            {},
            h("h2", {}, t("health.problems", { n: health.findings.length })),
            h(
              "ul",
              {},
              health.findings.map((finding) => this.#problem(finding)),
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
      stateCard(t("health.isolation"), health.isolation, t("health.isolation.none")),
      stateCard(t("health.servers"), health.proxy.servers, t("health.servers.none")),
      stateCard(t("health.workers"), health.workers, t("health.workers.none")),
    ];
  }

  #problem({ message, hint, level, fix }) {
    return h(
      "li",
      { data: { level } },
      h("p.pre", {}, message),
      hint ? h("p.pre.hint", {}, hint) : null,
      fix
        ? actionButton(t("health.fix"), () => this.#fix(fix), {
            title: fix,
            "aria-label": t("health.fix.one", { message }),
          })
        : null,
    );
  }

  async #fix(fix) {
    const { done } = await send("POST", "/api/health/fixes", { fix });
    notify(t("health.fixed", { done }));
    await this.#load();
  }
}

const stateCard = (title, states, placeholder) =>
  h("section.card", {}, h("h2", {}, title), stateList(states, placeholder));

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

customElements.define("ot-health", HealthScreen);
