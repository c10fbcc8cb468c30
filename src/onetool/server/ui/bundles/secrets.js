/** Distinguishes literal secrets, which are never shown, from references to secrets. */

const SECRET_NAME = /auth|token|secret|key|cookie|passw|credential|session/i;

/** Whether the text is `${secret:NAME}` or `${argument}`, alone, after a scheme like `Bearer`, or two with a colon. */
export const isReference = (text) => /^(?:[A-Za-z]{1,12} )?\$\{[\w:-]+\}(?::\$\{[\w:-]+\})?$/.test(text);

/** Whether a value with this name is a literal secret. */
export const isSecret = (name, value) => Boolean(value) && SECRET_NAME.test(name) && !isReference(value);
