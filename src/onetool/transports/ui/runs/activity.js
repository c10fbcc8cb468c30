/** The server's stream of events: runs that start and end, and hints that something else changed. */
import { stream, NetworkError } from "../core/api.js";
import { whenOnline } from "../core/loading.js";

const RETRY_MS = 2000;

/** Call `onStart(runs)` for each connection and `onEvent({ event, … })` for each event while the element is connected.
 * Return a function that ends it. */
export function watchActivity(element, { onStart = () => {}, onEvent }) {
  const aborter = new AbortController();
  const { signal } = aborter;
  async function watch() {
    try {
      for await (const { name, data } of stream("GET", "/api/activity", { signal })) {
        if (name === "start") onStart(data.runs);
        else onEvent(data);
      }
      throw new NetworkError();
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof NetworkError && error.message) whenOnline(element, watch);
      else setTimeout(() => signal.aborted || watch(), RETRY_MS);
    }
  }
  watch();
  return () => aborter.abort();
}

/** Call `reload` soon after something of this kind changed, such as "tokens". Return a function that ends it. */
export function onChanged(element, what, reload, delay = 300) {
  let timer = 0;
  let isFirst = true;
  const schedule = () => (timer ||= setTimeout(() => ((timer = 0), reload()), delay));
  const stop = watchActivity(element, {
    onStart: () => (isFirst ? (isFirst = false) : schedule()), // changes were missed while it was disconnected
    onEvent: (data) => data.event === "changed" && what.includes(data.what) && schedule(),
  });
  return () => (clearTimeout(timer), stop());
}
