/** New agents: a dialog that asks for the name, and the agent before it is saved. */
import { button, labeled, openModal, quietButton } from "../core/components.js";
import { h } from "../core/h.js";
import { t } from "../core/i18n.js";
import { navigate } from "../core/router.js";

/** Ask for a name, then open the form of the new agent. */
export function askForName() {
  const input = h("input", { type: "text", required: true, maxlength: 100, spellcheck: "false", autocomplete: "off" });
  const submit = () => {
    if (!input.value.trim()) return;
    dialog.close();
    navigate("agents", input.value.trim());
  };
  const dialog = openModal(
    t("agents.add"),
    h(
      "form.stack",
      { onsubmit: (event) => (event.preventDefault(), submit()) },
      labeled(t("agents.name"), input, { hint: t("agents.name.hint") }),
    ),
    [quietButton(t("cancel"), () => dialog.close()), button(t("agents.add.next"), submit)],
  );
}

export const makeNewAgent = (name) => ({
  name,
  isNew: true,
  effective: {},
  entry: { values: {}, etag: null, file: t("agents.newFile") },
});
