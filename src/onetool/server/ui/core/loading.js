/** Shows the result of a request in an element: a spinner while it runs, then the content or the error. */
import { online, NetworkError } from "./api.js";
import { fill } from "./h.js";
import { refill } from "./refill.js";
import { button, emptyState, spinner } from "./components.js";
import { t } from "./i18n.js";

const SPINNER_DELAY_MS = 150; // fast responses need no spinner

/** Fill the element with the result of `make`, or of the function that `make` returns, which is not called if the
 * element has been loaded again meanwhile. If the server is unreachable, try again when it is back.
 *
 * An update replaces content that is shown already. If it fails, that content stays. */
export async function load(element, make, { isUpdate = false } = {}) {
  const isQuiet = isUpdate && element.hasChildNodes() && !element.hasAttribute("aria-busy");
  const attempt = (element.attempt = (element.attempt ?? 0) + 1);
  const isStale = () => element.attempt !== attempt;
  if (!isQuiet) element.setAttribute("aria-busy", "true");
  const timer = setTimeout(() => isStale() || element.hasChildNodes() || fill(element, spinner()), SPINNER_DELAY_MS);
  try {
    const content = await make();
    if (!isStale()) refill(element, typeof content === "function" ? content() : content);
  } catch (error) {
    if (isQuiet) return;
    if (!isStale() && error.name !== "AbortError")
      fill(
        element,
        errorState(error, () => load(element, make)),
      );
    if (error instanceof NetworkError) whenOnline(element, () => isStale() || load(element, make));
  } finally {
    clearTimeout(timer);
    if (!isStale()) element.removeAttribute("aria-busy");
  }
}

export function errorState(error, retry) {
  const title = error instanceof NetworkError ? t("error.unreachable") : t("error.title");
  const advice = error instanceof NetworkError ? t("error.unreachable.advice") : error.message;
  return emptyState(title, advice, retry ? button(t("retry"), retry) : null);
}

/** Call `act` once, when the server is back, if the element is still in the document. */
export function whenOnline(element, act) {
  const stop = online.listen((isOnline) => {
    if (!isOnline) return;
    stop();
    if (element.isConnected) act();
  });
}
