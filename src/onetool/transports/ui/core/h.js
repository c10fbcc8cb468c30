/** Elements without markup. Whatever is passed as text becomes text, with nothing in it that cannot be seen. */
import { visible } from "./text.js";

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set(["value", "checked", "indeterminate", "selected"]);
const SHOWN = new Set(["title", "placeholder", "aria-label", "aria-description", "alt"]);

/** `h("a.quiet", { href, onclick }, "text", element, null)`. */
export function h(tag, given = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name);
  if (classes.length) element.classList.add(...classes);
  assign(element, given);
  element.append(...nodes(children));
  return element;
}

/** The same for drawings. */
export function draw(name, given = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(given)) if (value != null) element.setAttribute(key, value);
  element.append(...nodes(children));
  return element;
}

/** Replaces what is in an element. */
export function fill(element, ...children) {
  element.replaceChildren(...nodes(children));
  return element;
}

export function nodes(children) {
  return children
    .flat(Infinity)
    .filter((child) => child != null && child !== false)
    .map(node);
}

function node(child) {
  return child instanceof Node ? child : document.createTextNode(visible(String(child)));
}

function assign(element, given) {
  for (const [key, value] of Object.entries(given)) {
    if (value == null) continue;
    if (typeof value === "function") element.addEventListener(key.slice(2), value);
    else if (key === "class") element.classList.add(...value.split(" ").filter(Boolean));
    else if (key === "data") Object.assign(element.dataset, value);
    else if (PROPERTIES.has(key)) element[key] = value;
    else if (typeof value === "boolean" && !key.startsWith("aria-")) element.toggleAttribute(key, value);
    else element.setAttribute(key, SHOWN.has(key) ? visible(String(value)) : value);
  }
}

let last = 0;

/** A name for an element that others refer to. */
export const newId = (stem) => `${stem}-${(last += 1)}`;
