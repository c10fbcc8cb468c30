/** A field for a list: items that can be added, removed and moved up. */
import { fill, h, newId } from "../core/h.js";
import { quiet } from "../core/parts.js";
import { say } from "../core/say.js";
import { fieldFor } from "./field.js";
import { hintOf } from "./simple.js";

const MAX_ITEMS = 500;

export class ListField {
  #items = [];
  #isGiven = false;

  constructor(about) {
    this.about = about;
    const id = newId("list");
    this.list = h("ol.items", { "aria-label": about.label });
    this.problem = h("p.problem", { id, hidden: true });
    this.element = h(
      "fieldset.nested",
      { "aria-describedby": id },
      h("legend", {}, about.label, about.required ? h("span.required", {}, " *") : null),
      h("p.hint", { hidden: !hintOf(about) }, hintOf(about)),
      this.list,
      quiet(say("form.add"), () => this.#grow(), { class: "quiet add" }),
      this.problem,
    );
    for (
      let place = 0;
      place < Math.min(about.required && about.level < 2 ? (about.schema.minItems ?? 0) : 0, 20);
      place += 1
    )
      this.#add();
  }

  get() {
    if (!this.#items.length) return this.#isGiven || this.about.required ? [] : undefined;
    return this.#items.map((item) => item.get() ?? (item.about?.schema.type === "string" ? "" : null));
  }

  set(value) {
    this.#items = [];
    fill(this.list);
    this.#isGiven = Array.isArray(value);
    if (this.#isGiven) value.slice(0, MAX_ITEMS).forEach((item) => this.#add(item));
  }

  broken() {
    return this.#items.flatMap((item, place) =>
      item.broken().map(({ path, text }) => ({ path: [place, ...path], text })),
    );
  }

  complain(problems) {
    const own = problems.find(({ path }) => !path.length);
    fill(this.problem, own?.text ?? "").hidden = !own;
    this.#items.forEach((item, place) => item.complain(inside(problems, place)));
  }

  #add(value) {
    const { schema, root, changed, level } = this.about;
    const place = this.#items.length;
    const of = schema.prefixItems?.[place] ?? schema.items ?? {};
    const item = fieldFor({
      schema: of,
      root,
      label: say("form.item", { n: place + 1 }),
      required: true,
      isItem: true,
      changed,
      level: level + 1,
    });
    if (value !== undefined) item.set(value);
    this.#items.push(item);
    this.list.append(
      h(
        "li",
        {},
        item.element,
        quiet("×", () => this.#remove(item), {
          class: "quiet remove",
          "aria-label": say("form.remove", { n: place + 1 }),
        }),
      ),
    );
    return item;
  }

  #grow() {
    this.#add().element.querySelector("input, textarea, select, button")?.focus();
    this.about.changed();
  }

  #remove(item) {
    const values = this.#items.filter((one) => one !== item).map((one) => one.get());
    this.set(values.map((value) => value ?? null));
    this.about.changed();
  }
}

export const inside = (problems, step) =>
  problems.filter(({ path }) => path[0] === step).map(({ path, text }) => ({ path: path.slice(1), text }));
