/** Changes of the settings by anybody, from the server's event stream. */
import { ApiError, stream } from "../core/api.js";
import { signal } from "../core/state.js";

const RETRY_MS = 2000;

/** The last changes and the version of the settings files; null before the first answer. */
export const settingsHistory = signal(null);
let aborter = null;

/** Follow the event stream while a screen needs it. Return a function that ends it. */
export function watchSettings() {
  aborter?.abort();
  const own = (aborter = new AbortController());
  follow(own.signal);
  return () => own.abort();
}

async function follow(signal) {
  while (!signal.aborted) {
    try {
      for await (const { data } of stream("GET", "/api/settings/history", { signal })) settingsHistory.value = data;
    } catch (error) {
      if (signal.aborted || (error instanceof ApiError && error.status === 403)) return;
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}
