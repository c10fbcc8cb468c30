/** Fields of an agent's form. Each reads and shows the value of one setting; undefined stands for the default. */
import { labeled } from "../core/components.js";
import { h } from "../core/h.js";
import { t } from "../core/i18n.js";

const PERMISSIONS = ["read", "write", "exec", "network"];
const BUDGETS = ["calls", "tokens", "cost", "time_seconds"];

export function permissionsField() {
  const boxes = PERMISSIONS.map((name) => [name, h("input", { type: "checkbox", name })]);
  const element = h(
    "fieldset.checks",
    {},
    h("legend", {}, t("agents.permissions")),
    boxes.map(([name, box]) => h("label.check", {}, box, " ", t(`agents.permission.${name}`))),
  );
  return {
    element,
    read: () => boxes.filter(([, box]) => box.checked).map(([name]) => name),
    show: (value) => boxes.forEach(([name, box]) => (box.checked = (value ?? []).includes(name))),
  };
}

/** A list with one entry per line. An empty list is the default, unless `keepsEmpty`. */
export function linesField(key, { rows = 3 } = {}) {
  const area = h("textarea", { rows, spellcheck: "false", autocomplete: "off" });
  return {
    element: labeled(t(`agents.${key}`), area, { hint: t(`agents.${key}.hint`) }),
    read: () => {
      const lines = area.value
        .split("\n")
        .map((line) => line.trim())
        .filter(Boolean);
      return lines.length ? lines : undefined;
    },
    show: (value) => (area.value = (value ?? []).join("\n")),
  };
}

/** The tools: all of them, or those that are listed. */
export function toolsField() {
  const all = h("input", { type: "checkbox" });
  const lines = linesField("tools");
  const update = () => (lines.element.hidden = all.checked);
  all.addEventListener("change", update);
  return {
    element: h("div.stack", {}, h("label.check", {}, all, " ", t("agents.tools.all")), lines.element),
    read: () => (all.checked ? undefined : (lines.read() ?? [])),
    show: (value) => {
      all.checked = value == null;
      lines.show(value);
      update();
    },
  };
}

export function budgetsField() {
  const inputs = BUDGETS.map((name) => [name, h("input", { type: "number", min: 0, step: "any" })]);
  return {
    element: h(
      "fieldset.budgets",
      {},
      h("legend", {}, t("agents.budgets")),
      inputs.map(([name, input]) => labeled(t(`agents.budget.${name}`), input)),
    ),
    read: () => {
      const given = inputs
        .filter(([, input]) => input.value !== "")
        .map(([name, input]) => [name, Number(input.value)]);
      return given.length ? Object.fromEntries(given) : undefined;
    },
    show: (value) => inputs.forEach(([name, input]) => (input.value = value?.[name] ?? "")),
  };
}
