/** The arguments of a stored tool, line by line; a schema that says more than lines can is edited as JSON. */
import { fill, h } from "../core/h.js";
import { labelled, quiet } from "../core/parts.js";
import { say } from "../core/say.js";

const TYPES = ["string", "integer", "number", "boolean", "array", "object"];
const PLAIN = new Set(["type", "description"]);

/** Whether lines can say all of it. */
function isPlain(schema) {
  const { type = "object", properties = {}, required: _, additionalProperties: others = true, ...rest } = schema;
  const lines = Object.values(properties);
  return (
    type === "object" &&
    typeof others === "boolean" &&
    !Object.keys(rest).length &&
    lines.every((one) => one && TYPES.includes(one.type) && Object.keys(one).every((key) => PLAIN.has(key)))
  );
}

class Arguments extends HTMLElement {
  use(schema = {}) {
    this.raw = labelled(say("arguments.raw"), h("textarea.code", { rows: 6, spellcheck: "false" }));
    this.rows = h("div.arguments");
    this.isRaw = !isPlain(schema);
    this.others = schema.additionalProperties;
    this.switch = quiet(say("arguments.asJson"), () => this.#asJson());
    this.lines = h(
      "fieldset",
      {},
      h("legend", {}, say("arguments.title")),
      this.rows,
      h(
        "div.actions",
        {},
        quiet(say("arguments.add"), () => this.add().querySelector("input").focus(), { class: "quiet add" }),
        this.switch,
      ),
    );
    const required = new Set(schema.required ?? []);
    if (this.isRaw) this.raw.control.value = JSON.stringify(schema, null, 2);
    else for (const [name, one] of Object.entries(schema.properties ?? {})) this.add(name, one, required.has(name));
    this.#show();
    return this;
  }

  /** Raises what is wrong with JSON that a person wrote. */
  get value() {
    if (this.isRaw) return JSON.parse(this.raw.control.value);
    const rows = [...this.rows.children].map((row) => row.read()).filter(({ name }) => name);
    const properties = Object.fromEntries(
      rows.map(({ name, type, description }) => [name, { type, ...(description ? { description } : {}) }]),
    );
    const required = rows.filter((row) => row.isRequired).map(({ name }) => name);
    return {
      type: "object",
      properties,
      ...(required.length ? { required } : {}),
      additionalProperties: this.others ?? false,
    };
  }

  get names() {
    return this.isRaw ? null : new Set([...this.rows.children].map((row) => row.read().name));
  }

  add(name = "", { type = "string", description = "" } = {}, isRequired = true) {
    const input = (word, value) =>
      h("input", { "aria-label": say(word), placeholder: say(word), value, spellcheck: "false", autocomplete: "off" });
    const fields = { name: input("arguments.name", name), description: input("arguments.about", description) };
    const kind = h(
      "select",
      { "aria-label": say("arguments.type") },
      TYPES.map((one) => h("option", { value: one }, one)),
    );
    kind.value = type;
    const box = h("input", { type: "checkbox", checked: isRequired });
    const row = h(
      "div.argument",
      {},
      fields.name,
      kind,
      h("label.check", {}, box, say("form.required")),
      fields.description,
      quiet("×", () => row.remove(), { "aria-label": say("pairs.remove") }),
    );
    row.read = () => ({
      name: fields.name.value.trim(),
      type: kind.value,
      description: fields.description.value.trim(),
      isRequired: box.checked,
    });
    this.rows.append(row);
    return row;
  }

  #asJson() {
    this.raw.control.value = JSON.stringify(this.value, null, 2);
    this.isRaw = true;
    this.#show();
  }

  #show() {
    fill(this, this.isRaw ? this.raw : this.lines);
  }
}

customElements.define("ot-arguments", Arguments);
export const argumentsOf = (schema) => document.createElement("ot-arguments").use(schema);
