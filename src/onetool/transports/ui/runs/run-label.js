/** Texts of a run in the list. */
import { t } from "../core/i18n.js";
import { formatDate, formatTime, truncate } from "../core/text.js";

const MAX_LABEL_CHARS = 160;
const DAY_MS = 86_400_000;

/** Return the first line of the code, or the name of the tool. */
export function getLabel({ command, name }) {
  return truncate((command || name).split("\n").find((line) => line.trim()) ?? "", MAX_LABEL_CHARS) || "run";
}

/** Return when a run started, who started it, and how many calls it made. */
export function describe({ startedAt, agent, actor, client, directory, callCount, kind, error }) {
  const isToday = Date.now() - new Date(startedAt).getTime() < DAY_MS;
  const parts = [
    isToday ? formatTime(startedAt) : formatDate(startedAt),
    error,
    agent === "default" ? null : agent,
    actor,
    client,
    directory?.split("/").at(-1),
    kind === "run" ? t("live.calls", { n: callCount }) : t("runs.call"),
  ];
  return truncate(parts.filter(Boolean).join(" · "), MAX_LABEL_CHARS);
}
