/** Asks for hosts to allow and for secrets that imported tools need. Values are sent once and never shown. */
import { get } from "../core/api.js";
import { h } from "../core/h.js";
import { labeled } from "../core/components.js";
import { t } from "../core/i18n.js";
import { addRequirements } from "./bundle-api.js";
import { checkbox } from "./difference-view.js";

const OWNER = "owner";
const EDITORS = new Set(["admin", OWNER]); // scopes that may change settings

class Requirements extends HTMLElement {
  /** Show what is missing. Without the right to change settings, it is a list of what to edit by hand. */
  async configure({ missingHosts, missingSecrets, secretUses }) {
    const { scope } = await get("/api/session").catch(() => ({ scope: null }));
    this.canSave = EDITORS.has(scope);
    this.hosts = missingHosts.map((host) => [host, checkbox(h("code", {}, host), true)]);
    this.secrets = missingSecrets.map((name) => [name, secretField(name)]);
    // A secret that is set may be meant for other servers, so the owner has to choose it.
    this.uses = secretUses
      .filter((use) => !use.isAllowed)
      .map((use) => [use, checkbox(t("secrets.use", use), missingSecrets.includes(use.name))]);
    this.canAllow = scope === OWNER;
    if (this.hosts.length) this.append(this.#hostSection());
    if (this.secrets.length) this.append(this.#secretSection());
    if (this.uses.length) this.append(this.#useSection());
    if (this.childElementCount && !this.canSave) this.append(h("p.hint", {}, t("requirements.signIn")));
    return this;
  }

  /** Store what the person has entered. */
  async save() {
    const hosts = this.canSave ? this.hosts.filter(([, box]) => box.control.checked).map(([host]) => host) : [];
    const entered = this.canSave ? this.secrets.filter(([, field]) => field.control.value) : [];
    const secrets = Object.fromEntries(entered.map(([name, field]) => [name, field.control.value]));
    const chosen = this.canAllow ? this.uses.filter(([, box]) => box.control.checked) : [];
    const secretUses = chosen.map(([{ bundle, name, origin }]) => ({ bundle, name, origin }));
    if (hosts.length || entered.length || chosen.length) await addRequirements({ hosts, secrets, secretUses });
    for (const [, field] of entered) field.control.value = "";
  }

  #hostSection() {
    const items = this.hosts.map(([host, box]) => h("li", {}, this.canSave ? box : h("code", {}, host)));
    const title = t(this.canSave ? "requirements.hosts" : "import.hosts");
    return h("fieldset", {}, h("legend", {}, title), h("ul.todo", {}, items));
  }

  #useSection() {
    const items = this.uses.map(([use, box]) => h("li", {}, this.canAllow ? box : t("secrets.use", use)));
    const hint = this.canAllow ? null : h("p.hint", {}, t("secrets.use.owner"));
    return h("fieldset", {}, h("legend", {}, t("requirements.uses")), hint, h("ul.todo", {}, items));
  }

  #secretSection() {
    if (this.canSave)
      return h(
        "fieldset",
        {},
        h("legend", {}, t("requirements.secrets")),
        h("p.hint", {}, t("requirements.secrets.hint")),
        this.secrets.map(([, field]) => field),
      );
    const items = this.secrets.map(([name]) => h("li", {}, h("code", {}, name)));
    return h("fieldset", {}, h("legend", {}, t("import.secrets")), h("ul.todo", {}, items));
  }
}

const secretField = (name) =>
  labeled(h("code", {}, name), h("input", { type: "password", autocomplete: "new-password", spellcheck: "false" }));

customElements.define("ot-requirements", Requirements);
export const requirementsForm = (found) => document.createElement("ot-requirements").configure(found);
