/** The hosts that tools of all agents may call. */
import { get } from "../core/api.js";
import { button, labeled, notify } from "../core/components.js";
import { h } from "../core/h.js";
import { t } from "../core/i18n.js";
import { readLines } from "../settings/fields.js";
import { CONFLICT, reviewChange } from "../settings/review.js";

const PATH = "/api/settings/hosts";

/** Return an element with the hosts, which can be edited. */
export function renderHosts() {
  let entry = null;
  const area = h("textarea", { rows: 4, spellcheck: "false" });
  const show = async () => {
    entry = await get(PATH);
    area.value = entry.hosts.join("\n");
  };
  const save = async () => {
    const change = { method: "PUT", path: PATH, body: { hosts: readLines(area) }, etag: entry.etag };
    try {
      if (!(await reviewChange(t("agents.hosts"), change))) return;
      notify(t("saved", { name: t("agents.hosts") }));
      await show();
    } catch (error) {
      notify(error.message, "bad");
      if (error.status === CONFLICT) entry.etag = error.details.etag; // what was typed stays
    }
  };
  const element = h(
    "details.card",
    {},
    h("summary", {}, t("agents.hosts")),
    h(
      "div.stack",
      {},
      labeled(t("agents.hosts.label"), area, { hint: t("agents.hosts.hint") }),
      h("div.actions", {}, button(t("agents.review"), save, { "aria-label": t("agents.hosts.review") })),
    ),
  );
  element.addEventListener(
    "toggle",
    () => element.open && !entry && show().catch((error) => notify(error.message, "bad")),
  );
  return element;
}
