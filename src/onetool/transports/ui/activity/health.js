/** How servers, workers and isolation are doing at this moment. */
import { get } from "../core/api.js";
import { h } from "../core/h.js";
import { load } from "../core/loading.js";
import { button, facts } from "../core/parts.js";
import { say } from "../core/say.js";
import { number } from "../core/text.js";

class Health extends HTMLElement {
  connectedCallback() {
    this.body = h("div.figures");
    this.append(
      h(
        "div.bar",
        {},
        button(say("health.refresh"), () => this.#load()),
      ),
      this.body,
    );
    this.#load();
  }

  #load() {
    return load(this.body, async () => shown(await get("/api/health")));
  }
}

function shown(health) {
  return [
    health.problems.length
      ? h(
          "section.card.problems",
          {},
          h("h2", {}, say("health.problems", { n: health.problems.length })),
          h(
            "ul",
            {},
            health.problems.map((line) => h("li.pre", {}, line)),
          ),
        )
      : h("p.card.fine", { data: { mood: "good" } }, say("health.fine")),
    h(
      "section.card",
      {},
      h("h2", {}, say("health.product")),
      facts([
        [say("health.version"), health.version],
        [say("health.python"), health.python],
        [say("health.folder"), h("code", {}, health.cwd)],
        [say("screen.tools"), number(health.registry.toolCount)],
      ]),
    ),
    h("section.card", {}, h("h2", {}, say("health.isolation")), states(health.isolation, say("health.isolation.none"))),
    h("section.card", {}, h("h2", {}, say("health.servers")), states(health.proxy.servers, say("health.servers.none"))),
    h("section.card", {}, h("h2", {}, say("health.workers")), states(health.workers, say("health.workers.none"))),
  ];
}

function states(named, none) {
  const entries = Object.entries(named ?? {});
  if (!entries.length) return h("p.hint", {}, none);
  return facts(
    entries.map(([name, state]) => [
      name,
      h("span", { data: moodOf(state) }, typeof state === "string" ? state : JSON.stringify(state)),
    ]),
  );
}

const MOODS = { connected: "good", idle: "good", running: "good", disconnected: "bad", failed: "bad" };

function moodOf(state) {
  return Object.hasOwn(MOODS, state) ? { mood: MOODS[state] } : {};
}

customElements.define("ot-health", Health);
export const health = () => document.createElement("ot-health");
