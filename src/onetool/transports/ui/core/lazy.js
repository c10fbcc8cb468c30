/** Modules that are fetched when they are wanted. A browser remembers a module that it could not get, until the page is
 * loaded anew. */
import { get, Unreachable } from "./api.js";
import { fill } from "./h.js";
import { failure, whenBack } from "./loading.js";
import { say } from "./say.js";

/** What `load` gives; where the server is away, `element` says so until it is back, and nothing is given. */
export async function lazily(element, load) {
  try {
    return await load();
  } catch {
    fill(
      element,
      failure(new Unreachable(say("error.unreachable")), () => location.reload()),
    );
    whenBack(element, () => location.reload());
    get("/healthz").catch(() => {});
    return null;
  }
}
