/** A form made of a tool's schema, with the same arguments as JSON beside it. Each shows what is written in the
 * other. */
import { fill, h } from "../core/h.js";
import { labelled } from "../core/parts.js";
import { say } from "../core/say.js";
import { isObject, problems } from "./check.js";
import { fieldFor } from "./field.js";

const isWide = matchMedia("(min-width: 1500px)"); // enough for both side by side

class Form extends HTMLElement {
  /** `changed()` is told of every letter. */
  use(schema, { changed = () => {} } = {}) {
    this.schema = isObject(schema) ? schema : {};
    this.changed = changed;
    this.field = fieldFor({
      schema: { type: "object", ...this.schema },
      root: this.schema,
      label: "",
      required: true,
      level: 0,
      changed: () => this.#typed(),
    });
    this.raw = h("textarea.code", { rows: 6, spellcheck: "false", oninput: () => this.#rawTyped() });
    this.rawField = labelled(say("form.raw"), this.raw);
    const { properties, additionalProperties: others } = this.schema;
    const isEmpty = !Object.keys(properties ?? {}).length;
    const isSilent = properties === undefined && others === undefined && Object.keys(this.schema).length > 0;
    const takesNothing = isEmpty && !others && !isSilent;
    fill(
      this,
      h(
        "div.fields",
        {},
        isEmpty ? h("p.hint", {}, say(takesNothing ? "form.nothing" : "form.free")) : null,
        this.field.element,
      ),
      h(
        "details.raw",
        { open: isWide.matches || (isEmpty && !takesNothing) },
        h("summary", {}, say("form.raw")),
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
    this.changed();
  }

  /** Whether it can be sent; what is wrong stands beside its field, and the first of it has the focus. */
  check() {
    const broken = this.field.broken();
    const found = [
      ...broken,
      ...problems({ type: "object", ...this.schema }, this.value, this.schema).filter(
        ({ path }) => !broken.some((one) => isSame(one.path, path)),
      ),
    ];
    this.field.complain(found);
    const isRawBroken = this.raw.getAttribute("aria-invalid") === "true";
    if (found.length || isRawBroken) this.querySelector("[aria-invalid=true]")?.focus();
    return !found.length && !isRawBroken;
  }

  /** What the server has to say, beside the argument that it is about. */
  complain(name, text) {
    this.field.complain([{ path: name, text }]);
    this.querySelector("[aria-invalid=true]")?.focus();
  }

  #typed() {
    this.#showRaw();
    if (this.querySelector(".problem:not([hidden])")) this.#recheck();
    this.changed();
  }

  #recheck() {
    const focused = document.activeElement;
    this.check();
    focused?.focus();
  }

  #rawTyped() {
    try {
      const value = JSON.parse(this.raw.value.trim() || "{}");
      if (!isObject(value)) throw new Error(say("check.object"));
      this.field.set(value);
      this.rawField.complain();
      this.#clear();
    } catch (error) {
      this.rawField.complain(say("check.json", { reason: error.message }));
    }
    this.changed();
  }

  #showRaw() {
    this.raw.value = JSON.stringify(this.value, null, 2);
    this.rawField.complain();
  }

  #clear() {
    this.field.complain([]);
  }
}

const isSame = (one, other) => one.length === other.length && one.every((step, place) => step === other[place]);

customElements.define("ot-form", Form);
export const form = (schema, given) => document.createElement("ot-form").use(schema, given);
