/** Global keyboard shortcuts. */

const INPUTS = "input, textarea, select, [contenteditable]";

/** Bind shortcuts: `{ "?": act, "mod+k": act }`. Single keys are ignored while an input has the focus. */
export function bindKeys(bindings) {
  addEventListener("keydown", (event) => {
    const isModified = event.ctrlKey || event.metaKey;
    const act = bindings[isModified ? `mod+${event.key.toLowerCase()}` : event.key];
    if (!act || event.altKey || event.defaultPrevented) return;
    if (!isModified && event.target instanceof Element && event.target.closest(INPUTS)) return;
    event.preventDefault();
    act();
  });
}
