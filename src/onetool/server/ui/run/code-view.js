/** The numbered and highlighted lines behind the textarea. Only lines that changed are rendered again. */
import { h } from "../core/h.js";
import { tokenize } from "./highlight.js";

const MAX_HIGHLIGHT_CHARS = 20_000;

export class CodeView {
  element = h("div.backdrop", { "aria-hidden": "true" });
  #keys = [];

  /** Show the code. */
  show(code) {
    const lines = splitLines(code.length > MAX_HIGHLIGHT_CHARS ? [["", code]] : tokenize(code));
    const keys = lines.map((tokens) => tokens.flat().join("\0"));
    const shorter = Math.min(keys.length, this.#keys.length);
    let [start, end] = [0, 0];
    while (start < shorter && keys[start] === this.#keys[start]) start += 1;
    while (end < shorter - start && keys.at(-1 - end) === this.#keys.at(-1 - end)) end += 1;
    const next = this.element.children[this.#keys.length - end] ?? null;
    for (let count = this.#keys.length - start - end; count > 0; count -= 1) this.element.children[start].remove();
    const added = document.createDocumentFragment();
    for (const tokens of lines.slice(start, lines.length - end)) added.append(renderLine(tokens));
    this.element.insertBefore(added, next);
    this.#keys = keys;
  }

  /** Mark one line, counted from 1; null marks none. */
  mark(line) {
    this.element.querySelector(".marked")?.classList.remove("marked");
    if (line !== null) this.element.children[line - 1]?.classList.add("marked");
  }

  /** Return the rectangle of the character at a position of the code. */
  locate(code, offset) {
    const before = code.slice(0, offset).split("\n");
    const line = this.element.children[before.length - 1];
    const range = document.createRange();
    range.selectNodeContents(line);
    let left = before.at(-1).length;
    const walker = document.createTreeWalker(line, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      if (left <= node.length) {
        range.setStart(node, left);
        break;
      }
      left -= node.length;
    }
    range.collapse(true);
    return range.getClientRects()[0] ?? line.getBoundingClientRect();
  }
}

function splitLines(tokens) {
  const lines = [[]];
  for (const [kind, text] of tokens)
    text.split("\n").forEach((part, index) => {
      if (index) lines.push([]);
      if (part) lines.at(-1).push([kind, part]);
    });
  return lines;
}

/** Render a line as it is: the characters must be as wide as in the textarea. */
function renderLine(tokens) {
  const line = h("div.line-of-code");
  for (const [kind, text] of tokens) {
    const node = kind ? h(`span.py-${kind}`) : line;
    node.append(document.createTextNode(text));
    if (kind) line.append(node);
  }
  return line;
}
