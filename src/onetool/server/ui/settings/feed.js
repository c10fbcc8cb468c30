/** Changes of the settings by anybody, from the server's event stream. */
import { follow } from "../core/feed.js";
import { signal } from "../core/state.js";

/** The last changes and the version of the settings files; null before the first answer. */
export const settingsHistory = signal(null);

/** Call `onChange(history)` when the settings have changed after the first answer. Return a function that ends it. */
export function watchSettings(onChange) {
  const aborter = new AbortController();
  let version = null;
  const update = ({ data }) => {
    const isNew = version !== null && version !== data.version;
    version = data.version;
    settingsHistory.value = data;
    if (isNew) onChange(data);
  };
  follow("/api/settings/history", update, { signal: aborter.signal });
  return () => aborter.abort();
}
