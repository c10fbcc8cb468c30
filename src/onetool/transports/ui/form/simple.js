/** Fields for one value: text, a number, yes or no, a choice, something fixed, and JSON for all that has no form. */
import { h } from "../core/h.js";
import { labelled } from "../core/parts.js";
import { clipped, visible } from "../core/text.js";
import { say } from "../core/say.js";

const MAX_HINT = 2000;
const SECRETS = new Set(["password"]);

class Simple {
  constructor(about, control) {
    this.about = about;
    this.control = control;
    control.addEventListener("input", () => about.changed());
    this.element = labelled(visible(about.label), control, {
      hint: hintOf(about),
      required: about.required && !about.isItem,
    });
  }

  broken() {
    return [];
  }

  complain(problems) {
    this.element.complain(problems[0]?.text);
  }
}

export class TextField extends Simple {
  #isEmptyText = false;

  constructor(about) {
    super(about, textControl(about.schema));
    this.control.addEventListener("input", () => (this.#isEmptyText = false));
  }

  get() {
    return this.control.value || (this.#isEmptyText ? "" : undefined);
  }

  set(value) {
    this.#isEmptyText = value === "";
    this.control.value = value === undefined ? "" : String(value);
  }
}

function textControl(schema) {
  const placeholder = placeholderOf(schema);
  const common = { placeholder, spellcheck: "false", autocomplete: "off" };
  if (schema.format === "date") return h("input", { ...common, type: "date" });
  if (SECRETS.has(schema.format) || schema.writeOnly) return h("input", { ...common, type: "password" });
  return h("textarea", { ...common, rows: 1, dir: "auto" });
}

export class NumberField extends Simple {
  constructor(about) {
    super(about, h("input", { inputmode: "decimal", autocomplete: "off", placeholder: placeholderOf(about.schema) }));
  }

  get() {
    const text = this.control.value.trim();
    return text === "" || this.broken().length ? undefined : Number(text);
  }

  set(value) {
    this.control.value = value === undefined ? "" : String(value);
  }

  broken() {
    const text = this.control.value.trim();
    if (!text) return [];
    if (!/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(text) || !Number.isFinite(Number(text)))
      return [{ path: [], text: say("check.number") }];
    const isInexact = /^[+-]?\d+$/.test(text) && !Number.isSafeInteger(Number(text));
    return isInexact ? [{ path: [], text: say("check.inexact") }] : [];
  }
}

/** A choice of values of any kind. */
class Options extends Simple {
  constructor(about, values, names) {
    const none =
      about.schema.default === undefined
        ? say("form.none")
        : say("form.default", { value: short(about.schema.default) });
    super(
      about,
      h(
        "select",
        {},
        h("option", { value: "" }, none),
        values.map((_, place) => h("option", { value: place }, names[place])),
      ),
    );
    this.values = values;
  }

  get() {
    return this.control.value === "" ? undefined : this.values[Number(this.control.value)];
  }

  set(value) {
    const place = this.values.findIndex((one) => JSON.stringify(one) === JSON.stringify(value));
    this.control.value = place < 0 ? "" : place;
  }
}

export class ChoiceField extends Options {
  constructor(about) {
    super(
      about,
      about.schema.enum,
      about.schema.enum.map((value) => (typeof value === "string" ? clipped(value, 200) : short(value))),
    );
  }
}

export class SwitchField extends Options {
  constructor(about) {
    super(about, [true, false], ["true", "false"]);
  }
}

/** There is only one value; it is sent where one must be. */
export class ConstantField extends Simple {
  constructor(about) {
    super(about, h("input", { readonly: true, value: short(about.schema.const) }));
  }

  get() {
    return this.about.required ? this.about.schema.const : this.given;
  }

  set(value) {
    this.given = value;
  }
}

export class JsonField extends Simple {
  constructor(about) {
    super(
      about,
      h("textarea.code", {
        rows: 2,
        spellcheck: "false",
        placeholder: placeholderOf(about.schema) || say("form.json"),
      }),
    );
  }

  get() {
    return this.#read().value;
  }

  set(value) {
    this.control.value = value === undefined ? "" : JSON.stringify(value, null, 2);
  }

  broken() {
    const { error } = this.#read();
    return error ? [{ path: [], text: say("check.json", { reason: error }) }] : [];
  }

  #read() {
    try {
      return this.control.value.trim() ? { value: JSON.parse(this.control.value) } : {};
    } catch (error) {
      return { error: error.message };
    }
  }
}

export const short = (value) => clipped(JSON.stringify(value) ?? "", 120);

function placeholderOf(schema) {
  if (schema.default !== undefined && schema.default !== null)
    return say("form.default", {
      value: typeof schema.default === "string" ? clipped(schema.default, 120) : short(schema.default),
    });
  return Array.isArray(schema.examples) && schema.examples.length
    ? say("form.example", { value: short(schema.examples[0]) })
    : "";
}

/** What the tool says about it, and what may be given. */
export function hintOf({ schema }) {
  const limits = [
    schema.format && !["multi-line"].includes(schema.format) ? schema.format : null,
    schema.minimum !== undefined ? `≥ ${schema.minimum}` : null,
    schema.exclusiveMinimum !== undefined ? `> ${schema.exclusiveMinimum}` : null,
    schema.maximum !== undefined ? `≤ ${schema.maximum}` : null,
    schema.exclusiveMaximum !== undefined ? `< ${schema.exclusiveMaximum}` : null,
    schema.pattern ? say("form.pattern", { pattern: clipped(String(schema.pattern), 80) }) : null,
  ].filter(Boolean);
  return visible(
    clipped(
      [schema.description, limits.join(", ")].filter((part) => typeof part === "string" && part).join(" · "),
      MAX_HINT,
    ),
  );
}
