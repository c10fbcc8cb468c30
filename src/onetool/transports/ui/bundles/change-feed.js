/** Publishes changes of bundles that other people and programs make, while a screen shows bundles. */
import { stream } from "../core/api.js";
import { publishChange } from "../tools/catalog.js";

const RETRY_MS = 2000;

/** Follow the changes until the signal aborts. */
export async function watchBundles(signal) {
  while (!signal.aborted) {
    try {
      for await (const { name } of stream("GET", "/api/bundles/changes", { signal }))
        if (name === "changed") publishChange();
    } catch {
      // The server is away, or the screen was left.
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}
