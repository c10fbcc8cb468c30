/** Formats values for display. Invisible and bidirectional control characters are escaped. */

// Control characters except tab and line breaks; bidirectional and zero-width characters; tags; lone surrogates.
const INVISIBLE = new RegExp(
  [
    /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f]/.source,
    /[\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/.source,
    /[\u{e0000}-\u{e007f}]|\p{Cs}/u.source,
  ].join("|"),
  "gu",
);

const numberFormat = new Intl.NumberFormat();
const percentFormat = new Intl.NumberFormat(undefined, { maximumFractionDigits: 1 });
const compactFormat = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });
const timeFormat = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const dateFormat = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const relativeFormat = new Intl.RelativeTimeFormat(undefined, { numeric: "auto", style: "short" });

export function escapeInvisible(text) {
  return text.replace(INVISIBLE, (character) => `\\u{${character.codePointAt(0).toString(16)}}`);
}

export function truncate(text, maxLength) {
  return text.length > maxLength ? `${text.slice(0, maxLength)}…` : text;
}

export const formatNumber = (value) => numberFormat.format(value);
export const formatPercent = (value) => percentFormat.format(value);
export const formatCompact = (value) =>
  Math.abs(value) < 10_000 ? numberFormat.format(value) : compactFormat.format(value);
export const formatTime = (timestamp) => timeFormat.format(new Date(timestamp));
export const formatDate = (timestamp) => dateFormat.format(new Date(timestamp));

/** Return the time of today, or the date and time of another day. */
export const formatMoment = (timestamp) =>
  new Date(timestamp).toDateString() === new Date().toDateString() ? formatTime(timestamp) : formatDate(timestamp);

export function formatBytes(count) {
  if (count < 1000) return `${formatNumber(count)} B`;
  const unit = count < 1e6 ? ["kB", 1e3] : count < 1e9 ? ["MB", 1e6] : ["GB", 1e9];
  return `${(count / unit[1]).toFixed(count / unit[1] < 10 ? 1 : 0)} ${unit[0]}`;
}

export function formatDuration(ms) {
  if (ms == null) return "–";
  if (ms === 0) return "0 ms";
  if (ms < 1) return `${ms.toFixed(2)} ms`;
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
  const minutes = Math.floor(ms / 60_000);
  return minutes < 60
    ? `${minutes} min ${Math.round((ms % 60_000) / 1000)} s`
    : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function formatRelativeTime(timestamp) {
  const seconds = (new Date(timestamp).getTime() - Date.now()) / 1000;
  for (const [unit, length] of [
    ["day", 86_400],
    ["hour", 3600],
    ["minute", 60],
  ]) {
    if (Math.abs(seconds) >= length) return relativeFormat.format(Math.round(seconds / length), unit);
  }
  return relativeFormat.format(Math.round(seconds), "second");
}
