/** Messages of the UI, in the language of the browser if there is a translation. */
import { messages as english } from "../messages.js";

// To add a language, add a file beside messages.js and a line here: `de: () => import("../messages.de.js")`.
const TRANSLATIONS = {};

const language =
  navigator.languages.map((tag) => tag.split("-")[0]).find((tag) => tag === "en" || tag in TRANSLATIONS) ?? "en";
const messages = language === "en" ? english : { ...english, ...(await TRANSLATIONS[language]()).messages };
const plurals = new Intl.PluralRules(language);
document.documentElement.lang = language;

/** Return a message: `t("tools.count", { n: 3 })`. A message with plural forms has one string for each. */
export function t(key, values = {}) {
  const message = messages[key];
  if (message === undefined) return key;
  const text = typeof message === "string" ? message : (message[plurals.select(values.n)] ?? message.other);
  return text.replace(/\{(\w+)\}/g, (match, name) => (name in values ? format(values[name]) : match));
}

/** Return the message if it exists, otherwise the fallback. */
export const tOr = (key, fallback) => (key in messages ? t(key) : fallback);

const format = (value) => (typeof value === "number" ? value.toLocaleString(language) : String(value ?? ""));
