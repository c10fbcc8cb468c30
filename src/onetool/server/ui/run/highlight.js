/** Splits Python code into tokens for syntax highlighting. Approximate: it does not parse. */
import { CONSTANTS, KEYWORDS } from "../core/python-keywords.js";

const TRIPLE_QUOTED = /"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)/.source;
const SINGLE_QUOTED = /"(?:\\[^]|[^"\\\n])*(?:"|(?=\n)|$)|'(?:\\[^]|[^'\\\n])*(?:'|(?=\n)|$)/.source;
const TOKENS = new RegExp(
  [
    /(?<comment>#[^\n]*)/.source,
    `(?<text>(?:\\b[rbfuRBFU]{1,2})?(?:${TRIPLE_QUOTED}|${SINGLE_QUOTED}))`,
    /(?<number>\b(?:0[xob][\da-f_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:e[+-]?\d+)?)\b)/.source,
    /(?<word>[\p{L}_][\p{L}\p{N}_]*)/.source,
  ].join("|"),
  "gu",
);

/** Return `[[kind, text], …]`. The texts joined are the code. */
export function tokenize(code) {
  const tokens = [];
  let end = 0;
  for (const match of code.matchAll(TOKENS)) {
    if (match.index > end) tokens.push(["", code.slice(end, match.index)]);
    tokens.push([getTokenKind(match, code), match[0]]);
    end = match.index + match[0].length;
  }
  if (end < code.length) tokens.push(["", code.slice(end)]);
  return tokens;
}

function getTokenKind({ 0: text, groups, index }, code) {
  if (groups.comment) return "comment";
  if (groups.text) return "string";
  if (groups.number) return "number";
  if (KEYWORDS.has(text)) return "keyword";
  if (CONSTANTS.has(text)) return "number";
  const next = code[index + text.length];
  return next === "(" ? "call" : next === "." && code[index - 1] !== "." ? "pack" : "";
}
