/** A run drawn along its time: which calls, one after the other or at once, and how long each took. */
import { h } from "../core/h.js";
import { facts } from "../core/parts.js";
import { link } from "../core/router.js";
import { say, sayOr } from "../core/say.js";
import { clipped, dateOf, duration } from "../core/text.js";

const LEAST = 0.4; // percent of the width, so that nothing vanishes
const MAX_ROWS = 400;

export function timeline(run) {
  const ends = run.calls.map((call) => call.startMs + (call.durationMs ?? 0));
  const total = Math.max(run.durationMs ?? 0, ...ends, 0.1);
  const isLong = run.command.length > 600;
  return [
    h(
      "div.title",
      {},
      h("h2", {}, run.kind === "run" ? say("live.run") : run.name),
      h("span.state", { data: { state: run.state } }, sayOr(`state.${run.state}`, run.state)),
    ),
    run.command ? h("pre.command", { tabindex: isLong ? "0" : null }, clipped(run.command, 5000)) : null,
    facts([
      [say("timeline.started"), dateOf(run.startedAt)],
      [say("timeline.took"), run.durationMs == null ? null : duration(run.durationMs)],
      [say("timeline.agent"), run.agent],
      [
        say("timeline.calls"),
        run.calls.length ? say("timeline.together", { n: run.callCount, most: run.mostAtOnce }) : say("timeline.none"),
      ],
      [say("timeline.error"), run.error ? h("span.bad", {}, run.error) : null],
    ]),
    h(
      "ol.timeline",
      {},
      run.calls.slice(0, MAX_ROWS).map((call) => row(call, total)),
    ),
    run.calls.length > MAX_ROWS ? h("p.hint", {}, say("timeline.more", { n: run.calls.length - MAX_ROWS })) : null,
    run.calls.length
      ? h(
          "div.scale",
          { "aria-hidden": "true" },
          [0, 0.5, 1].map((part) => h("span", {}, duration(total * part))),
        )
      : null,
  ];
}

function row({ name, startMs, durationMs, error }, total) {
  const bar = h("span.bar", { data: { state: durationMs == null ? "running" : error ? "failed" : "completed" } });
  const left = Math.min((100 * startMs) / total, 100 - LEAST);
  bar.style.left = `${left}%`;
  const width = durationMs == null ? 100 : Math.max((100 * durationMs) / total, LEAST);
  bar.style.width = `${Math.min(width, 100 - left)}%`;
  return h(
    "li",
    { title: say("timeline.at", { time: duration(startMs) }) },
    h("a.name", { href: link("tools", name) }, name),
    h("span.track", { "aria-hidden": "true" }, bar),
    h("span.time", {}, durationMs == null ? "…" : duration(durationMs), error ? h("span.bad", {}, " ", error) : null),
  );
}
