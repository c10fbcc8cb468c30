/** Fields for a single value: string, number, boolean, choice, constant, and JSON for everything else. */
import { h } from "../core/h.js";
import { labeled } from "../core/components.js";
import { truncate, escapeInvisible } from "../core/text.js";
import { t } from "../core/i18n.js";

const MAX_HINT_CHARS = 2000;
const SECRET_FORMATS = new Set(["password"]);

class BasicField {
  constructor(spec, control) {
    this.spec = spec;
    this.control = control;
    control.addEventListener("input", () => spec.onChange());
    this.element = labeled(escapeInvisible(spec.label), control, {
      hint: buildHint(spec),
      required: spec.required && !spec.isItem,
    });
  }

  parseErrors() {
    return [];
  }

  showProblems(problems) {
    this.element.showProblem(problems[0]?.text);
  }
}

export class TextField extends BasicField {
  #isEmptyString = false;

  constructor(spec) {
    super(spec, textControl(spec.schema));
    this.control.addEventListener("input", () => (this.#isEmptyString = false));
  }

  get() {
    return this.control.value || (this.#isEmptyString ? "" : undefined);
  }

  set(value) {
    this.#isEmptyString = value === "";
    this.control.value = value === undefined ? "" : String(value);
  }
}

function textControl(schema) {
  const placeholder = buildPlaceholder(schema);
  const common = { placeholder, spellcheck: "false", autocomplete: "off" };
  if (schema.format === "date") return h("input", { ...common, type: "date" });
  if (SECRET_FORMATS.has(schema.format) || schema.writeOnly) return h("input", { ...common, type: "password" });
  return h("textarea", { ...common, rows: 1, dir: "auto" });
}

export class NumberField extends BasicField {
  constructor(spec) {
    super(spec, h("input", { inputmode: "decimal", autocomplete: "off", placeholder: buildPlaceholder(spec.schema) }));
  }

  get() {
    const text = this.control.value.trim();
    return text === "" || this.parseErrors().length ? undefined : Number(text);
  }

  set(value) {
    this.control.value = value === undefined ? "" : String(value);
  }

  parseErrors() {
    const text = this.control.value.trim();
    if (!text) return [];
    if (!/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(text) || !Number.isFinite(Number(text)))
      return [{ path: [], text: t("check.number") }];
    const isInexact = /^[+-]?\d+$/.test(text) && !Number.isSafeInteger(Number(text));
    return isInexact ? [{ path: [], text: t("check.inexact") }] : [];
  }
}

/** A selection from values of any type. */
class SelectField extends BasicField {
  constructor(spec, values, names) {
    const none =
      spec.schema.default === undefined
        ? t("form.none")
        : t("form.default", { value: toShortJson(spec.schema.default) });
    super(
      spec,
      h(
        "select",
        {},
        h("option", { value: "" }, none),
        values.map((_, index) => h("option", { value: index }, names[index])),
      ),
    );
    this.values = values;
  }

  get() {
    return this.control.value === "" ? undefined : this.values[Number(this.control.value)];
  }

  set(value) {
    const index = this.values.findIndex((one) => JSON.stringify(one) === JSON.stringify(value));
    this.control.value = index < 0 ? "" : index;
  }
}

export class ChoiceField extends SelectField {
  constructor(spec) {
    super(
      spec,
      spec.schema.enum,
      spec.schema.enum.map((value) => (typeof value === "string" ? truncate(value, 200) : toShortJson(value))),
    );
  }
}

export class BooleanField extends SelectField {
  constructor(spec) {
    super(spec, [true, false], ["true", "false"]);
  }
}

/** A field with a fixed value, which is sent if it is required. */
export class ConstantField extends BasicField {
  constructor(spec) {
    super(spec, h("input", { readonly: true, value: toShortJson(spec.schema.const) }));
  }

  get() {
    return this.spec.required ? this.spec.schema.const : this.value;
  }

  set(value) {
    this.value = value;
  }
}

export class JsonField extends BasicField {
  constructor(spec) {
    super(
      spec,
      h("textarea.code", {
        rows: 2,
        spellcheck: "false",
        placeholder: buildPlaceholder(spec.schema) || t("form.json"),
      }),
    );
  }

  get() {
    return this.#parse().value;
  }

  set(value) {
    this.control.value = value === undefined ? "" : JSON.stringify(value, null, 2);
  }

  parseErrors() {
    const { error } = this.#parse();
    return error ? [{ path: [], text: t("check.json", { reason: error }) }] : [];
  }

  #parse() {
    try {
      return this.control.value.trim() ? { value: JSON.parse(this.control.value) } : {};
    } catch (error) {
      return { error: error.message };
    }
  }
}

export const toShortJson = (value) => truncate(JSON.stringify(value) ?? "", 120);

function buildPlaceholder(schema) {
  if (schema.default !== undefined && schema.default !== null)
    return t("form.default", {
      value: typeof schema.default === "string" ? truncate(schema.default, 120) : toShortJson(schema.default),
    });
  return Array.isArray(schema.examples) && schema.examples.length
    ? t("form.example", { value: toShortJson(schema.examples[0]) })
    : "";
}

/** Return the description and the limits of a value. */
export function buildHint({ schema }) {
  const limits = [
    schema.format && !["multi-line"].includes(schema.format) ? schema.format : null,
    schema.minimum !== undefined ? `≥ ${schema.minimum}` : null,
    schema.exclusiveMinimum !== undefined ? `> ${schema.exclusiveMinimum}` : null,
    schema.maximum !== undefined ? `≤ ${schema.maximum}` : null,
    schema.exclusiveMaximum !== undefined ? `< ${schema.exclusiveMaximum}` : null,
    schema.pattern ? t("form.pattern", { pattern: truncate(String(schema.pattern), 80) }) : null,
  ].filter(Boolean);
  return escapeInvisible(
    truncate(
      [schema.description, limits.join(", ")].filter((part) => typeof part === "string" && part).join(" · "),
      MAX_HINT_CHARS,
    ),
  );
}
