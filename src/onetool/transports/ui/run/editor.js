/** A code editor: a textarea over highlighted text, with completions and the signature of the current call. */
import { fill, h, newId } from "../core/h.js";
import { t } from "../core/i18n.js";
import { truncate } from "../core/text.js";
import { findCompletions, findSignature } from "./completion.js";
import { tokenize } from "./highlight.js";

const MAX_HIGHLIGHT_CHARS = 50_000;
const INDENT = "    ";

class Editor extends HTMLElement {
  #options = [];
  #active = 0;
  #lastRequest = 0;
  #isLeaving = false;

  /** `run()` handles Ctrl Enter; `onChange(code)` is called for every input. */
  configure({ label, value, run, onChange }) {
    Object.assign(this, { run, onChange });
    const id = newId("completions");
    this.backdrop = h("pre.backdrop", { "aria-hidden": "true" });
    this.list = h("ul.completions", { role: "listbox", id, "aria-label": t("editor.completions"), hidden: true });
    this.area = h("textarea.code", {
      "aria-label": label,
      "aria-autocomplete": "list",
      "aria-controls": id,
      role: "combobox",
      "aria-expanded": "false",
      spellcheck: "false",
      autocapitalize: "off",
      autocomplete: "off",
      rows: 8,
      value,
      oninput: () => this.#onInput(),
      onkeydown: (event) => this.#onKeydown(event),
      onscroll: () => this.#syncScroll(),
      onclick: () => this.#onClick(),
      onblur: () => this.#hide(),
      onfocus: () => (this.#isLeaving = false),
    });
    this.area.placeholder = t("editor.placeholder");
    this.signature = h("p.signature-line", { role: "status" });
    this.append(h("div.pane", {}, this.backdrop, this.area, this.list), this.signature);
    this.#highlight();
    return this;
  }

  get value() {
    return this.area.value;
  }

  set value(code) {
    this.area.value = code;
    this.#highlight();
    this.onChange(code);
  }

  #onInput() {
    this.#highlight();
    this.onChange(this.area.value);
    this.#complete();
  }

  #onClick() {
    this.#hide();
    this.#showSignature();
  }

  #highlight() {
    const code = this.area.value;
    const tokens = code.length > MAX_HIGHLIGHT_CHARS ? [["", code]] : tokenize(code);
    this.backdrop.replaceChildren(
      ...tokens.map(([kind, text]) => (kind ? highlightedSpan(kind, text) : document.createTextNode(text))),
      document.createTextNode("\n"),
    );
    this.#syncScroll();
  }

  #syncScroll() {
    this.backdrop.scrollTop = this.area.scrollTop;
    this.backdrop.scrollLeft = this.area.scrollLeft;
  }

  get #textBeforeCaret() {
    return this.area.value.slice(0, this.area.selectionStart);
  }

  async #complete() {
    const request = (this.#lastRequest += 1);
    const text = this.#textBeforeCaret;
    const found = this.area.selectionStart === this.area.selectionEnd ? await findCompletions(text) : null;
    if (request !== this.#lastRequest || text !== this.#textBeforeCaret) return;
    this.#showSignature();
    if (!found) return this.#hide();
    this.#options = found.options.map((option) => ({ ...option, prefix: found.prefix }));
    this.#active = 0;
    fill(
      this.list,
      this.#options.map((option, index) => this.#option(option, index)),
    );
    this.list.hidden = false;
    this.area.setAttribute("aria-expanded", "true");
    this.#positionList(found.prefix.length);
    this.#markActive();
  }

  #option({ text, about }, index) {
    return h(
      "li",
      {
        role: "option",
        id: newId("completion"),
        onmousedown: (event) => (event.preventDefault(), this.#accept(index)),
      },
      h("span.name", {}, text),
      h("span.about", {}, truncate(about, 160)),
    );
  }

  /** Place the list below the caret, whose position is measured in the highlighted text. */
  #positionList(back) {
    const offset = this.area.selectionStart - back;
    const range = document.createRange();
    let seen = 0;
    const walker = document.createTreeWalker(this.backdrop, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      if (seen + node.length >= offset) {
        range.setStart(node, offset - seen);
        range.collapse(true);
        break;
      }
      seen += node.length;
    }
    const caret = range.getClientRects()[0] ?? range.getBoundingClientRect();
    const pane = this.area.parentElement.getBoundingClientRect();
    this.list.style.left = `${Math.max(0, Math.min(caret.left - pane.left, pane.width - this.list.offsetWidth))}px`;
    this.list.style.top = `${(caret.bottom || pane.top + 24) - pane.top + 4}px`;
  }

  #markActive() {
    [...this.list.children].forEach((option, index) =>
      option.setAttribute("aria-selected", String(index === this.#active)),
    );
    this.area.setAttribute("aria-activedescendant", this.list.children[this.#active].id);
    this.list.children[this.#active].scrollIntoView({ block: "nearest" });
  }

  #hide() {
    this.#lastRequest += 1;
    this.list.hidden = true;
    this.area.setAttribute("aria-expanded", "false");
    this.area.removeAttribute("aria-activedescendant");
  }

  #accept(index) {
    const { text, prefix } = this.#options[index];
    const end = this.area.selectionStart;
    this.area.setRangeText(text, end - prefix.length, end, "end");
    this.#hide();
    this.#highlight();
    this.onChange(this.area.value);
    this.#showSignature();
  }

  async #showSignature() {
    const text = this.#textBeforeCaret;
    const signature = await findSignature(text);
    if (text === this.#textBeforeCaret) fill(this.signature, truncate(signature, 400));
  }

  #onKeydown(event) {
    if ((event.ctrlKey || event.metaKey) && event.key === "Enter") {
      event.preventDefault();
      return this.run();
    }
    const isOpen = !this.list.hidden;
    const act = isOpen ? this.#listAction(event.key) : this.#textAction(event);
    this.#isLeaving = event.key === "Escape" && !isOpen;
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  }

  #listAction(key) {
    const count = this.#options.length;
    const move = (step) => () => {
      this.#active = (this.#active + step + count) % count;
      this.#markActive();
    };
    return {
      ArrowDown: move(1),
      ArrowUp: move(-1),
      Tab: () => this.#accept(this.#active),
      Enter: () => this.#accept(this.#active),
      Escape: () => this.#hide(),
    }[key];
  }

  #textAction({ key, shiftKey }) {
    if (key === "Tab" && !shiftKey && !this.#isLeaving) return () => this.#insert(INDENT);
    if (key !== "Enter") return null;
    const line = this.#textBeforeCaret.slice(this.#textBeforeCaret.lastIndexOf("\n") + 1);
    const indent = /^\s*/.exec(line)[0] + (/:\s*$/.test(line) ? INDENT : "");
    return () => this.#insert(`\n${indent}`);
  }

  #insert(text) {
    this.area.setRangeText(text, this.area.selectionStart, this.area.selectionEnd, "end");
    this.#highlight();
    this.onChange(this.area.value);
  }
}

function highlightedSpan(kind, text) {
  const span = document.createElement("span");
  span.className = `py-${kind}`;
  span.textContent = text;
  return span;
}

customElements.define("ot-editor", Editor);
export const editor = (options) => document.createElement("ot-editor").configure(options);
