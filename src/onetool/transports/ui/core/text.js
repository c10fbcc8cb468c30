/** Texts as a person sees them. What steers the direction of writing, or cannot be seen, is spelt out. */

// Controls but for tab and line breaks; marks of direction and characters without a shape; tags; halves of characters.
const UNSEEN = new RegExp(
  [
    /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f]/.source,
    /[\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/.source,
    /[\u{e0000}-\u{e007f}]|\p{Cs}/u.source,
  ].join("|"),
  "gu",
);

const numbers = new Intl.NumberFormat();
const compact = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const dateAndTime = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const ago = new Intl.RelativeTimeFormat(undefined, { numeric: "auto", style: "short" });

export function visible(text) {
  return text.replace(UNSEEN, (letter) => `\\u{${letter.codePointAt(0).toString(16)}}`);
}

export function clipped(text, most) {
  return text.length > most ? `${text.slice(0, most)}…` : text;
}

export const number = (value) => numbers.format(value);
export const few = (value) => (Math.abs(value) < 10_000 ? numbers.format(value) : compact.format(value));
export const timeOf = (moment) => clock.format(new Date(moment));
export const dateOf = (moment) => dateAndTime.format(new Date(moment));

export function bytes(count) {
  if (count < 1000) return `${number(count)} B`;
  const unit = count < 1e6 ? ["kB", 1e3] : count < 1e9 ? ["MB", 1e6] : ["GB", 1e9];
  return `${(count / unit[1]).toFixed(count / unit[1] < 10 ? 1 : 0)} ${unit[0]}`;
}

export function duration(ms) {
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

export function since(moment) {
  const seconds = (new Date(moment).getTime() - Date.now()) / 1000;
  for (const [unit, length] of [
    ["day", 86_400],
    ["hour", 3600],
    ["minute", 60],
  ]) {
    if (Math.abs(seconds) >= length) return ago.format(Math.round(seconds / length), unit);
  }
  return ago.format(Math.round(seconds), "second");
}
