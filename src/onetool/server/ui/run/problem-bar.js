/** The problem of the last run: its line is marked until it is edited, and its message is below the editor. */
import { fill, h, newId } from "../core/h.js";
import { button } from "../core/components.js";
import { t } from "../core/i18n.js";
import { truncate } from "../core/text.js";

const MAX_CHARS = 500;

export class ProblemBar {
  element = h("p.code-problem", { role: "alert", id: newId("problem"), hidden: true });
  #problem = null; // { line, text, count }: the line, its text, and how many lines there were

  constructor(area, view) {
    Object.assign(this, { area, view });
  }

  show(line, message) {
    const lines = this.area.value.split("\n");
    if (line > lines.length) return;
    this.#problem = { line, text: lines[line - 1], count: lines.length, message: truncate(message, MAX_CHARS) };
    this.area.setAttribute("aria-invalid", "true");
    this.#render();
  }

  clear() {
    this.#problem = null;
    this.area.removeAttribute("aria-invalid");
    this.element.hidden = true;
    this.view.mark(null);
  }

  /** Follow the line when lines before it are added or removed. An edited line is not marked any more. */
  update() {
    if (!this.#problem) return;
    const lines = this.area.value.split("\n");
    const { line, text, count } = this.#problem;
    const moved = line + lines.length - count;
    const found = [line, moved].find((at) => lines[at - 1] === text);
    if (!found) return this.clear();
    const isMoved = found !== line;
    Object.assign(this.#problem, { line: found, count: lines.length });
    if (isMoved) this.#render();
    else this.view.mark(found);
  }

  /** Move the caret to the line with the problem. */
  go() {
    if (!this.#problem) return false;
    const before = this.area.value.split("\n").slice(0, this.#problem.line - 1);
    const start = before.reduce((sum, line) => sum + line.length + 1, 0);
    this.area.focus();
    this.area.setSelectionRange(start, start + this.#problem.text.length);
    return true;
  }

  #render() {
    const { line, message } = this.#problem;
    this.view.mark(line);
    fill(
      this.element,
      button(t("editor.problem.line", { n: line }), () => this.go(), { title: t("editor.problem.go") }),
      h("span", { dir: "auto" }, message),
    ).hidden = false;
  }
}
