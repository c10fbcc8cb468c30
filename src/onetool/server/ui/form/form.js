/** A form generated from a JSON Schema, synchronized with an editor for the same arguments as JSON. */
import { fill, h } from "../core/h.js";
import { labeled } from "../core/components.js";
import { t } from "../core/i18n.js";
import { findProblems, isObject } from "./validate.js";
import { createField } from "./field.js";

const isWide = matchMedia("(min-width: 1500px)"); // room for both side by side

class Form extends HTMLElement {
  /** `onChange()` is called for every input. */
  configure(schema, { onChange = () => {} } = {}) {
    this.schema = isObject(schema) ? schema : {};
    this.onChange = onChange;
    this.field = createField({
      schema: { type: "object", ...this.schema },
      root: this.schema,
      label: "",
      required: true,
      level: 0,
      onChange: () => this.#onInput(),
    });
    this.raw = h("textarea.code", { rows: 6, spellcheck: "false", oninput: () => this.#onRawInput() });
    this.rawField = labeled(t("form.raw"), this.raw);
    const { properties, additionalProperties: additional } = this.schema;
    const isEmpty = !Object.keys(properties ?? {}).length;
    const isUndeclared = properties === undefined && additional === undefined && Object.keys(this.schema).length > 0;
    const hasNoArguments = isEmpty && !additional && !isUndeclared;
    fill(
      this,
      h(
        "div.fields",
        {},
        isEmpty ? h("p.hint", {}, t(hasNoArguments ? "form.noArguments" : "form.undeclared")) : null,
        this.field.element,
      ),
      h(
        "details.raw",
        { open: isWide.matches || (isEmpty && !hasNoArguments) },
        h("summary", {}, t("form.raw")),
        this.rawField,
      ),
    );
    this.#showRaw();
    return this;
  }

  get value() {
    return this.field.get() ?? {};
  }

  set value(value) {
    this.field.set(value);
    this.#showRaw();
    this.#clear();
    this.onChange();
  }

  /** Return whether the arguments are valid. Problems are shown beside their fields, and the first gets the focus. */
  check() {
    const invalid = this.field.parseErrors();
    const found = [
      ...invalid,
      ...findProblems({ type: "object", ...this.schema }, this.value, this.schema).filter(
        ({ path }) => !invalid.some((one) => isEqual(one.path, path)),
      ),
    ];
    this.field.showProblems(found);
    const isRawBroken = this.raw.getAttribute("aria-invalid") === "true";
    if (found.length || isRawBroken) this.querySelector("[aria-invalid=true]")?.focus();
    return !found.length && !isRawBroken;
  }

  /** Show a problem that the server reports beside its argument. */
  showProblem(path, text) {
    this.field.showProblems([{ path, text }]);
    this.querySelector("[aria-invalid=true]")?.focus();
  }

  #onInput() {
    this.#showRaw();
    if (this.querySelector(".problem:not([hidden])")) this.#recheck();
    this.onChange();
  }

  #recheck() {
    const focused = document.activeElement;
    this.check();
    focused?.focus();
  }

  #onRawInput() {
    try {
      const value = JSON.parse(this.raw.value.trim() || "{}");
      if (!isObject(value)) throw new Error(t("check.object"));
      this.field.set(value);
      this.rawField.showProblem();
      this.#clear();
    } catch (error) {
      this.rawField.showProblem(t("check.json", { reason: error.message }));
    }
    this.onChange();
  }

  #showRaw() {
    this.raw.value = JSON.stringify(this.value, null, 2);
    this.rawField.showProblem();
  }

  #clear() {
    this.field.showProblems([]);
  }
}

const isEqual = (one, other) => one.length === other.length && one.every((step, index) => step === other[index]);

customElements.define("ot-form", Form);
export const form = (schema, options) => document.createElement("ot-form").configure(schema, options);
