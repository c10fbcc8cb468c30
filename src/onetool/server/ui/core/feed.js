/** Follows event streams of the server, which end only when a screen is left. */
import { credentials, online, stream } from "./api.js";

const RETRY_MS = 2000;

/** Call `onEvent({ name, data })` for each event until the signal aborts. Connect again after errors and, if the server
 * denies it, after the person has signed in; `onDenied(error)` is called then. With `whileVisible`, a hidden tab does not
 * connect: a browser has only six connections to a server, for all tabs. */
export async function follow(path, onEvent, { signal, onDenied = () => {}, whileVisible = false } = {}) {
  while (!signal?.aborted) {
    if (whileVisible && document.hidden) await changeOfVisibility();
    const hiding = new AbortController();
    if (whileVisible) changeOfVisibility().then(() => hiding.abort());
    let isDenied = false;
    const credential = credentials.value;
    try {
      const signals = [signal, hiding.signal].filter(Boolean);
      for await (const event of stream("GET", path, { signal: AbortSignal.any(signals) })) onEvent(event);
    } catch (error) {
      if (signal?.aborted) return;
      if (hiding.signal.aborted || credentials.value !== credential) continue; // signed in while the request ran
      isDenied = error.status === 403;
      if (isDenied) onDenied(error);
    }
    if (isDenied) await changeOf(credentials);
    else if (!online.value) await changeOf(online);
    else await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

const changeOfVisibility = () =>
  new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));

function changeOf(value) {
  return new Promise((resolve) => {
    const stop = value.listen(() => (stop(), resolve()));
  });
}
