/** Creates DOM elements without parsing markup. Strings become text nodes, with invisible characters escaped. */
import { escapeInvisible } from "./text.js";

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set(["value", "checked", "indeterminate", "selected"]);
const TEXT_ATTRIBUTES = new Set(["title", "placeholder", "aria-label", "aria-description", "alt"]);

/** Create an element: `h("a.quiet", { href, onclick }, "text", element, null)`. */
export function h(tag, attributes = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name);
  if (classes.length) element.classList.add(...classes);
  assign(element, attributes);
  element.append(...toNodes(children));
  return element;
}

/** Create an SVG element. */
export function draw(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) if (value != null) element.setAttribute(key, value);
  element.append(...toNodes(children));
  return element;
}

/** Replace the content of an element. Nodes that stay are not moved, because that would take the focus from them. */
export function fill(element, ...children) {
  const nodes = toNodes(children);
  const kept = new Set(nodes.filter((node) => node.parentNode === element));
  if (!kept.size) {
    element.replaceChildren(...nodes);
    return element;
  }
  for (const old of [...element.childNodes]) if (!kept.has(old)) old.remove();
  let next = element.firstChild;
  for (const node of nodes) {
    if (node === next) next = next.nextSibling;
    else element.insertBefore(node, next);
  }
  return element;
}

function toNodes(children) {
  return children
    .flat(Infinity)
    .filter((child) => child != null && child !== false)
    .map(toNode);
}

function toNode(child) {
  return child instanceof Node ? child : document.createTextNode(escapeInvisible(String(child)));
}

function assign(element, attributes) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value == null) continue;
    if (typeof value === "function") element.addEventListener(key.slice(2), value);
    else if (key === "class") element.classList.add(...value.split(" ").filter(Boolean));
    else if (key === "data") Object.assign(element.dataset, value);
    else if (PROPERTIES.has(key)) element[key] = value;
    else if (typeof value === "boolean" && !key.startsWith("aria-")) element.toggleAttribute(key, value);
    else element.setAttribute(key, TEXT_ATTRIBUTES.has(key) ? escapeInvisible(String(value)) : value);
  }
}

let lastId = 0;

/** Return a unique id for an element. */
export const newId = (stem) => `${stem}-${(lastId += 1)}`;
