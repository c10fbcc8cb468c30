/** A request as it would be sent. References to secrets are shown instead of their values. */
import { h } from "../core/h.js";
import { t } from "../core/i18n.js";
import { truncate } from "../core/text.js";

const MAX_CHARS = 20_000;

export function requestView({ step, method, url, headers, body }) {
  const lines = [`${method} ${url}`, ...headers.map(([name, value]) => `${name}: ${value}`)];
  const text = body === null ? lines : [...lines, "", body];
  return h(
    "details.request",
    { open: true },
    h("summary", {}, step ? t("request.step", { name: step }) : t("request.title")),
    h("pre.command", { tabindex: "0" }, truncate(text.join("\n"), MAX_CHARS)),
  );
}
