/** Changes settings: shows the difference first, then saves it. */
import { request } from "../core/api.js";
import { notify, openModal, primaryButton, quietButton } from "../core/components.js";
import { fill, h } from "../core/h.js";
import { t } from "../core/i18n.js";
import { difference } from "./difference.js";

export const CONFLICT = 412;

/** Send a change. `etag` is that of the entry as the person saw it; null if there was none. */
export async function sendChange({ method, path, body, etag }, { isDryRun = false } = {}) {
  const headers = etag === undefined ? {} : etag === null ? { "if-none-match": "*" } : { "if-match": etag };
  const query = isDryRun ? { dryRun: "true" } : {};
  const response = await request(method, path, { body, query, headers });
  return response.json();
}

/** Show the difference, and save it if the person confirms. Return the result, or null. A conflict throws. */
export async function reviewChange(title, change) {
  const preview = await sendChange(change, { isDryRun: true });
  if (!preview.difference) {
    notify(t("settings.nothing"));
    return null;
  }
  return confirmChange(title, preview, () => sendChange(change));
}

function confirmChange(title, preview, save) {
  return new Promise((resolve, reject) => {
    let result = null;
    const problem = h("p.problem", { role: "alert", hidden: true });
    const submit = async () => {
      button.disabled = true;
      try {
        result = await save();
        dialog.close();
      } catch (error) {
        if (error.status === CONFLICT) {
          reject(error);
          dialog.close();
        }
        fill(problem, error.message).hidden = false;
      } finally {
        button.disabled = false;
      }
    };
    const button = primaryButton(t("save"), submit);
    const notes = [...preview.notes, ...Object.keys(preview.missing).map((name) => t("settings.missing", { name }))];
    const dialog = openModal(
      title,
      [
        difference(preview.difference),
        notes.length
          ? h(
              "ul.notes",
              {},
              notes.map((note) => h("li", {}, note)),
            )
          : null,
        problem,
      ],
      [quietButton(t("cancel"), () => dialog.close()), button],
      { class: "review" },
    );
    button.focus();
    dialog.addEventListener("close", () => resolve(result));
  });
}
