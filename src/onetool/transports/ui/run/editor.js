/** A text area with colours behind it, completion at the caret, and the signature of the call one is in. */
import { fill, h, newId } from "../core/h.js";
import { say } from "../core/say.js";
import { clipped } from "../core/text.js";
import { completions, signatureAt } from "./completion.js";
import { pieces } from "./python-colours.js";

const MAX_COLOURED = 50_000;
const INDENT = "    ";

class Editor extends HTMLElement {
  #options = [];
  #active = 0;
  #turn = 0;
  #leaves = false;

  /** `run()` is Ctrl Enter; `changed(code)` hears every letter. */
  use({ label, value, run, changed }) {
    Object.assign(this, { run, changed });
    const id = newId("completions");
    this.behind = h("pre.behind", { "aria-hidden": "true" });
    this.list = h("ul.completions", { role: "listbox", id, "aria-label": say("editor.completions"), hidden: true });
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
      oninput: () => this.#typed(),
      onkeydown: (event) => this.#pressed(event),
      onscroll: () => this.#scrolled(),
      onclick: () => this.#moved(),
      onblur: () => this.#hide(),
      onfocus: () => (this.#leaves = false),
    });
    this.area.placeholder = say("editor.placeholder");
    this.signature = h("p.signature-line", { role: "status" });
    this.append(h("div.pane", {}, this.behind, this.area, this.list), this.signature);
    this.#paint();
    return this;
  }

  get value() {
    return this.area.value;
  }

  set value(code) {
    this.area.value = code;
    this.#paint();
    this.changed(code);
  }

  #typed() {
    this.#paint();
    this.changed(this.area.value);
    this.#complete();
  }

  #moved() {
    this.#hide();
    this.#sign();
  }

  #paint() {
    const code = this.area.value;
    const found = code.length > MAX_COLOURED ? [["", code]] : pieces(code);
    this.behind.replaceChildren(
      ...found.map(([kind, text]) => (kind ? coloured(kind, text) : document.createTextNode(text))),
      document.createTextNode("\n"),
    );
    this.#scrolled();
  }

  #scrolled() {
    this.behind.scrollTop = this.area.scrollTop;
    this.behind.scrollLeft = this.area.scrollLeft;
  }

  get #before() {
    return this.area.value.slice(0, this.area.selectionStart);
  }

  async #complete() {
    const turn = (this.#turn += 1);
    const before = this.#before;
    const found = this.area.selectionStart === this.area.selectionEnd ? await completions(before) : null;
    if (turn !== this.#turn || before !== this.#before) return;
    this.#sign();
    if (!found) return this.#hide();
    this.#options = found.options.map((option) => ({ ...option, begun: found.begun }));
    this.#active = 0;
    fill(
      this.list,
      this.#options.map((option, place) => this.#option(option, place)),
    );
    this.list.hidden = false;
    this.area.setAttribute("aria-expanded", "true");
    this.#place(found.begun.length);
    this.#mark();
  }

  #option({ text, about }, place) {
    return h(
      "li",
      { role: "option", id: newId("completion"), onmousedown: (event) => (event.preventDefault(), this.#take(place)) },
      h("span.name", {}, text),
      h("span.about", {}, clipped(about, 160)),
    );
  }

  /** Below the caret, which stands where the same text stands behind. */
  #place(back) {
    const at = this.area.selectionStart - back;
    const range = document.createRange();
    let seen = 0;
    const walker = document.createTreeWalker(this.behind, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      if (seen + node.length >= at) {
        range.setStart(node, at - seen);
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

  #mark() {
    [...this.list.children].forEach((option, place) =>
      option.setAttribute("aria-selected", String(place === this.#active)),
    );
    this.area.setAttribute("aria-activedescendant", this.list.children[this.#active].id);
    this.list.children[this.#active].scrollIntoView({ block: "nearest" });
  }

  #hide() {
    this.#turn += 1;
    this.list.hidden = true;
    this.area.setAttribute("aria-expanded", "false");
    this.area.removeAttribute("aria-activedescendant");
  }

  #take(place) {
    const { text, begun } = this.#options[place];
    const end = this.area.selectionStart;
    this.area.setRangeText(text, end - begun.length, end, "end");
    this.#hide();
    this.#paint();
    this.changed(this.area.value);
    this.#sign();
  }

  async #sign() {
    const before = this.#before;
    const signature = await signatureAt(before);
    if (before === this.#before) fill(this.signature, clipped(signature, 400));
  }

  #pressed(event) {
    if ((event.ctrlKey || event.metaKey) && event.key === "Enter") {
      event.preventDefault();
      return this.run();
    }
    const isOpen = !this.list.hidden;
    const act = isOpen ? this.#keysOfList(event.key) : this.#keysOfText(event);
    this.#leaves = event.key === "Escape" && !isOpen;
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  }

  #keysOfList(key) {
    const count = this.#options.length;
    const move = (step) => () => {
      this.#active = (this.#active + step + count) % count;
      this.#mark();
    };
    return {
      ArrowDown: move(1),
      ArrowUp: move(-1),
      Tab: () => this.#take(this.#active),
      Enter: () => this.#take(this.#active),
      Escape: () => this.#hide(),
    }[key];
  }

  #keysOfText({ key, shiftKey }) {
    if (key === "Tab" && !shiftKey && !this.#leaves) return () => this.#insert(INDENT);
    if (key !== "Enter") return null;
    const line = this.#before.slice(this.#before.lastIndexOf("\n") + 1);
    const indent = /^\s*/.exec(line)[0] + (/:\s*$/.test(line) ? INDENT : "");
    return () => this.#insert(`\n${indent}`);
  }

  #insert(text) {
    this.area.setRangeText(text, this.area.selectionStart, this.area.selectionEnd, "end");
    this.#paint();
    this.changed(this.area.value);
  }
}

function coloured(kind, text) {
  const span = document.createElement("span");
  span.className = `py-${kind}`;
  span.textContent = text;
  return span;
}

customElements.define("ot-editor", Editor);
export const editor = (given) => document.createElement("ot-editor").use(given);
