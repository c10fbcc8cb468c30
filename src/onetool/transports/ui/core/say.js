/** The words of the page, in the language of the reader where there is a table for it. */
import { words as english } from "../words.js";

// Another language is one file beside words.js and one line here: `de: () => import("../words.de.js")`.
const OTHERS = {};

const language =
  navigator.languages.map((tag) => tag.split("-")[0]).find((tag) => tag === "en" || tag in OTHERS) ?? "en";
const words = language === "en" ? english : { ...english, ...(await OTHERS[language]()).words };
const plurals = new Intl.PluralRules(language);
document.documentElement.lang = language;

/** `say("tools.count", { n: 3 })`; a word that depends on a number has one text for each of its plurals. */
export function say(key, values = {}) {
  const word = words[key];
  if (word === undefined) return key;
  const text = typeof word === "string" ? word : (word[plurals.select(values.n)] ?? word.other);
  return text.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? shown(values[name]) : whole));
}

/** The word where there is one, and what it would be the word for where there is none. */
export const sayOr = (key, otherwise) => (key in words ? say(key) : otherwise);

const shown = (value) => (typeof value === "number" ? value.toLocaleString(language) : String(value ?? ""));
