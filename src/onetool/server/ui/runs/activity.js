/** The server's stream of events: runs that start and end, and hints that something else changed. */
import { follow } from "../core/feed.js";

const RELOAD_DELAY_MS = 300;

/** Call `onStart(runs)` for each connection, and `onEvent({ event, … })` for each event. Return a function that ends
 * it. */
export function watchActivity({ onStart, onEvent }) {
  const aborter = new AbortController();
  const handle = ({ name, data }) => (name === "start" ? onStart(data.runs) : onEvent(data));
  follow("/api/activity", handle, { signal: aborter.signal });
  return () => aborter.abort();
}

/** Call `reload` soon after something of this kind changed, such as "tokens". Return a function that ends it. */
export function onChanged(what, reload) {
  let timer = 0;
  let isFirst = true;
  const schedule = () => (timer ||= setTimeout(() => ((timer = 0), reload()), RELOAD_DELAY_MS));
  const stop = watchActivity({
    onStart: () => (isFirst ? (isFirst = false) : schedule()), // changes were missed while it was disconnected
    onEvent: (data) => data.event === "changed" && what.includes(data.what) && schedule(),
  });
  return () => (clearTimeout(timer), stop());
}
