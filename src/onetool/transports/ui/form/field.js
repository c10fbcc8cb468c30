/** From a schema to the field that asks for it. A field has `element`, `get()` (undefined: nothing given),
 * `set(value)`, `broken()` (what was typed and is no value) and `complain(problems)`. */
import { h } from "../core/h.js";
import { say } from "../core/say.js";
import { kindOf, resolved, withoutNull } from "./schema.js";
import { ChoiceField, ConstantField, JsonField, NumberField, SwitchField, TextField } from "./simple.js";
import { ListField } from "./list.js";
import { ObjectField } from "./object.js";
import { VariantField } from "./variants.js";

const MAX_LEVELS = 12;
const MAX_OPTIONS = 1000;
const FIELDS = {
  constant: ConstantField,
  choice: ChoiceField,
  string: TextField,
  number: NumberField,
  integer: NumberField,
  boolean: SwitchField,
  array: ListField,
  object: ObjectField,
  variants: VariantField,
  null: ConstantField,
  any: JsonField,
};

/** `about` is `{ schema, root, label, required, changed, level }`. */
export function fieldFor(about) {
  const { isNullable, rest } = withoutNull(resolved(about.schema, about.root), about.root);
  const isTooMuch = about.level > MAX_LEVELS || rest.enum?.length > MAX_OPTIONS;
  const kind = isTooMuch ? "any" : kindOf(rest);
  const schema = kind === "null" ? { const: null, ...rest } : rest;
  const own = { ...about, schema, isNullable, level: about.level ?? 0 };
  const field = new (FIELDS[kind] ?? JsonField)(own);
  return isNullable && about.required ? new NullableField(field, own) : field;
}

/** A field that may also be null: a box to tick. Where it may be left out, leaving it out says as much. */
class NullableField {
  constructor(field, { changed }) {
    this.field = field;
    this.box = h("input", { type: "checkbox", onchange: () => (this.#show(), changed()) });
    this.element = h("div.nullable", {}, field.element, h("label.check", {}, this.box, say("form.null")));
  }

  get() {
    return this.box.checked ? null : this.field.get();
  }

  set(value) {
    this.box.checked = value === null;
    this.#show();
    this.field.set(value === null ? undefined : value);
  }

  broken() {
    return this.box.checked ? [] : this.field.broken();
  }

  complain(problems) {
    this.field.complain(problems);
  }

  #show() {
    this.element.classList.toggle("is-null", this.box.checked);
  }
}
