/** Runs and calls as they happen, and the timeline of the one that is chosen. */
import { fill, h } from "../core/h.js";
import { load } from "../core/loading.js";
import { nothing } from "../core/parts.js";
import { link } from "../core/router.js";
import { say, sayOr } from "../core/say.js";
import { clipped, duration, timeOf } from "../core/text.js";
import { Happening } from "./happening.js";
import { timeline } from "./timeline.js";

const PAUSE = 300;

class Live extends HTMLElement {
  #chosen = "";
  #timer = 0;

  connectedCallback() {
    this.list = h("ul.runs", { "aria-label": say("live.runs") });
    this.note = h("p.hint", { role: "status" });
    this.detail = h("section.card.timeline-card", { "aria-label": say("live.timeline") });
    this.append(h("div.card.runs-card", {}, h("h2", {}, say("live.runs")), this.note, this.list), this.detail);
    this.happening = new Happening(this, (ids) => this.#changed(ids));
  }

  disconnectedCallback() {
    this.happening.end();
    clearTimeout(this.#timer);
  }

  show(id = "") {
    this.#chosen = id;
    this.classList.toggle("has-chosen", Boolean(id));
    this.#list();
    if (!id) return fill(this.detail, nothing(say("live.choose"), say("live.choose.advice")));
    fill(this.detail);
    this.#timeline();
  }

  #changed(ids) {
    this.#list();
    if (!this.#chosen || !ids.has(this.#chosen) || this.#timer) return;
    this.#timer = setTimeout(() => {
      this.#timer = 0;
      this.#timeline();
    }, PAUSE);
  }

  #timeline() {
    const id = this.#chosen;
    load(this.detail, async () => timeline(await this.happening.whole(id)));
  }

  #list() {
    const runs = [...this.happening.runs.values()].reverse();
    const focused = document.activeElement?.closest?.(".runs a")?.dataset.id;
    fill(
      this.list,
      runs.map((run) => this.#line(run)),
    );
    if (focused) this.list.querySelector(`a[data-id="${CSS.escape(focused)}"]`)?.focus();
    fill(
      this.note,
      runs.length ? (this.happening.missed ? say("live.missed", { n: this.happening.missed }) : "") : say("live.none"),
    );
  }

  #line({ id, label, count, state, durationMs, startedAt, agent, error, kind }) {
    return h(
      "li",
      {},
      h(
        "a",
        { href: link("activity", "live", id), data: { id }, "aria-current": id === this.#chosen ? "true" : null },
        h("span.dot", { data: { state }, role: "img", "aria-label": sayOr(`state.${state}`, state) }),
        h("span.label", {}, clipped(label.split("\n").find((line) => line.trim()) ?? "", 120) || "run"),
        h("span.time", {}, timeOf(startedAt)),
        h(
          "span.more",
          {},
          [
            agent === "default" ? null : agent,
            kind === "run" ? say("live.calls", { n: count }) : say("live.call"),
            error,
          ]
            .filter(Boolean)
            .join(" · "),
        ),
        h("span.time", {}, state === "running" ? "…" : duration(durationMs)),
      ),
    );
  }
}

customElements.define("ot-live", Live);
export const live = () => document.createElement("ot-live");
