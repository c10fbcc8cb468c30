/** What is known about a tool: where it comes from, what it needs, how it has been used, what it gives. */
import { h } from "../core/h.js";
import { copyButton, facts } from "../core/parts.js";
import { say } from "../core/say.js";
import { clipped, dateOf, duration, number, since } from "../core/text.js";

const LONGEST = 50_000;

export function about(tool) {
  const { usage = {} } = tool;
  return h(
    "div.about",
    {},
    h("pre.signature", { tabindex: "0" }, h("code", {}, clipped(tool.signature, LONGEST))),
    tool.description.includes("\n") ? h("p.pre", { dir: "auto" }, clipped(tool.description, LONGEST)) : null,
    facts([
      [say("about.source"), h("code", {}, tool.source)],
      [say("about.file"), tool.file ? h("code", {}, tool.file) : null],
      [
        say("about.permissions"),
        tool.permissions.length ? tool.permissions.map((one) => h("span.tag", {}, one)) : say("about.permissions.none"),
      ],
      [say("about.timeout"), tool.timeoutSeconds ? duration(tool.timeoutSeconds * 1000) : null],
      [
        say("about.calls"),
        usage.calls
          ? [
              number(usage.calls),
              usage.errors ? h("span.bad", {}, " ", say("about.errors", { n: usage.errors })) : null,
            ]
          : say("about.calls.none"),
      ],
      [say("about.lastCalled"), usage.lastCalledAt ? moment(usage.lastCalledAt) : null],
      [say("about.middle"), usage.p50Ms != null ? duration(usage.p50Ms) : null],
      [
        say("about.lastError"),
        usage.lastError ? h("span.bad", {}, usage.lastError.type, " · ", moment(usage.lastError.at)) : null,
      ],
      [say("about.returns"), tool.returns ? h("span.pre", {}, tool.returns) : null],
      [say("about.observed"), tool.observedShape ? h("code.pre", {}, tool.observedShape) : null],
      [say("about.example"), tool.example ? h("code.pre", {}, tool.example) : null],
      [say("about.versions"), versions(tool)],
    ]),
    schema(say("about.input"), tool.inputSchema),
    tool.outputSchema ? schema(say("about.output"), tool.outputSchema) : null,
  );
}

const moment = (text) => h("time", { datetime: text, title: dateOf(text) }, since(text));

function versions({ versions: all = [] }) {
  return all.map((one) =>
    h("span.tag", { title: one.disabledReason }, one.version, one.isEnabled ? null : ` (${say("filter.off")})`),
  );
}

function schema(title, content) {
  const text = JSON.stringify(content, null, 2);
  return h(
    "details.schema",
    {},
    h("summary", {}, title),
    copyButton(text),
    h("pre", { tabindex: "0" }, h("code", {}, clipped(text, LONGEST))),
  );
}
