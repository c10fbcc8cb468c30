/** Where we are: the part of the address behind `#`, which is all there is to going back and forth. */
import { signal } from "./store.js";

export const here = signal(read());
addEventListener("hashchange", () => (here.value = read()));

/** `link("tools", name)`: an address for a link. */
export const link = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;

export function go(...parts) {
  location.hash = link(...parts);
}

/** Another address for what is shown already, without a step back in between. */
export function rename(...parts) {
  history.replaceState(null, "", link(...parts));
}

function read() {
  return location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decoded);
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
