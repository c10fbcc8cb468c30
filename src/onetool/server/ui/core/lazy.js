/** Loads modules on demand. The browser caches failed imports until the page is reloaded. */
import { get, NetworkError } from "./api.js";
import { fill } from "./h.js";
import { errorState, whenOnline } from "./loading.js";
import { t } from "./i18n.js";

/** Return the result of `load`, or null if the server is unreachable; `element` shows that until the server is back. */
export async function loadModule(element, load) {
  try {
    return await load();
  } catch {
    fill(
      element,
      errorState(new NetworkError(t("error.unreachable")), () => location.reload()),
    );
    whenOnline(element, () => location.reload());
    get("/healthz").catch(() => {});
    return null;
  }
}
