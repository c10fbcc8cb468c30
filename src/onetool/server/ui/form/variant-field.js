/** A field for alternatives (`anyOf`, `oneOf`): a selection, and the field of the selected schema. */
import { fill, h } from "../core/h.js";
import { labeled } from "../core/components.js";
import { t } from "../core/i18n.js";
import { truncate } from "../core/text.js";
import { isValid } from "./validate.js";
import { createField } from "./field.js";
import { getKind, variants } from "./schema.js";
import { buildHint, toShortJson } from "./basic-fields.js";

export class VariantField {
  #field = null;

  constructor(spec) {
    this.spec = spec;
    this.options = variants(spec.schema, spec.root);
    this.selection = h(
      "select",
      { onchange: () => (this.#select(Number(this.selection.value)), spec.onChange()) },
      this.options.map((option, index) => h("option", { value: index }, getOptionName(option, index))),
    );
    this.body = h("div.variant");
    this.head = labeled(spec.label, this.selection, { hint: buildHint(spec), required: spec.required });
    this.element = h("div.variants", {}, this.head, this.body);
    this.#select(0);
  }

  get() {
    return this.#field.get();
  }

  set(value) {
    if (value !== undefined) {
      const index = this.options.findIndex((option) => isValid(option, value, this.spec.root));
      this.selection.value = Math.max(0, index);
      this.#select(Math.max(0, index));
    }
    this.#field.set(value);
  }

  parseErrors() {
    return this.#field.parseErrors();
  }

  showProblems(problems) {
    this.#field.showProblems(problems);
  }

  #select(index) {
    const { default: _, description: __, ...schema } = this.options[index];
    this.#field = createField({
      ...this.spec,
      schema,
      label: getOptionName(this.options[index], index),
      level: this.spec.level + 1,
      isOpen: true,
    });
    fill(this.body, this.#field.element);
  }
}

function getOptionName(option, index) {
  if (typeof option.title === "string") return truncate(option.title, 80);
  if ("const" in option) return toShortJson(option.const);
  const kind = getKind(option);
  return ["variants", "choice", "any"].includes(kind) ? t("form.variant", { n: index + 1 }) : kind;
}
