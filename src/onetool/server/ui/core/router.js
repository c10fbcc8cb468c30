/** The current route, stored in the fragment of the URL. */
import { signal } from "./state.js";

export const route = signal(parseHash());
addEventListener("hashchange", () => (route.value = parseHash()));

/** Return the URL of a route: `link("tools", name)`. */
export const link = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;

export function navigate(...parts) {
  location.hash = link(...parts);
}

function parseHash() {
  return location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decode);
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
