/** Live runs and calls, and the timeline of the selected one. */
import { fill, h } from "../core/h.js";
import { load } from "../core/loading.js";
import { emptyState } from "../core/components.js";
import { link } from "../core/router.js";
import { t, tOr } from "../core/i18n.js";
import { truncate, formatDuration, formatTime } from "../core/text.js";
import { RunFeed } from "./run-feed.js";
import { timeline } from "./timeline.js";

const UPDATE_INTERVAL_MS = 300;

class LiveView extends HTMLElement {
  #selectedId = "";
  #timer = 0;

  connectedCallback() {
    this.list = h("ul.runs", { "aria-label": t("live.runs") });
    this.note = h("p.hint", { role: "status" });
    this.detail = h("section.card.timeline-card", { "aria-label": t("live.timeline") });
    this.append(h("div.card.runs-card", {}, h("h2", {}, t("live.runs")), this.note, this.list), this.detail);
    this.feed = new RunFeed(this, (ids) => this.#onChange(ids));
  }

  disconnectedCallback() {
    this.feed.end();
    clearTimeout(this.#timer);
  }

  show(id = "") {
    this.#selectedId = id;
    this.classList.toggle("has-selected", Boolean(id));
    this.#showRuns();
    if (!id) return fill(this.detail, emptyState(t("live.choose"), t("live.choose.advice")));
    fill(this.detail);
    this.#showTimeline();
  }

  #onChange(ids) {
    this.#showRuns();
    if (!this.#selectedId || !ids.has(this.#selectedId) || this.#timer) return;
    this.#timer = setTimeout(() => {
      this.#timer = 0;
      this.#showTimeline();
    }, UPDATE_INTERVAL_MS);
  }

  #showTimeline() {
    const id = this.#selectedId;
    load(this.detail, async () => timeline(await this.feed.getRun(id)));
  }

  #showRuns() {
    const runs = [...this.feed.runs.values()].reverse();
    const focused = document.activeElement?.closest?.(".runs a")?.dataset.id;
    fill(
      this.list,
      runs.map((run) => this.#row(run)),
    );
    if (focused) this.list.querySelector(`a[data-id="${CSS.escape(focused)}"]`)?.focus();
    fill(this.note, runs.length ? (this.feed.missed ? t("live.missed", { n: this.feed.missed }) : "") : t("live.none"));
  }

  #row({ id, label, count, state, durationMs, startedAt, agent, client, directory, error, kind }) {
    return h(
      "li",
      {},
      h(
        "a",
        { href: link("activity", "live", id), data: { id }, "aria-current": id === this.#selectedId ? "true" : null },
        h("span.dot", { data: { state }, role: "img", "aria-label": tOr(`state.${state}`, state) }),
        h("span.label", {}, truncate(label.split("\n").find((line) => line.trim()) ?? "", 120) || "run"),
        h("span.time", {}, formatTime(startedAt)),
        h(
          "span.more",
          {},
          [
            agent === "default" ? null : agent,
            client,
            directory?.split("/").at(-1),
            kind === "run" ? t("live.calls", { n: count }) : t("live.call"),
            error,
          ]
            .filter(Boolean)
            .join(" · "),
        ),
        h("span.time", {}, state === "running" ? "…" : formatDuration(durationMs)),
      ),
    );
  }
}

customElements.define("ot-live", LiveView);
export const live = () => document.createElement("ot-live");
