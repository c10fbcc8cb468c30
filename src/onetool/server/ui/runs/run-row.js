/** A row of the list of runs. */
import { fill, h } from "../core/h.js";
import { t, tOr } from "../core/i18n.js";
import { link } from "../core/router.js";
import { formatDuration, formatMoment, truncate } from "../core/text.js";

const MAX_LABEL_CHARS = 160;

export function renderRow(run) {
  const row = h(
    "div.run-row",
    {},
    h(
      "span.main",
      { role: "gridcell" },
      h("span.dot", { role: "img" }),
      h("a.label", { href: link("runs", run.id), tabindex: "-1" }, getLabel(run)),
      h("span.time"),
      h("span.more"),
    ),
  );
  row.runId = run.id;
  return row;
}

/** Show the state of the run in its row. Return false if it is the row of another run. */
export function updateRow(row, run, isSelected) {
  if (!run || run.id !== row.runId) return false;
  row.toggleAttribute("data-selected", isSelected);
  const dot = row.querySelector(".dot");
  dot.dataset.state = run.state;
  dot.setAttribute("aria-label", tOr(`state.${run.state}`, run.state));
  fill(row.querySelector(".time"), ["running", "waiting"].includes(run.state) ? "…" : formatDuration(run.durationMs));
  fill(row.querySelector(".more"), describe(run));
  return true;
}

/** Return the first line of the code, or the name of the tool. */
function getLabel({ command, name }) {
  return truncate((command || name).split("\n").find((line) => line.trim()) ?? "", MAX_LABEL_CHARS) || "run";
}

/** Return when a run started, who started it, and how many calls it made. */
function describe({ startedAt, agent, actor, client, directory, callCount, kind, error }) {
  const parts = [
    formatMoment(startedAt),
    error,
    agent === "default" ? null : agent,
    actor,
    client,
    directory?.split("/").at(-1),
    kind === "run" ? t("live.calls", { n: callCount }) : t("runs.call"),
  ];
  return truncate(parts.filter(Boolean).join(" · "), MAX_LABEL_CHARS);
}
