/** Dialog that changes the settings of a server. The difference is shown before it is saved. */
import { encodePath, get } from "../core/api.js";
import { actionButton, notify, openModal, quietButton } from "../core/components.js";
import { fill, h } from "../core/h.js";
import { t } from "../core/i18n.js";
import { changeNotice } from "../settings/conflict.js";
import { settingsHistory } from "../settings/feed.js";
import { CONFLICT, reviewChange } from "../settings/review.js";
import { SettingsForm } from "../settings/settings-form.js";
import { makeFields, nameSetting } from "./server-fields.js";

/** Open the dialog. `onSaved` is called after a change. */
export function openEditDialog({ name, kind, entry }, onSaved) {
  const path = `/api/servers${encodePath(name)}`;
  const form = new SettingsForm(() => makeFields(kind === "stdio"));
  const notice = h("div.notice-area", { role: "status" });
  const problem = h("p.problem.pre", { role: "alert", hidden: true });
  let { etag } = entry;
  form.show(toSettings(entry));
  /** Load the settings again after a change of somebody else, and keep what was typed. */
  const rebase = async () => {
    const fresh = (await get(path)).entry;
    if (fresh.etag === etag) return;
    etag = fresh.etag;
    fill(notice, changeNotice(name, fresh.values, form.rebase(toSettings(fresh)).map(nameSetting)));
  };
  const submit = async () => {
    problem.hidden = true;
    try {
      const change = { method: "PATCH", path, body: { settings: form.readPatch() }, etag };
      if (!(await reviewChange(t("servers.edit.review", { name }), change))) return;
      dialog.close();
      notify(t("saved", { name }));
      await onSaved();
    } catch (error) {
      if (error.status === CONFLICT) await rebase();
      else fill(problem, error.message).hidden = false;
    }
  };
  const dialog = openModal(
    t("servers.edit.title", { name }),
    h("form.stack", { onsubmit: (event) => (event.preventDefault(), submit()) }, notice, form.element, problem),
    [
      quietButton(t("cancel"), () => dialog.close()),
      actionButton(t("servers.edit.next"), submit, { class: "primary" }),
    ],
    { class: "wide" },
  );
  const stop = settingsHistory.listen(() => rebase().catch((error) => (fill(problem, error.message).hidden = false)));
  dialog.addEventListener("close", stop);
}

const toSettings = ({ values }) => ({ effective: values, values });
