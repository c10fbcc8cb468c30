/** The error of a call: type, message and other fields. */
import { joinHint } from "../core/api.js";
import { h } from "../core/h.js";
import { truncate, formatDuration } from "../core/text.js";
import { resultView } from "./view.js";

const MAX_CHARS = 20_000;

export function errorView({ type, message, hint, ...rest }, ms) {
  return h(
    "div.outcome",
    { data: { tone: "bad" } },
    h("p", {}, h("strong", {}, type), h("span.time", {}, formatDuration(ms))),
    h("p.pre", { dir: "auto" }, truncate(joinHint(String(message ?? ""), hint), MAX_CHARS)),
    Object.keys(rest).length ? resultView(rest) : null,
  );
}
