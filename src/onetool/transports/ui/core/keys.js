/** Keys that work everywhere on the page. */

const TYPING = "input, textarea, select, [contenteditable]";

/** `{ "?": act, "mod+k": act }`; a single character does nothing while somebody is typing. */
export function listen(bindings) {
  addEventListener("keydown", (event) => {
    const isModified = event.ctrlKey || event.metaKey;
    const act = bindings[isModified ? `mod+${event.key.toLowerCase()}` : event.key];
    if (!act || event.altKey || event.defaultPrevented) return;
    if (!isModified && event.target instanceof Element && event.target.closest(TYPING)) return;
    event.preventDefault();
    act();
  });
}
