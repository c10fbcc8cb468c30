/** The history of changes of the settings, each with its difference and a button that undoes it. */
import { encodePath } from "../core/api.js";
import { button, emptyState, notify, openModal } from "../core/components.js";
import { h } from "../core/h.js";
import { t, tOr } from "../core/i18n.js";
import { refill } from "../core/refill.js";
import { formatDate } from "../core/text.js";
import { difference } from "./difference.js";
import { settingsHistory } from "./feed.js";
import { reviewChange } from "./review.js";

export function openHistory() {
  const list = h("div.stack.history", { "aria-live": "polite" });
  const show = () => refill(list, renderChanges());
  const stop = settingsHistory.listen(show);
  show();
  const dialog = openModal(t("settings.history"), list, [], { class: "review" });
  dialog.addEventListener("close", stop);
}

const describeChange = ({ action, names }) => `${tOr(`action.${action}`, action)} ${names.join(", ")}`.trim();

/** Undo a change after showing what that does. */
async function undo(change) {
  try {
    const path = `/api/settings/history${encodePath(change.id)}/undo`;
    const title = t("settings.undo.title", { change: describeChange(change) });
    if (await reviewChange(title, { method: "POST", path })) notify(t("settings.undone"));
  } catch (error) {
    notify(error.message, "bad");
  }
}

function renderChanges() {
  const changes = settingsHistory.value?.changes ?? [];
  if (!changes.length) return emptyState(t("settings.history.none"), t("settings.history.none.advice"));
  const undone = new Set(changes.map((change) => change.undoes).filter(Boolean));
  return changes.map((change) => renderChange(change, undone.has(change.id)));
}

function renderChange(change, isUndone) {
  const title = describeChange(change);
  const label = t("settings.undo.of", { change: title });
  return h(
    "article.card.stack",
    { "aria-label": title, data: { key: change.id } },
    h("h3", {}, title),
    h(
      "p.hint",
      {},
      [formatDate(change.at), change.actor, isUndone ? t("settings.isUndone") : null].filter(Boolean).join(" · "),
    ),
    h("details", {}, h("summary", {}, t("settings.difference")), difference(change.difference)),
    change.canUndo && !isUndone
      ? h(
          "div.actions",
          {},
          button(t("settings.undo"), () => undo(change), { "aria-label": label }),
        )
      : null,
  );
}
