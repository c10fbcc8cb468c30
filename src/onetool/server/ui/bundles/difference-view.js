/** What an update changes in a bundle: added, removed and changed tools, and the choices of the person. */
import { fill, h } from "../core/h.js";
import { t } from "../core/i18n.js";

const MAX_SHOWN = 200; // tools of each kind

class DifferenceView extends HTMLElement {
  configure({ added, removed, changed, unchanged }) {
    this.disable = checkbox(t("difference.disableRemoved"), true);
    this.replace = new Map();
    fill(
      this,
      section(t("difference.added", { n: added.length }), added.slice(0, MAX_SHOWN).map(renderTool)),
      section(t("difference.removed", { n: removed.length }), [
        ...removed.slice(0, MAX_SHOWN).map(renderTool),
        removed.length ? h("li", {}, this.disable) : null,
      ]),
      section(
        t("difference.changed", { n: changed.length }),
        changed.slice(0, MAX_SHOWN).map((change) => this.#renderChange(change)),
      ),
      h("p.hint", {}, t("difference.unchanged", { n: unchanged })),
    );
    this.hasRemoved = removed.length > 0;
    return this;
  }

  /** The choices as parameters of an import. */
  get query() {
    const replace = [...this.replace].filter(([, box]) => box.control.checked).map(([slug]) => slug);
    return { replace, disableRemoved: String(this.hasRemoved && this.disable.control.checked) };
  }

  #renderChange({ slug, version, newVersion, isEdited, changes }) {
    const box = isEdited ? checkbox(t("difference.replace", { version }), false) : null;
    if (box) this.replace.set(slug, box);
    return h(
      "li",
      {},
      h(
        "details",
        { open: isEdited || changes.length <= 3 },
        h("summary", {}, h("code", {}, slug), ` ${version} → ${newVersion}`),
        isEdited ? h("p.reason", {}, t("difference.edited", { version })) : null,
        box,
        changeList(changes),
      ),
    );
  }
}

/** A list of changes: `[{ part, name, before, after }]`. */
export const changeList = (changes) =>
  h(
    "ul.changes",
    {},
    changes.map(({ part, name, before, after }) =>
      h(
        "li",
        {},
        h("strong", {}, part ? `${t(`part.${part}`)} ` : null, h("code", {}, name)),
        before === null ? null : h("del", {}, before),
        after === null ? null : h("ins", {}, after),
      ),
    ),
  );

const renderTool = ({ slug, request }) => h("li", {}, h("code", {}, slug), " ", h("span.about", {}, request));

function section(title, items) {
  const shown = items.filter(Boolean);
  return shown.length ? h("section", {}, h("h3", {}, title), h("ul.todo", {}, shown)) : null;
}

/** A labeled checkbox. Its `control` is the checkbox. */
export const checkbox = (label, checked) =>
  h("label.choice", {}, h("input", { type: "checkbox", checked }), " ", label);

customElements.define("ot-difference", DifferenceView);
export const differenceView = (difference) => document.createElement("ot-difference").configure(difference);
