/** Dialog that adds servers: by URL, by the command that starts one, or from the configuration of a client. */
import { actionButton, labeled, notify, openModal, quietButton, tabs } from "../core/components.js";
import { fill, h } from "../core/h.js";
import { t } from "../core/i18n.js";
import { pairs } from "../bundles/pairs.js";
import { argumentsField } from "../settings/fields.js";
import { reviewChange } from "../settings/review.js";

/** Open the dialog. `onAdded(names)` is called when servers were added. */
export function openAddDialog(onAdded) {
  const forms = { url: urlForm(), command: commandForm(), paste: pasteForm() };
  const list = Object.entries(forms).map(([id, { element }]) => ({
    id,
    label: t(`servers.add.${id}`),
    panel: element,
  }));
  const heads = tabs(t("servers.add.kind"), list);
  const problem = h("p.problem", { role: "alert", hidden: true });
  const submit = async () => {
    const chosen = list.find((one) => !one.panel.parentElement?.hidden && one.panel.isConnected).id;
    problem.hidden = true;
    try {
      const change = { method: "POST", path: "/api/servers", body: forms[chosen].read() };
      const added = await reviewChange(t("servers.add.review"), change);
      if (!added) return;
      dialog.close();
      notify(t("servers.added", { names: added.names.join(", ") }));
      onAdded(added.names);
    } catch (error) {
      fill(problem, error.message).hidden = false;
    }
  };
  const dialog = openModal(
    t("servers.add"),
    h(
      "form.stack",
      { onsubmit: (event) => (event.preventDefault(), submit()) },
      heads,
      problem,
      h("button.offscreen", { type: "submit", tabindex: "-1", "aria-hidden": "true" }),
    ),
    [quietButton(t("cancel"), () => dialog.close()), actionButton(t("servers.add.next"), submit, { class: "primary" })],
  );
}

const textInput = (attributes = {}) =>
  h("input", { type: "text", spellcheck: "false", autocomplete: "off", ...attributes });

function urlForm() {
  const name = textInput();
  const url = textInput({ type: "url" });
  const headers = pairs(t("servers.headers"));
  const auth = h("input", { type: "checkbox" });
  return {
    element: h(
      "div.stack",
      {},
      labeled(t("servers.name"), name, { hint: t("servers.name.hint") }),
      labeled(t("servers.url"), url),
      headers,
      h("p.hint", {}, t("servers.secrets.hint")),
      h("label.check", {}, auth, " ", t("servers.oauth")),
    ),
    read: () => ({
      name: name.value.trim(),
      settings: {
        url: url.value.trim(),
        ...(auth.checked ? { auth: "oauth" } : {}),
        ...nonEmpty("headers", headers.value),
      },
    }),
  };
}

function commandForm() {
  const name = textInput();
  const command = textInput({ placeholder: "npx" });
  const args = argumentsField(t("servers.args"), { hint: t("servers.args.hint") });
  const env = pairs(t("servers.env"));
  return {
    element: h(
      "div.stack",
      {},
      labeled(t("servers.name"), name, { hint: t("servers.name.hint") }),
      labeled(t("servers.command"), command),
      args.element,
      env,
      h("p.hint", {}, t("servers.secrets.hint")),
    ),
    read: () => {
      const given = { ...nonEmpty("args", args.read() ?? []), ...nonEmpty("env", env.value) };
      const settings = { command: command.value.trim(), ...given };
      return { name: name.value.trim(), settings };
    },
  };
}

function pasteForm() {
  const text = h("textarea.code", { rows: 10, spellcheck: "false" });
  return {
    element: labeled(t("servers.paste"), text, { hint: t("servers.paste.hint") }),
    read: () => ({ text: text.value }),
  };
}

const nonEmpty = (name, values) => (Object.keys(values).length ? { [name]: values } : {});
