/** A field for what may be one of several things: which of them, and then its own field. */
import { fill, h } from "../core/h.js";
import { labelled } from "../core/parts.js";
import { say } from "../core/say.js";
import { clipped } from "../core/text.js";
import { fits } from "./check.js";
import { fieldFor } from "./field.js";
import { kindOf, variants } from "./schema.js";
import { hintOf, short } from "./simple.js";

export class VariantField {
  #field = null;

  constructor(about) {
    this.about = about;
    this.options = variants(about.schema, about.root);
    this.choice = h(
      "select",
      { onchange: () => (this.#choose(Number(this.choice.value)), about.changed()) },
      this.options.map((option, place) => h("option", { value: place }, nameOf(option, place))),
    );
    this.body = h("div.variant");
    this.head = labelled(about.label, this.choice, { hint: hintOf(about), required: about.required });
    this.element = h("div.variants", {}, this.head, this.body);
    this.#choose(0);
  }

  get() {
    return this.#field.get();
  }

  set(value) {
    if (value !== undefined) {
      const place = this.options.findIndex((option) => fits(option, value, this.about.root));
      this.choice.value = Math.max(0, place);
      this.#choose(Math.max(0, place));
    }
    this.#field.set(value);
  }

  broken() {
    return this.#field.broken();
  }

  complain(problems) {
    this.#field.complain(problems);
  }

  #choose(place) {
    const { default: _, description: __, ...schema } = this.options[place];
    this.#field = fieldFor({
      ...this.about,
      schema,
      label: nameOf(this.options[place], place),
      level: this.about.level + 1,
      isOpen: true,
    });
    fill(this.body, this.#field.element);
  }
}

function nameOf(option, place) {
  if (typeof option.title === "string") return clipped(option.title, 80);
  if ("const" in option) return short(option.const);
  const kind = kindOf(option);
  return ["variants", "choice", "any"].includes(kind) ? say("form.variant", { n: place + 1 }) : kind;
}
