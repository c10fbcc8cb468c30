/** Python as pieces with a colour each. It only has to look right: nobody runs what it thinks. */
import { CONSTANTS, KEYWORDS } from "../core/python-words.js";

const LONG = /"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)/.source;
const SHORT = /"(?:\\[^]|[^"\\\n])*(?:"|(?=\n)|$)|'(?:\\[^]|[^'\\\n])*(?:'|(?=\n)|$)/.source;
const PIECES = new RegExp(
  [
    /(?<comment>#[^\n]*)/.source,
    `(?<text>(?:\\b[rbfuRBFU]{1,2})?(?:${LONG}|${SHORT}))`,
    /(?<number>\b(?:0[xob][\da-f_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:e[+-]?\d+)?)\b)/.source,
    /(?<word>[\p{L}_][\p{L}\p{N}_]*)/.source,
  ].join("|"),
  "gu",
);

/** `[[kind, text], …]`, which joined are the text. */
export function pieces(code) {
  const found = [];
  let end = 0;
  for (const match of code.matchAll(PIECES)) {
    if (match.index > end) found.push(["", code.slice(end, match.index)]);
    found.push([kindOf(match, code), match[0]]);
    end = match.index + match[0].length;
  }
  if (end < code.length) found.push(["", code.slice(end)]);
  return found;
}

function kindOf({ 0: text, groups, index }, code) {
  if (groups.comment) return "comment";
  if (groups.text) return "string";
  if (groups.number) return "number";
  if (KEYWORDS.has(text)) return "keyword";
  if (CONSTANTS.has(text)) return "number";
  const next = code[index + text.length];
  return next === "(" ? "call" : next === "." && code[index - 1] !== "." ? "pack" : "";
}
