/** Publishes changes of bundles that other people and programs make, while a screen shows bundles. */
import { follow } from "../core/feed.js";
import { publishChange } from "../tools/catalog.js";

/** Follow the changes until the signal aborts. */
export const watchBundles = (signal) =>
  follow("/api/bundles/changes", ({ name }) => name === "changed" && publishChange(), { signal });
