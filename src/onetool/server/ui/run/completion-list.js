/** The list of completions below the caret. The textarea keeps the focus and names the active option. */
import { fill, h, newId } from "../core/h.js";
import { t } from "../core/i18n.js";

const GAP = 4; // pixels between the caret and the list

export class CompletionList {
  #options = [];
  #active = 0;

  /** `accept(option)` is called when the user selects an option. */
  constructor(area, accept) {
    Object.assign(this, { area, accept });
    this.element = h("ul.completions", {
      role: "listbox",
      id: newId("completions"),
      "aria-label": t("editor.completions"),
      hidden: true,
    });
  }

  get isOpen() {
    return !this.element.hidden;
  }

  /** Show the options below the rectangle of the caret. */
  open(options, caret) {
    this.#options = options;
    this.#active = 0;
    fill(
      this.element,
      options.map((option) => this.#render(option)),
    );
    this.element.hidden = false;
    this.area.setAttribute("aria-expanded", "true");
    const pane = this.element.parentElement.getBoundingClientRect();
    const left = Math.min(caret.left - pane.left, pane.width - this.element.offsetWidth);
    this.element.style.left = `${Math.max(0, left)}px`;
    this.element.style.top = `${Math.min(caret.bottom - pane.top, pane.height) + GAP}px`;
    this.#markActive();
  }

  close() {
    this.element.hidden = true;
    this.area.setAttribute("aria-expanded", "false");
    this.area.removeAttribute("aria-activedescendant");
  }

  /** Return what a key does while the list is open, or undefined. */
  getAction(key) {
    const move = (step) => () => {
      this.#active = (this.#active + step + this.#options.length) % this.#options.length;
      this.#markActive();
    };
    const accept = () => this.accept(this.#options[this.#active]);
    return { ArrowDown: move(1), ArrowUp: move(-1), Tab: accept, Enter: accept, Escape: () => this.close() }[key];
  }

  #render(option) {
    return h(
      "li",
      {
        role: "option",
        id: newId("completion"),
        onmousedown: (event) => (event.preventDefault(), this.accept(option)),
      },
      h("span.name", {}, option.text),
      h("span.about", {}, option.about),
    );
  }

  #markActive() {
    const options = [...this.element.children];
    options.forEach((option, index) => option.setAttribute("aria-selected", String(index === this.#active)));
    this.area.setAttribute("aria-activedescendant", options[this.#active].id);
    options[this.#active].scrollIntoView({ block: "nearest" });
  }
}
