/** Details of a tool: source, permissions, effects, usage, schemas. */
import { h } from "../core/h.js";
import { copyButton, definitionList } from "../core/components.js";
import { t } from "../core/i18n.js";
import { truncate, formatDate, formatDuration, formatNumber, formatRelativeTime } from "../core/text.js";

const MAX_CHARS = 50_000;

export function aboutView(tool) {
  const { usage = {} } = tool;
  return h(
    "div.about",
    {},
    h("pre.signature", { tabindex: "0" }, h("code", {}, truncate(tool.signature, MAX_CHARS))),
    tool.description.includes("\n") ? h("p.pre", { dir: "auto" }, truncate(tool.description, MAX_CHARS)) : null,
    definitionList([
      [t("about.source"), h("code", {}, tool.source)],
      [t("about.file"), tool.file ? h("code", {}, tool.file) : null],
      [
        t("about.permissions"),
        tool.permissions.length ? tool.permissions.map((one) => h("span.tag", {}, one)) : t("about.permissions.none"),
      ],
      [t("about.effects"), effects(tool)],
      [t("about.timeout"), tool.timeoutSeconds ? formatDuration(tool.timeoutSeconds * 1000) : null],
      [
        t("about.calls"),
        usage.calls
          ? [
              formatNumber(usage.calls),
              usage.errors ? h("span.bad", {}, " ", t("about.errors", { n: usage.errors })) : null,
            ]
          : t("about.calls.none"),
      ],
      [t("about.lastCalled"), usage.lastCalledAt ? relativeTime(usage.lastCalledAt) : null],
      [t("about.median"), usage.p50Ms != null ? formatDuration(usage.p50Ms) : null],
      [
        t("about.lastError"),
        usage.lastError ? h("span.bad", {}, usage.lastError.type, " · ", relativeTime(usage.lastError.at)) : null,
      ],
      [t("about.returns"), tool.returns ? h("span.pre", {}, tool.returns) : null],
      [t("about.observedShape"), tool.observedShape ? h("code.pre", {}, tool.observedShape) : null],
      [t("about.example"), tool.example ? h("code.pre", {}, tool.example) : null],
      [t("about.versions"), versions(tool)],
    ]),
    schema(t("about.input"), tool.inputSchema),
    tool.outputSchema ? schema(t("about.output"), tool.outputSchema) : null,
  );
}

const effects = (tool) =>
  [...tool.effects, ...(tool.isIdempotent ? [t("about.idempotent")] : [])].map((one) => h("span.tag", {}, one));

const relativeTime = (text) => h("time", { datetime: text, title: formatDate(text) }, formatRelativeTime(text));

function versions({ versions: all = [] }) {
  return all.map((one) =>
    h("span.tag", { title: one.disabledReason }, one.version, one.isEnabled ? null : ` (${t("state.disabled")})`),
  );
}

function schema(title, content) {
  const text = JSON.stringify(content, null, 2);
  return h(
    "details.schema",
    {},
    h("summary", {}, title),
    copyButton(text),
    h("pre", { tabindex: "0" }, h("code", {}, truncate(text, MAX_CHARS))),
  );
}
