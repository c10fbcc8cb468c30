/** Replaces content that a person may be using. Focus, selection, input, open details and scroll positions stay.
 *
 * A part of the content is recognized by its key: `data-key`, otherwise its label or its text, after the keys of its
 * ancestors. */
import { fill } from "./h.js";

const PARTS = "[data-key], [tabindex], a, button, input, select, textarea, summary, details";
const edited = new WeakSet(); // controls that the person has used
addEventListener("input", ({ target }) => edited.add(target), true);

/** Replace the content of an element. */
export function refill(element, ...children) {
  const used = [...mapParts(element)].filter(([, part]) => isUsed(part)).map(([key, part]) => read(key, part));
  fill(element, ...children);
  if (!used.length) return element;
  const parts = mapParts(element);
  for (const state of used) restore(state, element.contains(state.part) ? state.part : parts.get(state.key));
  const focused = used.find((state) => state.isFocused);
  if (focused && !element.contains(document.activeElement)) focusNearest(element, focused.key, parts);
  return element;
}

/** Do not keep what the person has typed in an element, because that was saved, or belongs to something else. */
export function forgetInput(element) {
  for (const part of element.querySelectorAll(PARTS)) edited.delete(part);
}

/** Return the parts of the content by their keys. */
function mapParts(root) {
  const parts = new Map();
  const counts = new Map();
  for (const part of root.querySelectorAll(PARTS)) {
    const key = [...listAncestorKeys(part, root), getName(part)].join("\n");
    const count = counts.get(key) ?? 0;
    counts.set(key, count + 1);
    parts.set(count ? `${key}\n${count}` : key, part);
  }
  return parts;
}

function listAncestorKeys(part, root) {
  const keys = [];
  for (let one = part.parentElement; one !== root; one = one.parentElement)
    if (one.dataset.key) keys.unshift(one.dataset.key);
  return keys;
}

const getName = (part) =>
  part.dataset.key ?? `${part.localName} ${part.ariaLabel ?? part.labels?.[0]?.textContent ?? getText(part)}`;
const getText = (part) => (part.matches("a, button, summary") ? part.textContent : "");

const isUsed = (part) =>
  [document.activeElement, ...listOpeners()].includes(part) || edited.has(part) || part.open || part.scrollTop > 0;

const listOpeners = () => [...document.querySelectorAll("dialog[open]")].map(({ opener }) => opener);

/** Return the open dialogs that give the focus back to this part. */
const findDialogs = (part) => [...document.querySelectorAll("dialog[open]")].filter(({ opener }) => opener === part);

function read(key, part) {
  const { value, checked, selectionStart, selectionEnd, open, scrollTop } = part;
  const input = edited.has(part) ? { value, checked } : {};
  const isFocused = part === document.activeElement;
  return { key, part, input, isFocused, range: [selectionStart, selectionEnd], open, scrollTop };
}

function restore({ part: old, input, isFocused, range, open, scrollTop }, part) {
  if (!part) return;
  for (const dialog of findDialogs(old)) dialog.opener = part;
  if (part !== old) {
    if ("value" in input) edited.add(Object.assign(part, input));
    if (open) part.open = true;
    if (scrollTop) part.scrollTop = scrollTop;
  }
  if (!isFocused || part === document.activeElement) return;
  part.focus({ preventScroll: true });
  if (typeof range[0] === "number") part.setSelectionRange(...range);
}

/** Focus what contained the part with this key, because the part is gone. */
function focusNearest(element, key, parts) {
  const names = key.split("\n");
  while (names.length && !parts.has(names.join("\n"))) names.pop();
  const target = parts.get(names.join("\n")) ?? element;
  if (target.tabIndex < 0) target.tabIndex = -1;
  target.focus({ preventScroll: true });
}
