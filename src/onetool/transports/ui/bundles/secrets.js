/** What is a secret and what only names one. A secret that is written out is kept as it is, and never shown. */

const TELLING = /auth|token|secret|key|cookie|passw|credential|session/i;

/** `${secret:NAME}` or `${argument}`, alone or after a word like `Bearer`, or two of them with a colon between. */
export const isNamed = (text) => /^(?:[A-Za-z]{1,12} )?\$\{[\w:-]+\}(?::\$\{[\w:-]+\})?$/.test(text);

/** Whether a value under this name is nobody's business. */
export const isSecret = (name, value) => Boolean(value) && TELLING.test(name) && !isNamed(value);
