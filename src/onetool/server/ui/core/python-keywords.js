/** Python keywords and constants. */
const WORDS =
  "and as assert async await break class continue def del elif else except finally for from global if import in is " +
  "lambda nonlocal not or pass raise return try while with yield";

export const KEYWORDS = new Set(WORDS.split(" "));
export const CONSTANTS = new Set(["True", "False", "None"]);
