/** What went wrong in a call: its type, its words, and what else is known. */
import { withHint } from "../core/api.js";
import { h } from "../core/h.js";
import { clipped, duration } from "../core/text.js";
import { resultView } from "./view.js";

const LONGEST = 20_000;

export function wrong({ type, message, hint, ...rest }, ms) {
  return h(
    "div.outcome",
    { data: { mood: "bad" } },
    h("p", {}, h("strong", {}, type), h("span.time", {}, duration(ms))),
    h("p.pre", { dir: "auto" }, clipped(withHint(String(message ?? ""), hint), LONGEST)),
    Object.keys(rest).length ? resultView(rest) : null,
  );
}
