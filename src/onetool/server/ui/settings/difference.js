/** Shows a unified difference. Added and removed lines have a sign, so that the color is not needed. */
import { h } from "../core/h.js";
import { t } from "../core/i18n.js";

const TONES = { "+": "good", "-": "bad" };

export function difference(text) {
  return h(
    "pre.difference",
    { tabindex: "0", role: "region", "aria-label": t("settings.difference") },
    text.split("\n").map((line) => h("span.line", { data: { tone: TONES[line[0]] ?? "" } }, `${line}\n`)),
  );
}
