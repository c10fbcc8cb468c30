/** A field for an object, with a field for each property and, if allowed, for additional properties. */
import { fill, h } from "../core/h.js";
import { button, quietButton } from "../core/components.js";
import { t } from "../core/i18n.js";
import { createField } from "./field.js";
import { selectProblems } from "./list-field.js";
import { buildHint } from "./basic-fields.js";

const MAX_LEVELS_OPEN = 2;
const MAX_FIELDS = 200;

export class ObjectField {
  #fields = null;
  #extras = new Map();
  #hasValue = false;

  constructor(spec) {
    this.spec = spec;
    this.body = h("div.properties");
    this.problem = h("p.problem", { hidden: true });
    this.element = spec.level === 0 ? h("div.object", {}, this.body, this.problem) : this.#nested();
    if (spec.level === 0 || this.element.open) this.#build();
  }

  get() {
    if (!this.#fields) return this.spec.required ? {} : undefined;
    const entries = [...this.#fields, ...this.#extras]
      .map(([name, field]) => [name, field.get()])
      .filter(([, value]) => value !== undefined);
    const isIncluded = entries.length || this.spec.required || this.#hasValue || this.spec.level === 0;
    return isIncluded ? Object.fromEntries(entries) : undefined;
  }

  set(value) {
    this.#hasValue = value !== undefined;
    if (value === undefined && !this.#fields) return;
    this.#build();
    const properties = value !== null && typeof value === "object" ? value : {};
    for (const [name, field] of this.#fields) field.set(Object.hasOwn(properties, name) ? properties[name] : undefined);
    this.#extras.clear();
    fill(this.additional);
    for (const [name, item] of Object.entries(properties)) if (!this.#fields.has(name)) this.#addExtra(name).set(item);
    if (this.#hasValue && this.element.tagName === "DETAILS") this.element.open = true;
  }

  parseErrors() {
    return this.#all().flatMap(([name, field]) =>
      field.parseErrors().map(({ path, text }) => ({ path: [name, ...path], text })),
    );
  }

  showProblems(problems) {
    const known = new Set(this.#all().map(([name]) => name));
    const problem = problems.find(({ path }) => !path.length || !known.has(path[0]));
    fill(this.problem, problem ? [problem.path.length ? `${problem.path.join(".")}: ` : "", problem.text] : "").hidden =
      !problem;
    for (const [name, field] of this.#all()) field.showProblems(selectProblems(problems, name));
    if (problems.length && this.element.tagName === "DETAILS") this.element.open = true;
  }

  #all() {
    return this.#fields ? [...this.#fields, ...this.#extras] : [];
  }

  #nested() {
    const { label, required, level, isOpen, isItem } = this.spec;
    const hint = buildHint(this.spec);
    return h(
      "details.nested",
      {
        open: isOpen || (Boolean(required) && level <= MAX_LEVELS_OPEN),
        ontoggle: () => this.element.open && this.#build(),
      },
      h("summary", {}, label, required && !isItem ? h("span.required", {}, " *") : null),
      hint ? h("p.hint", {}, hint) : null,
      this.body,
      this.problem,
    );
  }

  #build() {
    if (this.#fields) return;
    const { schema, root, onChange, level } = this.spec;
    const required = new Set(schema.required ?? []);
    const names = Object.keys(schema.properties ?? {});
    const ordered = [...names.filter((name) => required.has(name)), ...names.filter((name) => !required.has(name))];
    const hiddenCount = ordered.splice(MAX_FIELDS).length;
    this.#fields = new Map(
      ordered.map((name) => [
        name,
        createField({
          schema: schema.properties[name],
          root,
          label: name,
          required: required.has(name),
          onChange,
          level: level + 1,
        }),
      ]),
    );
    this.additional = h("div.others");
    fill(
      this.body,
      [...this.#fields.values()].map((field) => field.element),
      hiddenCount ? h("p.hint", {}, t("form.more", { n: hiddenCount })) : null,
      this.additional,
      this.#allowsAdditional() ? this.#addForm() : null,
    );
  }

  #allowsAdditional() {
    const { additionalProperties: additional, properties } = this.spec.schema;
    return (
      additional === true ||
      (additional && typeof additional === "object") ||
      (additional === undefined && !Object.keys(properties ?? {}).length && this.spec.level > 0)
    );
  }

  #addForm() {
    const name = h("input", {
      "aria-label": t("form.property"),
      placeholder: t("form.property"),
      autocomplete: "off",
    });
    const add = () => {
      if (!name.value || this.#fields.has(name.value) || this.#extras.has(name.value)) return;
      this.#addExtra(name.value);
      name.value = "";
      this.spec.onChange();
    };
    name.addEventListener(
      "keydown",
      (event) => event.key === "Enter" && (event.preventDefault(), event.stopPropagation(), add()),
    );
    return h("div.adder", {}, name, button(t("form.addProperty"), add, { class: "quiet" }));
  }

  #addExtra(name) {
    const { schema, root, onChange, level } = this.spec;
    const valueSchema =
      schema.additionalProperties && typeof schema.additionalProperties === "object" ? schema.additionalProperties : {};
    const field = createField({ schema: valueSchema, root, label: name, required: false, onChange, level: level + 1 });
    const row = h(
      "div.extra",
      {},
      field.element,
      quietButton(
        "×",
        () => {
          this.#extras.delete(name);
          row.remove();
          onChange();
        },
        { class: "quiet remove", "aria-label": t("form.removeProperty", { name }) },
      ),
    );
    this.#extras.set(name, field);
    this.additional.append(row);
    return field;
  }
}
