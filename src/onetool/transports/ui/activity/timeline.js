/** Timeline of a run: when each call started and how long it took. */
import { h } from "../core/h.js";
import { definitionList } from "../core/components.js";
import { link } from "../core/router.js";
import { t, tOr } from "../core/i18n.js";
import { truncate, formatDate, formatDuration } from "../core/text.js";

const MIN_WIDTH = 0.4; // percent, so that short calls stay visible
const MAX_ROWS = 400;

export function timeline(run) {
  const ends = run.calls.map((call) => call.startMs + (call.durationMs ?? 0));
  const total = Math.max(run.durationMs ?? 0, ...ends, 0.1);
  const isLong = run.command.length > 600;
  return [
    h(
      "div.title",
      {},
      h("h2", {}, run.kind === "run" ? t("live.run") : run.name),
      h("span.state", { data: { state: run.state } }, tOr(`state.${run.state}`, run.state)),
    ),
    run.command ? h("pre.command", { tabindex: isLong ? "0" : null }, truncate(run.command, 5000)) : null,
    definitionList([
      [t("timeline.started"), formatDate(run.startedAt)],
      [t("timeline.duration"), run.durationMs == null ? null : formatDuration(run.durationMs)],
      [t("timeline.agent"), run.agent],
      [t("timeline.client"), run.client || null],
      [t("timeline.directory"), run.directory || null],
      [
        t("timeline.calls"),
        run.calls.length ? t("timeline.count", { n: run.callCount, max: run.mostAtOnce }) : t("timeline.none"),
      ],
      [t("timeline.error"), run.error ? h("span.bad", {}, run.error) : null],
    ]),
    h(
      "ol.timeline",
      {},
      run.calls.slice(0, MAX_ROWS).map((call) => row(call, total)),
    ),
    run.calls.length > MAX_ROWS ? h("p.hint", {}, t("timeline.more", { n: run.calls.length - MAX_ROWS })) : null,
    run.calls.length
      ? h(
          "div.scale",
          { "aria-hidden": "true" },
          [0, 0.5, 1].map((fraction) => h("span", {}, formatDuration(total * fraction))),
        )
      : null,
  ];
}

function row({ name, startMs, durationMs, error }, total) {
  const bar = h("span.bar", { data: { state: durationMs == null ? "running" : error ? "failed" : "completed" } });
  const left = Math.min((100 * startMs) / total, 100 - MIN_WIDTH);
  bar.style.left = `${left}%`;
  const width = durationMs == null ? 100 : Math.max((100 * durationMs) / total, MIN_WIDTH);
  bar.style.width = `${Math.min(width, 100 - left)}%`;
  return h(
    "li",
    { title: t("timeline.at", { time: formatDuration(startMs) }) },
    h("a.name", { href: link("tools", name) }, name),
    h("span.track", { "aria-hidden": "true" }, bar),
    h(
      "span.time",
      {},
      durationMs == null ? "…" : formatDuration(durationMs),
      error ? h("span.bad", {}, " ", error) : null,
    ),
  );
}
