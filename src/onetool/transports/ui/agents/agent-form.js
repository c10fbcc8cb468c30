/** The form of an agent. It knows what the person changed, and keeps that when somebody else changes the agent. */
import { h } from "../core/h.js";
import { t } from "../core/i18n.js";
import { budgetsField, linesField, permissionsField, toolsField } from "./fields.js";
import { policyField } from "./policy-field.js";

/** Settings of the form, by their keys in onetool.yaml. A dot separates the parts of a key. */
const makeFields = () => ({
  permissions: permissionsField(),
  tools: toolsField(),
  policy: policyField(),
  "sandbox.allowed_paths": linesField("directories"),
  "sandbox.denied_patterns": linesField("deniedFiles", { rows: 2 }),
  budgets: budgetsField(),
  clients: linesField("clients", { rows: 2 }),
});

export class AgentForm {
  #fields = makeFields();
  #shown = {}; // the values that the server has, as the fields read them
  #base = {}; // the settings as the file has them

  /** `onChange` is called after each input. */
  constructor(onChange) {
    this.element = h(
      "div.stack.agent-fields",
      { oninput: onChange, onchange: onChange },
      Object.values(this.#fields).map(({ element }) => element),
    );
  }

  /** Show an agent as the server has it. */
  show({ effective, entry }) {
    this.#base = entry.values;
    for (const [key, field] of Object.entries(this.#fields)) field.show(find(effective, key));
    this.#shown = this.#read();
  }

  /** Take over what somebody else changed. What the person typed stays. Return the keys that both changed. */
  rebase({ effective, entry }) {
    const mine = this.changedKeys();
    const before = this.#shown;
    const typed = this.#read();
    this.show({ effective, entry });
    for (const key of mine) this.#fields[key].show(typed[key]);
    return mine.filter((key) => !isEqual(before[key], this.#shown[key]));
  }

  changedKeys() {
    const now = this.#read();
    return Object.keys(this.#fields).filter((key) => !isEqual(now[key], this.#shown[key]));
  }

  get isChanged() {
    return this.changedKeys().length > 0;
  }

  /** Return the changes as a JSON merge patch. */
  readPatch() {
    const now = this.#read();
    const patch = {};
    for (const key of this.changedKeys()) assign(patch, key, patchValue(this.#shown[key], now[key]));
    return patch;
  }

  /** Return all settings as they would be after saving. */
  readDraft() {
    return mergePatch(this.#base, this.readPatch());
  }

  #read() {
    return Object.fromEntries(Object.entries(this.#fields).map(([key, field]) => [key, field.read()]));
  }
}

/** Return the name of a setting for people. */
export const nameSetting = (key) => t(`agents.setting.${key}`);

const find = (values, key) => key.split(".").reduce((value, part) => value?.[part], values);
const isEqual = (one, other) => JSON.stringify(one) === JSON.stringify(other);
const isMapping = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

function assign(values, key, value) {
  const parts = key.split(".");
  const last = parts.pop();
  for (const part of parts) values = values[part] ??= {};
  values[last] = value;
}

/** Return the patch for a value: null removes what is not there any more. */
function patchValue(before, after) {
  if (after === undefined) return null;
  if (!isMapping(before) || !isMapping(after)) return after;
  const removed = Object.keys(before).filter((name) => !(name in after));
  return { ...after, ...Object.fromEntries(removed.map((name) => [name, null])) };
}

function mergePatch(old, patch) {
  if (!isMapping(patch)) return patch;
  const merged = isMapping(old) ? { ...old } : {};
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete merged[key];
    else merged[key] = mergePatch(merged[key], value);
  }
  return merged;
}
