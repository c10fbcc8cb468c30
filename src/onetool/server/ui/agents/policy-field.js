/** The policy of an agent: one of the presets, or a list of rules whose order matters. */
import { labeled, quietButton } from "../core/components.js";
import { h } from "../core/h.js";
import { t } from "../core/i18n.js";

const PRESETS = ["open", "ask-writes", "read-only", "guarded"];
const RULES = "rules";
const DECISIONS = ["ask", "deny", "allow"];
const EFFECTS = ["read", "write", "exec", "external"];

export function policyField() {
  const select = h(
    "select",
    {},
    [...PRESETS, RULES].map((name) => h("option", { value: name }, t(`agents.policy.${name}`))),
  );
  const list = h("ol.rules");
  const add = quietButton(t("agents.rule.add"), () => addRule({ decision: "ask" }).querySelector("input").focus());
  const rules = h("div.stack", {}, list, h("div", {}, add), h("p.hint", {}, t("agents.rules.hint")));
  const update = () => (rules.hidden = select.value !== RULES);
  const addRule = (rule) =>
    list.appendChild(renderRule(rule, () => list.dispatchEvent(new Event("input", { bubbles: true }))));
  select.addEventListener("change", () => {
    if (select.value === RULES && !list.children.length) addRule({ decision: "ask", effect: ["write", "exec"] });
    update();
  });
  return {
    element: h("div.stack", {}, labeled(t("agents.policy"), select, { hint: t("agents.policy.hint") }), rules),
    read: () => (select.value === RULES ? [...list.children].map((row) => row.read()) : select.value),
    show: (value) => {
      select.value = Array.isArray(value) ? RULES : (value ?? PRESETS[0]);
      list.replaceChildren();
      for (const rule of Array.isArray(value) ? value : []) addRule(rule);
      update();
    },
  };
}

function renderRule(rule, changed) {
  const decision = h(
    "select",
    { "aria-label": t("agents.rule.decision") },
    DECISIONS.map((name) => h("option", { value: name }, t(`agents.decision.${name}`))),
  );
  decision.value = rule.decision ?? DECISIONS[0];
  const tools = input(t("agents.rule.tools"), rule.tools === "*" ? "" : rule.tools, "*");
  const args = input(
    t("agents.rule.arguments"),
    rule.arguments ? JSON.stringify(rule.arguments) : "",
    '{"repo": "me/*"}',
  );
  const account = input(t("agents.rule.account"), rule.account, "");
  const effects = toList(rule.effect);
  const boxes = EFFECTS.map((name) => [name, h("input", { type: "checkbox", checked: effects.includes(name) })]);
  const move = (step) => {
    const other = step < 0 ? row.previousElementSibling : row.nextElementSibling;
    if (!other) return;
    if (step < 0) other.before(row);
    else other.after(row);
    changed();
  };
  const row = h(
    "li.rule",
    {},
    h(
      "div.bar",
      {},
      decision,
      tools,
      quietButton("↑", () => move(-1), { "aria-label": t("agents.rule.up") }),
      quietButton("↓", () => move(1), { "aria-label": t("agents.rule.down") }),
      quietButton("×", () => (row.remove(), changed()), { "aria-label": t("agents.rule.remove") }),
    ),
    h(
      "div.checks",
      { role: "group", "aria-label": t("agents.rule.effects") },
      boxes.map(([name, box]) => h("label.check", {}, box, " ", t(`effect.${name}`))),
    ),
    h("div.bar", {}, args, account),
  );
  row.read = () => {
    const chosen = boxes.filter(([, box]) => box.checked).map(([name]) => name);
    const patterns = parseArguments(args);
    return {
      decision: decision.value,
      ...(tools.value.trim() ? { tools: tools.value.trim() } : {}),
      ...(chosen.length ? { effect: chosen } : {}),
      ...(patterns ? { arguments: patterns } : {}),
      ...(account.value.trim() ? { account: account.value.trim() } : {}),
    };
  };
  return row;
}

const toList = (value) => (value == null ? [] : Array.isArray(value) ? value : [value]);
const input = (label, value, placeholder) =>
  h("input", {
    type: "text",
    "aria-label": label,
    title: label,
    placeholder: placeholder || label,
    value: value ?? "",
    spellcheck: "false",
    autocomplete: "off",
  });

/** Return the patterns, or null without any. Invalid JSON is marked and throws. */
function parseArguments(control) {
  control.removeAttribute("aria-invalid");
  if (!control.value.trim()) return null;
  try {
    return JSON.parse(control.value);
  } catch (error) {
    control.setAttribute("aria-invalid", "true");
    throw new Error(t("check.json", { reason: error.message }), { cause: error });
  }
}
