/** What keys do in the editor: indentation, brackets and comments.
 *
 * Each function returns an edit, or null for the default.
 *
 * An edit is `{ start, end, text, selection: [start, end] }`. The browser makes it, so that it can be undone. */

const INDENT = "    ";
const PAIRS = { "(": ")", "[": "]", "{": "}" };
const MAX_UNDO_CHARS = 5000; // the time of an insertion that can be undone grows with the square of its length

/** Make an edit as if the user had typed it. */
export function applyEdit(area, { start, end, text, selection }) {
  area.setSelectionRange(start, end);
  const isDone =
    text.length <= MAX_UNDO_CHARS && document.execCommand(text ? "insertText" : "delete", false, text || undefined);
  if (!isDone) {
    area.setRangeText(text, start, end, "end");
    area.dispatchEvent(new InputEvent("input", { bubbles: true }));
  }
  if (selection) area.setSelectionRange(...selection);
}

export const insertAt = (start, end, text, caret = start + text.length) => ({
  start,
  end,
  text,
  selection: [caret, caret],
});

/** Start a line with the indentation of the last one, and more after a colon or an open bracket. */
export function breakLine({ value, selectionStart: start, selectionEnd: end }) {
  const line = value.slice(value.lastIndexOf("\n", start - 1) + 1, start);
  const indent = /^[ \t]*/.exec(line)[0];
  const isOpen = /[([{]\s*$/.test(line);
  const inner = indent + (isOpen || /:\s*(?:#.*)?$/.test(line) ? INDENT : "");
  const closes = isOpen && value[end] === PAIRS[line.trimEnd().at(-1)];
  const text = `\n${inner}`;
  return insertAt(start, end, closes ? `${text}\n${indent}` : text, start + text.length);
}

/** Type a bracket: an opening one brings its partner, a closing one replaces the partner that is already there. */
export function typeBracket({ value, selectionStart: start, selectionEnd: end }, key) {
  const partner = PAIRS[key];
  if (partner && start !== end) {
    const text = `${key}${value.slice(start, end)}${partner}`;
    return { start, end, text, selection: [start + 1, end + 1] };
  }
  if (partner) return /^$|[\s)\]},:]/.test(value[end] ?? "") ? insertAt(start, end, key + partner, start + 1) : null;
  const isClosing = Object.values(PAIRS).includes(key) && value[start] === key && start === end;
  return isClosing && isBalanced(lineAt(value, start), key) ? insertAt(start, start + 1, key) : null;
}

/** Delete both brackets of an empty pair. */
export function deletePair({ value, selectionStart: start, selectionEnd: end }) {
  const isPair = start === end && start > 0 && PAIRS[value[start - 1]] === value[start] && value[start];
  return isPair ? insertAt(start - 1, start + 1, "", start - 1) : null;
}

/** Indent at the caret, or all selected lines. */
export function indent({ value, selectionStart: start, selectionEnd: end }) {
  if (!value.slice(start, end).includes("\n")) return insertAt(start, end, INDENT);
  return changeLines(value, start, end, (line) => (line ? INDENT + line : line));
}

/** Remove one level of indentation; null if there is none. */
export function unindent({ value, selectionStart: start, selectionEnd: end }) {
  return changeLines(value, start, end, (line) => line.replace(/^(?: {1,4}|\t)/, ""));
}

/** Comment the selected lines out, or in if all of them are comments. */
export function toggleComment({ value, selectionStart: start, selectionEnd: end }) {
  const lines = selectedLines(value, start, end).text.split("\n").filter((line) => line.trim());
  if (lines.length && lines.every((line) => /^\s*#/.test(line)))
    return changeLines(value, start, end, (line) => line.replace(/^(\s*)# ?/, "$1"));
  const column = Math.min(...lines.map((line) => line.search(/\S/)));
  return changeLines(value, start, end, (line) =>
    line.trim() ? `${line.slice(0, column)}# ${line.slice(column)}` : line,
  );
}

function selectedLines(value, start, end) {
  const first = value.lastIndexOf("\n", start - 1) + 1;
  const next = value.indexOf("\n", Math.max(start, end > start && value[end - 1] === "\n" ? end - 1 : end));
  const last = next < 0 ? value.length : next;
  return { first, last, text: value.slice(first, last) };
}

function changeLines(value, start, end, change) {
  const { first, last, text } = selectedLines(value, start, end);
  const before = text.split("\n");
  const after = before.map(change);
  const changed = after.join("\n");
  if (changed === text) return null;
  const caret = Math.max(first, start + after[0].length - before[0].length);
  const selection = start === end ? [caret, caret] : [first, first + changed.length];
  return { start: first, end: last, text: changed, selection };
}

const lineAt = (value, at) => {
  const end = value.indexOf("\n", at);
  return value.slice(value.lastIndexOf("\n", at - 1) + 1, end < 0 ? value.length : end);
};

/** Whether the line needs no further closing bracket of this kind. */
function isBalanced(line, closing) {
  const opening = Object.keys(PAIRS).find((key) => PAIRS[key] === closing);
  return line.split(closing).length >= line.split(opening).length;
}
