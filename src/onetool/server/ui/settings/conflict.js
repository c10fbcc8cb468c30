/** Tells a person who edits settings that somebody else has changed them. */
import { fill, h } from "../core/h.js";
import { t } from "../core/i18n.js";
import { settingsHistory } from "./feed.js";

/** A notice about the change of an entry. `both` are the names of the settings that both changed. */
export function changeNotice(name, values, both) {
  const who = h("p");
  const showWho = () => {
    const last = settingsHistory.value?.changes.find((one) => one.names.includes(name));
    fill(who, last ? t("settings.changed.by", { name, actor: last.actor }) : t("settings.changed", { name }));
  };
  showWho();
  const stop = settingsHistory.listen(() => (who.isConnected ? showWho() : stop())); // files change before the history
  const advice = both.length ? t("settings.changed.both", { settings: both.join(", ") }) : t("settings.changed.kept");
  return h(
    "div.banner",
    {},
    who,
    h("p", {}, advice),
    h("p.hint", {}, t("settings.changed.now"), " ", h("code", {}, JSON.stringify(values))),
  );
}
