/** A part of the page that is made of an answer: what it shows while it waits, when it fails, and when there is an
 * answer. */
import { online, Unreachable } from "./api.js";
import { fill } from "./h.js";
import { button, nothing, spinner } from "./parts.js";
import { say } from "./say.js";

const PATIENCE = 150; // a quick answer needs no sign of waiting

/** Fills the element with what `make` resolves to. It is tried again when the server is back, as long as it is
 * shown. */
export async function load(element, make) {
  const turn = (element.turn = (element.turn ?? 0) + 1);
  const isStale = () => element.turn !== turn;
  element.setAttribute("aria-busy", "true");
  const waiting = setTimeout(() => isStale() || element.hasChildNodes() || fill(element, spinner()), PATIENCE);
  try {
    const made = await make();
    if (!isStale()) fill(element, made);
  } catch (error) {
    if (!isStale() && error.name !== "AbortError")
      fill(
        element,
        failure(error, () => load(element, make)),
      );
    if (error instanceof Unreachable) whenBack(element, () => isStale() || load(element, make));
  } finally {
    clearTimeout(waiting);
    if (!isStale()) element.removeAttribute("aria-busy");
  }
}

export function failure(error, again) {
  const title = error instanceof Unreachable ? say("error.unreachable") : say("error.title");
  const advice = error instanceof Unreachable ? say("error.unreachable.advice") : error.message;
  return nothing(title, advice, again ? button(say("again"), again) : null);
}

/** Once, when the server answers again and the element is still there. */
export function whenBack(element, act) {
  const end = online.listen((isOnline) => {
    if (!isOnline) return;
    end();
    if (element.isConnected) act();
  });
}
