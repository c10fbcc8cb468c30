/** Calls that wait for approval, from the server's event stream, and notifications about new ones. */
import { follow } from "../core/feed.js";
import { t } from "../core/i18n.js";
import { signal } from "../core/state.js";
import { escapeInvisible } from "../core/text.js";

/** The runs whose calls wait; null before the first answer. */
export const approvals = signal(null);
/** The error if this browser may not see approvals, otherwise null. */
export const denied = signal(null);
let isWatching = false;

/** Follow the event stream, which all screens share. */
export function watchApprovals() {
  if (isWatching) return;
  isWatching = true;
  const onDenied = (error) => {
    approvals.value = null;
    denied.value = error;
  };
  follow("/api/approvals", ({ data }) => update(data.approvals), { onDenied });
}

/** Return the names of the tools with their counts, such as `gh.create_issue ×3`. */
export function summarize(calls) {
  const counts = new Map();
  for (const { tool } of calls) counts.set(tool, (counts.get(tool) ?? 0) + 1);
  return [...counts].map(([tool, count]) => (count > 1 ? `${tool} ×${count}` : tool)).join(", ");
}

function update(list) {
  const known = new Set((approvals.value ?? []).map(({ run }) => run));
  const isFirst = approvals.value === null;
  approvals.value = list;
  denied.value = null;
  if (isFirst || !document.hidden || globalThis.Notification?.permission !== "granted") return;
  for (const { run, agent, calls } of list.filter((one) => !known.has(one.run))) {
    const body = escapeInvisible(summarize(calls)).slice(0, 300);
    new Notification(t("approvals.notice", { n: calls.length, agent }), { body, tag: run });
  }
}
