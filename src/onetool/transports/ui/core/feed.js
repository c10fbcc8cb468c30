/** Follows event streams of the server, which end only when a screen is left. */
import { credentials, online, stream } from "./api.js";

const RETRY_MS = 2000;

/** Call `onEvent({ name, data })` for each event until the signal aborts. Connect again after errors and, if the server
 * denies it, after the person has signed in; `onDenied(error)` is called then. */
export async function follow(path, onEvent, { signal, onDenied = () => {} } = {}) {
  while (!signal?.aborted) {
    let isDenied = false;
    try {
      for await (const event of stream("GET", path, { signal })) onEvent(event);
    } catch (error) {
      if (signal?.aborted) return;
      isDenied = error.status === 403;
      if (isDenied) onDenied(error);
    }
    if (isDenied) await changeOf(credentials);
    else if (!online.value) await changeOf(online);
    else await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

function changeOf(value) {
  return new Promise((resolve) => {
    const stop = value.listen(() => (stop(), resolve()));
  });
}
