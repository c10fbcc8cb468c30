/** A field for an array. Items can be added and removed. */
import { fill, h, newId } from "../core/h.js";
import { quietButton } from "../core/components.js";
import { t } from "../core/i18n.js";
import { createField } from "./field.js";
import { buildHint } from "./basic-fields.js";

const MAX_ITEMS = 500;

export class ListField {
  #items = [];
  #hasValue = false;

  constructor(spec) {
    this.spec = spec;
    const id = newId("list");
    this.list = h("ol.items", { "aria-label": spec.label });
    this.problem = h("p.problem", { id, hidden: true });
    this.element = h(
      "fieldset.nested",
      { "aria-describedby": id },
      h("legend", {}, spec.label, spec.required ? h("span.required", {}, " *") : null),
      h("p.hint", { hidden: !buildHint(spec) }, buildHint(spec)),
      this.list,
      quietButton(t("form.add"), () => this.#addEmpty(), { class: "quiet add" }),
      this.problem,
    );
    for (
      let index = 0;
      index < Math.min(spec.required && spec.level < 2 ? (spec.schema.minItems ?? 0) : 0, 20);
      index += 1
    )
      this.#add();
  }

  get() {
    if (!this.#items.length) return this.#hasValue || this.spec.required ? [] : undefined;
    return this.#items.map((item) => item.get() ?? (item.spec?.schema.type === "string" ? "" : null));
  }

  set(value) {
    this.#items = [];
    fill(this.list);
    this.#hasValue = Array.isArray(value);
    if (this.#hasValue) value.slice(0, MAX_ITEMS).forEach((item) => this.#add(item));
  }

  parseErrors() {
    return this.#items.flatMap((item, index) =>
      item.parseErrors().map(({ path, text }) => ({ path: [index, ...path], text })),
    );
  }

  showProblems(problems) {
    const problem = problems.find(({ path }) => !path.length);
    fill(this.problem, problem?.text ?? "").hidden = !problem;
    this.#items.forEach((item, index) => item.showProblems(selectProblems(problems, index)));
  }

  #add(value) {
    const { schema, root, onChange, level } = this.spec;
    const index = this.#items.length;
    const itemSchema = schema.prefixItems?.[index] ?? schema.items ?? {};
    const item = createField({
      schema: itemSchema,
      root,
      label: t("form.item", { n: index + 1 }),
      required: true,
      isItem: true,
      onChange,
      level: level + 1,
    });
    if (value !== undefined) item.set(value);
    this.#items.push(item);
    this.list.append(
      h(
        "li",
        {},
        item.element,
        quietButton("×", () => this.#remove(item), {
          class: "quiet remove",
          "aria-label": t("form.remove", { n: index + 1 }),
        }),
      ),
    );
    return item;
  }

  #addEmpty() {
    this.#add().element.querySelector("input, textarea, select, button")?.focus();
    this.spec.onChange();
  }

  #remove(item) {
    const values = this.#items.filter((one) => one !== item).map((one) => one.get());
    this.set(values.map((value) => value ?? null));
    this.spec.onChange();
  }
}

export const selectProblems = (problems, step) =>
  problems.filter(({ path }) => path[0] === step).map(({ path, text }) => ({ path: path.slice(1), text }));
