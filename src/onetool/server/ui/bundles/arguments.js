/** Editor for the arguments of a stored tool: one row per argument, or JSON for schemas that rows cannot represent. */
import { fill, h } from "../core/h.js";
import { labeled, quietButton } from "../core/components.js";
import { t } from "../core/i18n.js";

const TYPES = ["string", "integer", "number", "boolean", "array", "object"];
const SIMPLE_KEYS = new Set(["type", "description"]);

/** Whether rows can represent the schema. */
function isSimple(schema) {
  const { type = "object", properties = {}, required: _, additionalProperties: additional = true, ...rest } = schema;
  const lines = Object.values(properties);
  return (
    type === "object" &&
    typeof additional === "boolean" &&
    !Object.keys(rest).length &&
    lines.every((one) => one && TYPES.includes(one.type) && Object.keys(one).every((key) => SIMPLE_KEYS.has(key)))
  );
}

class ArgumentsEditor extends HTMLElement {
  configure(schema = {}) {
    this.raw = labeled(t("arguments.raw"), h("textarea.code", { rows: 6, spellcheck: "false" }));
    this.rows = h("div.arguments");
    this.isRaw = !isSimple(schema);
    this.additionalProperties = schema.additionalProperties;
    this.switch = quietButton(t("arguments.asJson"), () => this.#switchToJson());
    this.table = h(
      "fieldset",
      {},
      h("legend", {}, t("arguments.title")),
      this.rows,
      h(
        "div.actions",
        {},
        quietButton(t("arguments.add"), () => this.add().querySelector("input").focus(), { class: "quiet add" }),
        this.switch,
      ),
    );
    const required = new Set(schema.required ?? []);
    if (this.isRaw) this.raw.control.value = JSON.stringify(schema, null, 2);
    else for (const [name, one] of Object.entries(schema.properties ?? {})) this.add(name, one, required.has(name));
    this.#show();
    return this;
  }

  /** Throws a SyntaxError if the user entered invalid JSON. */
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
      additionalProperties: this.additionalProperties ?? false,
    };
  }

  get names() {
    return this.isRaw ? null : new Set([...this.rows.children].map((row) => row.read().name));
  }

  add(name = "", { type = "string", description = "" } = {}, isRequired = true) {
    const input = (key, value) =>
      h("input", { "aria-label": t(key), placeholder: t(key), value, spellcheck: "false", autocomplete: "off" });
    const fields = { name: input("arguments.name", name), description: input("arguments.about", description) };
    const kind = h(
      "select",
      { "aria-label": t("arguments.type") },
      TYPES.map((one) => h("option", { value: one }, one)),
    );
    kind.value = type;
    const box = h("input", { type: "checkbox", checked: isRequired });
    const row = h(
      "div.argument",
      {},
      fields.name,
      kind,
      h("label.check", {}, box, t("form.required")),
      fields.description,
      quietButton("×", () => row.remove(), { "aria-label": t("pairs.remove") }),
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

  #switchToJson() {
    this.raw.control.value = JSON.stringify(this.value, null, 2);
    this.isRaw = true;
    this.#show();
  }

  #show() {
    fill(this, this.isRaw ? this.raw : this.table);
  }
}

customElements.define("ot-arguments", ArgumentsEditor);
export const argumentsEditor = (schema) => document.createElement("ot-arguments").configure(schema);
