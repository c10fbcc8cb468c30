/** The fields of an agent's form. */
import { labeled } from "../core/components.js";
import { h } from "../core/h.js";
import { t } from "../core/i18n.js";
import { limitedField, linesField } from "../settings/fields.js";
import { policyField } from "./policy-field.js";

const PERMISSIONS = ["read", "write", "exec", "network"];
const BUDGETS = ["calls", "tokens", "cost", "time_seconds"];

/** Return the fields by their keys. Those that the server does not know, because it is older, are left out. */
export function makeFields(knownKeys) {
  const fields = {
    permissions: permissionsField(),
    tools: limitedField(t("agents.tools"), { all: t("agents.tools.all"), hint: t("agents.tools.hint") }),
    hosts: limitedField(t("agents.ownHosts"), { all: t("agents.ownHosts.all"), hint: t("agents.ownHosts.hint") }),
    policy: policyField(),
    "sandbox.allowed_paths": linesField(t("agents.directories"), { hint: t("agents.directories.hint") }),
    "sandbox.denied_patterns": linesField(t("agents.deniedFiles"), { hint: t("agents.deniedFiles.hint"), rows: 2 }),
    budgets: budgetsField(),
    clients: linesField(t("agents.clients"), { hint: t("agents.clients.hint"), rows: 2 }),
  };
  return Object.fromEntries(Object.entries(fields).filter(([key]) => knownKeys.includes(key.split(".")[0])));
}

/** Return the name of a setting for people. */
export const nameSetting = (key) => t(`agents.setting.${key}`);

function permissionsField() {
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

function budgetsField() {
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
