/** Creates the field for a schema. A field has `element`, `get()` (undefined if empty), `set(value)`, `parseErrors()`
 * (problems of text that is not a value) and `showProblems(problems)`. */
import { h } from "../core/h.js";
import { t } from "../core/i18n.js";
import { getKind, resolve, withoutNull } from "./schema.js";
import { ChoiceField, ConstantField, JsonField, NumberField, BooleanField, TextField } from "./basic-fields.js";
import { ListField } from "./list-field.js";
import { ObjectField } from "./object-field.js";
import { VariantField } from "./variant-field.js";

const MAX_LEVELS = 12;
const MAX_OPTIONS = 1000;
const FIELDS = {
  constant: ConstantField,
  choice: ChoiceField,
  string: TextField,
  number: NumberField,
  integer: NumberField,
  boolean: BooleanField,
  array: ListField,
  object: ObjectField,
  variants: VariantField,
  null: ConstantField,
  any: JsonField,
};

/** `spec` is `{ schema, root, label, required, onChange, level }`. */
export function createField(spec) {
  const { isNullable, rest } = withoutNull(resolve(spec.schema, spec.root), spec.root);
  const isTooComplex = spec.level > MAX_LEVELS || rest.enum?.length > MAX_OPTIONS;
  const kind = isTooComplex ? "any" : getKind(rest);
  const schema = kind === "null" ? { const: null, ...rest } : rest;
  const options = { ...spec, schema, isNullable, level: spec.level ?? 0 };
  const field = new (FIELDS[kind] ?? JsonField)(options);
  return isNullable && spec.required ? new NullableField(field, options) : field;
}

/** A required field that may be null, with a checkbox. Optional fields are omitted instead. */
class NullableField {
  constructor(field, { onChange }) {
    this.field = field;
    this.box = h("input", { type: "checkbox", onchange: () => (this.#show(), onChange()) });
    this.element = h("div.nullable", {}, field.element, h("label.check", {}, this.box, t("form.null")));
  }

  get() {
    return this.box.checked ? null : this.field.get();
  }

  set(value) {
    this.box.checked = value === null;
    this.#show();
    this.field.set(value === null ? undefined : value);
  }

  parseErrors() {
    return this.box.checked ? [] : this.field.parseErrors();
  }

  showProblems(problems) {
    this.field.showProblems(problems);
  }

  #show() {
    this.element.classList.toggle("is-null", this.box.checked);
  }
}
