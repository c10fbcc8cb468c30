/** One run: its code, output, result or error, a timeline of its calls with their values, and approvals. */
import { h } from "../core/h.js";
import { copyButton, definitionList } from "../core/components.js";
import { link } from "../core/router.js";
import { t, tOr } from "../core/i18n.js";
import { truncate, formatDate, formatDuration } from "../core/text.js";
import { longText } from "../result/long-text.js";
import { tree } from "../result/tree.js";

const MIN_WIDTH = 0.4; // percent, so that short calls stay visible
const MAX_ROWS = 400;
const MAX_CODE_CHARS = 5000;

export function runDetail(run) {
  const decided = (run.recorded ?? []).filter((call) => !run.calls.length || call.by || call.reason);
  const total = Math.max(run.durationMs ?? 0, ...run.calls.map((call) => call.startMs + (call.durationMs ?? 0)), 0.1);
  return [
    title(run.kind === "run" ? t("runs.run") : run.name, run.state, run.id),
    run.message ? section(t("runs.error"), h("pre.error-text", { tabindex: "0" }, run.message)) : null,
    run.command ? section(t("runs.code"), code(run.command, run.errorLine)) : null,
    facts(run),
    run.calls.length
      ? section(
          t("runs.timeline"),
          h(
            "ol.timeline",
            {},
            run.calls.slice(0, MAX_ROWS).map((call, index) => row(call, index, total)),
          ),
          run.calls.length > MAX_ROWS ? h("p.hint", {}, t("timeline.more", { n: run.calls.length - MAX_ROWS })) : null,
          scale(total),
        )
      : null,
    run.printed ? section(t("runs.printed"), longText(run.printed)) : null,
    run.result ? section(t("runs.result"), longText(run.result)) : null,
    decided.length ? section(t("runs.approvals"), approvalList(decided)) : null,
  ];
}

const title = (text, state, id) =>
  h(
    "div.title",
    {},
    h("a.back", { href: link("runs") }, t("runs.back")),
    h("h2", {}, text),
    h("span.state", { data: { state } }, tOr(`state.${state}`, state)),
    h("code.run-id", {}, id),
    copyButton(id),
  );

const section = (name, ...content) => h("section", {}, h("h3", {}, name), content);

const facts = (run) =>
  definitionList([
    [t("timeline.started"), formatDate(run.startedAt)],
    [t("timeline.duration"), run.durationMs == null ? null : formatDuration(run.durationMs)],
    [t("timeline.agent"), run.agent],
    [t("runs.actor"), run.actor || null],
    [t("timeline.client"), run.client || null],
    [t("timeline.directory"), run.directory || null],
    [
      t("timeline.calls"),
      run.callCount ? t("timeline.count", { n: run.callCount, max: run.mostAtOnce }) : t("timeline.none"),
    ],
    [t("runs.cost"), run.cost || null],
    [t("runs.reason"), run.reason],
    [t("timeline.error"), run.error ? h("span.bad", {}, run.error) : null],
  ]);

/** Code with line numbers; the line that failed is marked. */
function code(text, errorLine = null) {
  const lines = truncate(text, MAX_CODE_CHARS).trimEnd().split("\n");
  return h(
    "pre.command",
    { tabindex: "0" },
    lines.map((line, index) => {
      const isError = index + 1 === errorLine;
      const label = isError ? h("span.visually-hidden", {}, t("runs.errorLine")) : null;
      return h("span.line", { data: { number: index + 1, ...(isError ? { error: "" } : {}) } }, label, `${line}\n`);
    }),
  );
}

const scale = (total) =>
  h(
    "div.scale",
    { "aria-hidden": "true" },
    [0, 0.5, 1].map((fraction) => h("span", {}, formatDuration(total * fraction))),
  );

function row(call, index, total) {
  const { name, startMs, durationMs, error } = call;
  const bar = h("span.bar", { data: { state: durationMs == null ? "running" : error ? "failed" : "done" } });
  const left = Math.min((100 * startMs) / total, 100 - MIN_WIDTH);
  bar.style.left = `${left}%`;
  const width = durationMs == null ? 100 : Math.max((100 * durationMs) / total, MIN_WIDTH);
  bar.style.width = `${Math.min(width, 100 - left)}%`;
  const line = [
    h("span.name", {}, name),
    h("span.track", { "aria-hidden": "true" }, bar),
    h(
      "span.time",
      {},
      durationMs == null ? "…" : formatDuration(durationMs),
      error ? h("span.bad", {}, " ", error) : null,
    ),
  ];
  const element = h(
    "details.call-line",
    { ontoggle: () => element.open && element.children.length === 1 && element.append(callValues(call)) },
    h("summary", { title: t("timeline.at", { time: formatDuration(startMs) }), data: { key: `call ${index}` } }, line),
  );
  return h("li", {}, element);
}

function callValues({ name, startMs, arguments: given, result, message }) {
  const stored = given != null || result != null || message != null;
  return h(
    "div.call-values",
    {},
    h(
      "p.hint",
      {},
      t("timeline.at", { time: formatDuration(startMs) }),
      " · ",
      h("a", { href: link("tools", name) }, name),
    ),
    message != null ? h("pre.error-text", { tabindex: "0" }, message) : null,
    given != null ? labeledValue(t("runs.arguments"), given) : null,
    result != null ? labeledValue(t("runs.result"), result) : null,
    stored ? null : h("p.hint", {}, t("runs.noValues")),
  );
}

const labeledValue = (name, text) => h("div", {}, h("h4", {}, name), showValue(text));

/** Show JSON as a tree. Truncated JSON and other text are shown as they are. */
function showValue(text) {
  try {
    const value = JSON.parse(text);
    if (value !== null && typeof value === "object") return tree(value);
  } catch {
    // not JSON
  }
  return longText(text);
}

const approvalList = (calls) =>
  h(
    "ol.approved",
    {},
    calls.map((call) =>
      h(
        "li",
        {},
        h("strong", {}, call.tool),
        " ",
        h("span.state", { data: { state: call.state } }, tOr(`approval.${call.state}`, call.state)),
        call.by ? ` ${t("runs.by", { by: call.by })}` : "",
        call.reason ? h("p.hint", {}, call.reason) : null,
        Object.keys(call.arguments ?? {}).length ? tree(call.arguments) : null,
      ),
    ),
  );
