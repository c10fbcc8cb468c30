/** A form for settings. It knows what the person changed, and keeps that when somebody else changes the settings. */
import { h } from "../core/h.js";
import { t } from "../core/i18n.js";

const REDACTED = "[REDACTED]"; // what the server shows instead of a secret

export class SettingsForm {
  #makeFields;
  #fields;
  #shown = {}; // the values that the server has, as the fields read them
  #base = {}; // the settings as the file has them

  /** `makeFields()` returns fields by their keys in onetool.yaml, in which a dot separates the parts. A field is
   * `{ element, read, show }`; it reads undefined for the default. `onChange` is called after each input. */
  constructor(makeFields, onChange = () => {}) {
    this.#makeFields = makeFields;
    this.#fields = makeFields();
    this.element = h(
      "div.stack",
      { oninput: onChange, onchange: onChange },
      Object.values(this.#fields).map(({ element }) => element),
    );
  }

  /** Show settings as the server has them. `values` are those in the file, `effective` those with defaults. */
  show({ effective, values }) {
    this.#base = values;
    for (const [key, field] of Object.entries(this.#fields)) field.show(find(effective, key));
    this.#shown = read(this.#fields);
  }

  /** Show values by their keys, as if a person had entered them. */
  fill(values) {
    for (const [key, value] of Object.entries(values)) this.#fields[key]?.show(value);
    this.element.dispatchEvent(new Event("input", { bubbles: true }));
  }

  /** Take over what somebody else changed. What the person typed is not touched. Return the keys that both changed. */
  rebase({ effective, values }) {
    const mine = this.changedKeys();
    const before = this.#shown;
    this.#base = values;
    this.#shown = this.#readAs(effective);
    const changed = Object.keys(this.#fields).filter((key) => !isEqual(before[key], this.#shown[key]));
    for (const key of changed) if (!mine.includes(key)) this.#fields[key].show(find(effective, key));
    return mine.filter((key) => changed.includes(key));
  }

  /** Treat everything as input, because somebody else removed the settings. */
  detach() {
    this.#base = {};
    this.#shown = this.#readAs({});
  }

  /** Return the keys that the person changed, including those with invalid input. */
  changedKeys() {
    const isChanged = ([key, field]) => {
      try {
        return !isEqual(field.read(), this.#shown[key]);
      } catch {
        return true;
      }
    };
    return Object.entries(this.#fields).filter(isChanged).map(([key]) => key);
  }

  get isChanged() {
    return this.changedKeys().length > 0;
  }

  /** Return the changes as a JSON merge patch. Throw if some input is invalid. */
  readPatch() {
    const now = read(this.#fields);
    const patch = {};
    for (const key of this.changedKeys()) assign(patch, key, patchValue(this.#shown[key], now[key]));
    for (const [name, value] of Object.entries(patch))
      if (isMapping(value) && !Object.keys(mergePatch(this.#base[name], value)).length) patch[name] = null;
    if (JSON.stringify(patch).includes(REDACTED)) throw new Error(t("settings.redacted"));
    return patch;
  }

  /** Return all settings as they would be after saving. */
  readDraft() {
    return mergePatch(this.#base, this.readPatch());
  }

  /** Return what the fields would read if they showed these settings. */
  #readAs(effective) {
    const fields = this.#makeFields();
    for (const [key, field] of Object.entries(fields)) field.show(find(effective, key));
    return read(fields);
  }
}

const read = (fields) => Object.fromEntries(Object.entries(fields).map(([key, field]) => [key, field.read()]));
const find = (values, key) => key.split(".").reduce((value, part) => value?.[part], values);
const isEqual = (one, other) => JSON.stringify(one) === JSON.stringify(other);
const isMapping = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

function assign(values, key, value) {
  const parts = key.split(".");
  const last = parts.pop();
  for (const part of parts) values = values[part] ??= {};
  values[last] = value;
}

/** Return the patch for a value. In a mapping, only changed entries are part of it; null removes one. */
function patchValue(before, after) {
  if (after === undefined) return null;
  if (!isMapping(before) || !isMapping(after)) return after;
  const names = Object.keys({ ...before, ...after }).filter((name) => !isEqual(before[name], after[name]));
  return Object.fromEntries(names.map((name) => [name, after[name] ?? null]));
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
