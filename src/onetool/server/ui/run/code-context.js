/** Finds what surrounds the caret in Python code: strings, brackets, calls and their arguments. It does not parse. */
import { tokenize } from "./highlight.js";

const MAX_CONTEXT_CHARS = 20_000; // before the caret
const OPENING = "([{";
const CLOSING = ")]}";
const WORD = /^[\p{L}_]/u;
const EMPTY = { name: null, key: null, isValue: false };

/** Return `{ brackets, string, isComment }` for the code before the caret.
 *
 * A bracket is `{ open, callee, position, name, names, key, isValue }`: the call's name, the index, keyword and earlier
 * keywords of the argument, and the key in a dict. `string` is the text of an unfinished string, otherwise null. */
export function readContext(before) {
  const tokens = tokenize(before.slice(-MAX_CONTEXT_CHARS));
  const reader = new BracketReader();
  const [lastKind, lastText] = tokens.at(-1) ?? ["", ""];
  const string = lastKind === "string" ? readUnfinished(lastText) : null;
  if (string !== null) tokens.pop();
  for (const [kind, text] of tokens) reader.read(kind, text);
  return { brackets: reader.brackets, string, isComment: lastKind === "comment" };
}

/** Return the call around the caret, or null: `{ name, argument, inside }`, the last being brackets in its argument. */
export function findCall({ brackets }) {
  const index = brackets.findLastIndex(({ open, callee }) => open === "(" || callee);
  const argument = brackets[index];
  if (!argument || argument.open !== "(" || !/^[^.]+\.[^.]+$/.test(argument.callee)) return null;
  return { name: argument.callee, argument, inside: brackets.slice(index + 1) };
}

class BracketReader {
  brackets = [];
  #name = ""; // the dotted name that just ended
  #literal = null; // the string that just ended

  read(kind, text) {
    if (kind === "comment") return;
    if (kind === "string") {
      this.#name = "";
      this.#literal = readString(text);
    } else if (WORD.test(text)) this.#name = this.#name.endsWith(".") ? this.#name + text : text;
    else for (let index = 0; index < text.length; index += 1) index += this.#readSign(text, index);
  }

  /** Read one character, and return how many more belong to it. */
  #readSign(text, index) {
    const sign = text[index];
    if (sign === " " || sign === "\t") return 0;
    if (sign === "." && this.#name) return ((this.#name += "."), 0);
    const [name, literal] = [this.#name, this.#literal];
    [this.#name, this.#literal] = ["", null];
    const current = this.brackets.at(-1);
    if (OPENING.includes(sign)) this.brackets.push({ open: sign, callee: name, position: 0, names: [], ...EMPTY });
    else if (CLOSING.includes(sign)) this.brackets.pop();
    else if (sign === "=" && text[index + 1] === "=") return 1;
    else if (sign === "=" && current?.open === "(" && name && !current.isValue) {
      current.names.push(name);
      Object.assign(current, { name, isValue: true });
    } else if (sign === ":" && current?.open === "{") Object.assign(current, { key: literal, isValue: true });
    else if (sign === "," && current) Object.assign(current, EMPTY, { position: current.position + 1 });
    else if (sign === "\n" && current) [this.#name, this.#literal] = [name, literal];
    return 0;
  }
}

/** Return the text of a string that ends without its quote, or null. */
function readUnfinished(token) {
  const [, prefix, quote] = /^(\w*)("""|'''|["'])/.exec(token);
  const text = token.slice(prefix.length + quote.length);
  if (!text.endsWith(quote)) return text;
  const backslashes = /\\*$/.exec(text.slice(0, -quote.length))[0].length;
  return backslashes % 2 ? text : null;
}

function readString(token) {
  const [, quote, text] = /^\w*("""|'''|["'])([^]*?)\1?$/.exec(token) ?? [];
  return quote ? text : null;
}
