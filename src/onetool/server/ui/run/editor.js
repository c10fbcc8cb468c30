/** A code editor: a textarea over highlighted lines, with completions, signature help and the problem of a run. */
import { h, newId } from "../core/h.js";
import { t } from "../core/i18n.js";
import { readContext } from "./code-context.js";
import { CodeView } from "./code-view.js";
import { CompletionList } from "./completion-list.js";
import { findCompletions } from "./completion.js";
import { ProblemBar } from "./problem-bar.js";
import { showSignature } from "./signature.js";
import { applyEdit, breakLine, deletePair, indent, insertAt, toggleComment, typeBracket, unindent } from "./typing.js";

class Editor extends HTMLElement {
  #lastRequest = 0;
  #isLeaving = false;
  #view = new CodeView();

  /** `run()` handles Ctrl Enter; `onChange(code)` is called for every input. */
  configure({ label, value, run, onChange }) {
    Object.assign(this, { run, onChange });
    const hint = h("p.hint", { id: newId("hint") }, t("editor.hint"));
    this.area = this.#createArea(label, value);
    this.list = new CompletionList(this.area, (option) => this.#accept(option));
    this.problem = new ProblemBar(this.area, this.#view);
    this.area.setAttribute("aria-controls", this.list.element.id);
    this.area.setAttribute("aria-describedby", `${this.problem.element.id} ${hint.id}`);
    this.signature = h("p.signature-line", { role: "status" });
    this.append(
      h("div.pane", {}, this.#view.element, this.area, this.list.element),
      this.problem.element,
      this.signature,
      hint,
    );
    this.#view.show(value);
    return this;
  }

  #createArea(label, value) {
    const area = h("textarea.code", {
      "aria-label": label,
      "aria-autocomplete": "list",
      role: "combobox",
      "aria-expanded": "false",
      spellcheck: "false",
      autocapitalize: "off",
      autocomplete: "off",
      rows: 8,
      value,
      oninput: () => this.#onInput(),
      onkeydown: (event) => this.#onKeydown(event),
      onkeyup: (event) => event.key.startsWith("Arrow") && this.#showSignature(),
      onscroll: () => this.#syncScroll(),
      onclick: () => (this.#close(), this.#showSignature()),
      onblur: () => this.#close(),
      onfocus: () => (this.#isLeaving = false),
    });
    area.placeholder = t("editor.placeholder");
    return area;
  }

  get value() {
    return this.area.value;
  }

  /** Replace the code. The user can undo this. */
  set value(code) {
    this.area.focus();
    applyEdit(this.area, { start: 0, end: this.area.value.length, text: code });
    this.#close();
  }

  #onInput() {
    this.#view.show(this.area.value);
    this.problem.update();
    this.#syncScroll();
    this.onChange(this.area.value);
    this.#complete();
  }

  #syncScroll() {
    this.#view.element.scrollTop = this.area.scrollTop;
  }

  get #textBeforeCaret() {
    return this.area.value.slice(0, this.area.selectionStart);
  }

  async #complete(isExplicit = false) {
    const request = (this.#lastRequest += 1);
    const { selectionStart, selectionEnd } = this.area;
    const before = this.#textBeforeCaret;
    this.#showSignature();
    const found = selectionStart === selectionEnd ? await findCompletions(before, isExplicit) : null;
    if (request !== this.#lastRequest || document.activeElement !== this.area) return;
    if (!found) return this.list.close();
    const options = found.options.map((option) => ({ ...option, start: selectionStart - found.prefix.length }));
    this.list.open(options, this.#view.locate(this.area.value, selectionStart - found.prefix.length));
  }

  #accept({ text, start }) {
    applyEdit(this.area, insertAt(start, this.area.selectionStart, text));
    if (!text.endsWith("=")) this.#close();
  }

  #close() {
    this.#lastRequest += 1;
    this.list.close();
  }

  #showSignature() {
    const before = this.#textBeforeCaret;
    return showSignature(this.signature, before, () => before !== this.#textBeforeCaret);
  }

  #onKeydown(event) {
    if (event.isComposing) return;
    const isOpen = this.list.isOpen;
    const inList = isOpen ? this.list.getAction(event.key) : null;
    const act = this.#commandAction(event) ?? inList ?? this.#editAction(event);
    this.#isLeaving = event.key === "Escape" && !isOpen;
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  }

  #commandAction({ key, ctrlKey, metaKey }) {
    const isModified = ctrlKey || metaKey;
    if (isModified && key === "Enter") return () => this.run();
    if (isModified && key === "/") return () => this.#edit(toggleComment(this.area));
    if (ctrlKey && key === " ") return () => this.#complete(true);
    return key === "F8" ? () => this.problem.go() : null;
  }

  #editAction(event) {
    const edit = event.ctrlKey || event.metaKey || event.altKey ? null : this.#findEdit(event);
    return edit ? () => this.#edit(edit) : null;
  }

  #findEdit({ key, shiftKey }) {
    if (key === "Tab") return this.#isLeaving ? null : shiftKey ? unindent(this.area) : indent(this.area);
    if (key === "Enter") return breakLine(this.area);
    if (key === "Backspace") return deletePair(this.area);
    if (!"()[]{}".includes(key)) return null;
    const { string, isComment } = readContext(this.#textBeforeCaret);
    return string !== null || isComment ? null : typeBracket(this.area, key);
  }

  #edit(edit) {
    if (!edit) return;
    applyEdit(this.area, edit);
    this.#showSignature(); // the caret may have moved after the input
  }
}

customElements.define("ot-editor", Editor);
export const editor = (options) => document.createElement("ot-editor").configure(options);
