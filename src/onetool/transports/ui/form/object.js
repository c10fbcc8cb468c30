/** A field for an object: a field for each property it is known to have, and, where it may have others, for those
 * too. */
import { fill, h } from "../core/h.js";
import { button, quiet } from "../core/parts.js";
import { say } from "../core/say.js";
import { fieldFor } from "./field.js";
import { inside } from "./list.js";
import { hintOf } from "./simple.js";

const MAX_LEVELS_OPEN = 2;
const MAX_FIELDS = 200;

export class ObjectField {
  #fields = null;
  #extras = new Map();
  #isGiven = false;

  constructor(about) {
    this.about = about;
    this.body = h("div.properties");
    this.problem = h("p.problem", { hidden: true });
    this.element = about.level === 0 ? h("div.object", {}, this.body, this.problem) : this.#nested();
    if (about.level === 0 || this.element.open) this.#build();
  }

  get() {
    if (!this.#fields) return this.about.required ? {} : undefined;
    const given = [...this.#fields, ...this.#extras]
      .map(([name, field]) => [name, field.get()])
      .filter(([, value]) => value !== undefined);
    const isWanted = given.length || this.about.required || this.#isGiven || this.about.level === 0;
    return isWanted ? Object.fromEntries(given) : undefined;
  }

  set(value) {
    this.#isGiven = value !== undefined;
    if (value === undefined && !this.#fields) return;
    this.#build();
    const given = value !== null && typeof value === "object" ? value : {};
    for (const [name, field] of this.#fields) field.set(Object.hasOwn(given, name) ? given[name] : undefined);
    this.#extras.clear();
    fill(this.others);
    for (const [name, item] of Object.entries(given)) if (!this.#fields.has(name)) this.#addExtra(name).set(item);
    if (this.#isGiven && this.element.tagName === "DETAILS") this.element.open = true;
  }

  broken() {
    return this.#all().flatMap(([name, field]) =>
      field.broken().map(({ path, text }) => ({ path: [name, ...path], text })),
    );
  }

  complain(problems) {
    const known = new Set(this.#all().map(([name]) => name));
    const own = problems.find(({ path }) => !path.length || !known.has(path[0]));
    fill(this.problem, own ? [own.path.length ? `${own.path.join(".")}: ` : "", own.text] : "").hidden = !own;
    for (const [name, field] of this.#all()) field.complain(inside(problems, name));
    if (problems.length && this.element.tagName === "DETAILS") this.element.open = true;
  }

  #all() {
    return this.#fields ? [...this.#fields, ...this.#extras] : [];
  }

  #nested() {
    const { label, required, level, isOpen, isItem } = this.about;
    const hint = hintOf(this.about);
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
    const { schema, root, changed, level } = this.about;
    const required = new Set(schema.required ?? []);
    const names = Object.keys(schema.properties ?? {});
    const ordered = [...names.filter((name) => required.has(name)), ...names.filter((name) => !required.has(name))];
    const more = ordered.splice(MAX_FIELDS).length;
    this.#fields = new Map(
      ordered.map((name) => [
        name,
        fieldFor({
          schema: schema.properties[name],
          root,
          label: name,
          required: required.has(name),
          changed,
          level: level + 1,
        }),
      ]),
    );
    this.others = h("div.others");
    fill(
      this.body,
      [...this.#fields.values()].map((field) => field.element),
      more ? h("p.hint", {}, say("form.more", { n: more })) : null,
      this.others,
      this.#takesOthers() ? this.#adder() : null,
    );
  }

  #takesOthers() {
    const { additionalProperties: others, properties } = this.about.schema;
    return (
      others === true ||
      (others && typeof others === "object") ||
      (others === undefined && !Object.keys(properties ?? {}).length && this.about.level > 0)
    );
  }

  #adder() {
    const name = h("input", {
      "aria-label": say("form.property"),
      placeholder: say("form.property"),
      autocomplete: "off",
    });
    const add = () => {
      if (!name.value || this.#fields.has(name.value) || this.#extras.has(name.value)) return;
      this.#addExtra(name.value);
      name.value = "";
      this.about.changed();
    };
    name.addEventListener(
      "keydown",
      (event) => event.key === "Enter" && (event.preventDefault(), event.stopPropagation(), add()),
    );
    return h("div.adder", {}, name, button(say("form.addProperty"), add, { class: "quiet" }));
  }

  #addExtra(name) {
    const { schema, root, changed, level } = this.about;
    const of =
      schema.additionalProperties && typeof schema.additionalProperties === "object" ? schema.additionalProperties : {};
    const field = fieldFor({ schema: of, root, label: name, required: false, changed, level: level + 1 });
    const row = h(
      "div.extra",
      {},
      field.element,
      quiet(
        "×",
        () => {
          this.#extras.delete(name);
          row.remove();
          changed();
        },
        { class: "quiet remove", "aria-label": say("form.removeProperty", { name }) },
      ),
    );
    this.#extras.set(name, field);
    this.others.append(row);
    return field;
  }
}
