/** Screen "Approvals": calls that wait for a person, updated live. */
import { encodePath, send } from "../core/api.js";
import {
  actionButton,
  button,
  emptyState,
  labeled,
  notify,
  openModal,
  quietButton,
  spinner,
} from "../core/components.js";
import { h } from "../core/h.js";
import { t, tOr } from "../core/i18n.js";
import { keyedList } from "../core/keyed-list.js";
import { refill } from "../core/refill.js";
import { loadStyles } from "../core/styles.js";
import { formatRelativeTime, formatTime, truncate } from "../core/text.js";
import { approvals, denied, summarize, watchApprovals } from "./feed.js";
import { deniedState } from "./sign-in.js";

await loadStyles("approvals");
const MAX_EXAMPLES = 3;
const MAX_EXAMPLE_CHARS = 60;
const DURATIONS = [0, 1800, 7200, 86_400]; // seconds; 0 is for this run only

class ApprovalsScreen extends HTMLElement {
  #renderCards = keyedList(({ run }) => run, renderRun);
  #stops = [];

  connectedCallback() {
    this.className = "page";
    this.list = h("div.approvals", { "aria-live": "polite" });
    this.notifications = quietButton(t("approvals.notify"), () => this.#askForNotifications());
    this.append(
      h(
        "div.inner",
        {},
        h("div.bar", {}, h("h1", {}, t("screen.approvals")), this.notifications),
        h("p.hint", {}, t("approvals.hint")),
        this.list,
      ),
    );
    this.#stops = [approvals.listen(() => this.#show()), denied.listen(() => this.#show())];
    this.#showNotifications();
    watchApprovals();
    this.#show();
  }

  disconnectedCallback() {
    for (const stop of this.#stops) stop();
  }

  show() {}

  #show() {
    refill(this.list, this.#render());
  }

  #render() {
    if (denied.value) return deniedState(t("approvals.denied"), denied.value, () => {});
    if (approvals.value === null) return spinner();
    if (!approvals.value.length) return emptyState(t("approvals.none"), t("approvals.none.advice"));
    return this.#renderCards(approvals.value);
  }

  async #askForNotifications() {
    if ((await Notification.requestPermission()) === "denied") notify(t("approvals.notify.denied"), "bad");
    this.#showNotifications();
  }

  #showNotifications() {
    this.notifications.hidden = globalThis.Notification?.permission !== "default";
  }
}

function renderRun(entry) {
  const isHalted = entry.state === "halted";
  const boxes = new Map();
  const calls = entry.calls.map((call) => {
    const box = h("input", {
      type: "checkbox",
      checked: true,
      hidden: call.state === "unknown",
      "aria-label": t("approvals.call", { n: call.number, tool: call.tool }),
    });
    if (call.state === "pending") boxes.set(call.number, box);
    return h("li", {}, box, renderCall(entry, call));
  });
  const selected = () => [...boxes].filter(([, box]) => box.checked).map(([number]) => number);
  const approve = () => decide(entry.run, { decision: "approve", calls: selected() });
  return h(
    "section.card",
    { "aria-label": t("approvals.run", { agent: entry.agent }), data: { run: entry.run } },
    h("h2", {}, t(isHalted ? "approvals.halted" : "approvals.asks", { n: entry.calls.length, agent: entry.agent })),
    h(
      "p.hint",
      {},
      [
        entry.actor,
        entry.client,
        formatTime(entry.asked),
        entry.expires && t("approvals.expires", { time: formatRelativeTime(entry.expires) }),
      ]
        .filter(Boolean)
        .join(" · "),
      " ",
      h("code", {}, entry.run),
    ),
    h("ol.calls", {}, calls),
    h(
      "div.actions",
      {},
      boxes.size ? actionButton(t("approvals.approve"), approve, { class: "primary" }) : null,
      boxes.size ? button(t("approvals.similar"), () => allowSimilar(entry, selected())) : null,
      button(t("approvals.reject"), () => reject(entry, selected()), { class: "danger" }),
    ),
  );
}

function renderCall(entry, call) {
  const outcomes = ["happened", "not-happened", "repeat"];
  return h(
    "div.call",
    {},
    h("strong", {}, call.tool),
    " ",
    call.effects.map((effect) => h("span.badge", { data: { effect } }, tOr(`effect.${effect}`, effect))),
    h("p.hint", {}, call.state === "unknown" ? t("approvals.unknown") : call.reason),
    h("pre", { tabindex: "0" }, formatArguments(call.arguments)),
    call.state === "unknown"
      ? h(
          "div.actions",
          {},
          outcomes.map((decision) =>
            actionButton(t(`approvals.${decision}`), () => decide(entry.run, { decision, calls: [call.number] })),
          ),
        )
      : null,
  );
}

const formatArguments = (values) =>
  Object.entries(values)
    .map(([name, value]) => `${name}: ${JSON.stringify(value)}`)
    .join("\n") || t("approvals.noArguments");

async function decide(run, body) {
  if (body.calls && !body.calls.length) return notify(t("approvals.select"), "bad");
  try {
    const { calls } = await send("POST", `/api/approvals${encodePath(run)}`, body);
    notify(t(body.decision === "reject" ? "approvals.rejected" : "approvals.answered", { n: calls.length }));
    return true;
  } catch (error) {
    notify(error.message, "bad");
    return false;
  }
}

function reject(entry, calls) {
  const reason = h("input", { type: "text", maxlength: 2000, autocomplete: "off" });
  const stop = h("input", { type: "checkbox" });
  const submit = async () => {
    const body = { decision: "reject", reason: reason.value, stop: stop.checked, calls: stop.checked ? null : calls };
    if (await decide(entry.run, body)) dialog.close();
  };
  const dialog = openModal(
    t("approvals.reject.title", { tools: summarize(entry.calls.filter(({ number }) => calls.includes(number))) }),
    h(
      "form.stack",
      { onsubmit: (event) => (event.preventDefault(), submit()) },
      labeled(t("approvals.reason"), reason, { hint: t("approvals.reason.hint") }),
      h("label.check", {}, stop, " ", t("approvals.stop")),
    ),
    [
      quietButton(t("cancel"), () => dialog.close()),
      actionButton(t("approvals.reject.now"), submit, { class: "danger" }),
    ],
  );
}

/** Ask what else to allow: the same call once more, unless the person widens it. The server knows the arguments. */
function allowSimilar(entry, calls) {
  const first = entry.calls.find(({ number }) => calls.includes(number));
  if (!first) return notify(t("approvals.select"), "bad");
  const tool = h("input", { type: "text", value: first.tool, required: true, spellcheck: "false" });
  const boxes = Object.keys(first.arguments).map((name) => [name, h("input", { type: "checkbox" })]);
  const rows = boxes.map(([name, box]) =>
    h("label.check", {}, box, " ", h("code", {}, name), " ", h("span.hint", {}, listExamples(entry, first, name))),
  );
  const patterns = h("textarea", { rows: 2, spellcheck: "false", value: "" });
  const count = h("input", { type: "number", min: 1, max: 100_000, value: "1" });
  const duration = h(
    "select",
    {},
    DURATIONS.map((seconds) => h("option", { value: String(seconds) }, t(`approvals.for.${seconds}`))),
  );
  const patternField = labeled(t("approvals.patterns"), patterns, { hint: t("approvals.patterns.hint") });
  const submit = async () => {
    let values;
    try {
      values = JSON.parse(patterns.value || "{}");
    } catch (error) {
      return patternField.showProblem(t("check.json", { reason: error.message }));
    }
    const seconds = Number(duration.value) || null;
    const varying = boxes.filter(([, box]) => box.checked).map(([name]) => name);
    const limits = { count: Number(count.value), seconds };
    const grants = [{ tool: tool.value.trim(), arguments: values, varying, ...limits }];
    if (await decide(entry.run, { decision: "approve", calls, grants })) dialog.close();
  };
  const dialog = openModal(
    t("approvals.similar.title"),
    h(
      "form.stack",
      { onsubmit: (event) => (event.preventDefault(), submit()) },
      labeled(t("approvals.tool"), tool, { hint: t("approvals.tool.hint") }),
      h("fieldset", {}, h("legend", {}, t("approvals.varying")), rows),
      patternField,
      labeled(t("approvals.count"), count),
      labeled(t("approvals.for"), duration),
    ),
    [
      quietButton(t("cancel"), () => dialog.close()),
      actionButton(t("approvals.similar.now"), submit, { class: "primary" }),
    ],
  );
}

/** Return values of an argument in the waiting calls of the tool, which show what may differ. */
function listExamples(entry, first, name) {
  const calls = entry.calls.filter(({ tool }) => tool === first.tool);
  const values = calls.map((call) => truncate(JSON.stringify(call.arguments[name] ?? null), MAX_EXAMPLE_CHARS));
  return [...new Set(values)].slice(0, MAX_EXAMPLES).join(", ");
}

customElements.define("ot-approvals", ApprovalsScreen);
