/** The names of secrets: people set and remove their values here, which are never shown. */
import { encodePath, get } from "../core/api.js";
import { actionButton, button, confirmAction, labeled, notify, openModal, quietButton } from "../core/components.js";
import { fill, h } from "../core/h.js";
import { t } from "../core/i18n.js";
import { load } from "../core/loading.js";
import { reviewChange, sendChange } from "../settings/review.js";

class Secrets extends HTMLElement {
  connectedCallback() {
    this.body = h("div.stack");
    const add = button(t("secrets.add"), () => this.#set(), { class: "quiet" });
    this.append(
      h("div.bar.heading", {}, h("h2", {}, t("secrets.title")), add),
      h("p.hint", {}, t("secrets.hint")),
      this.body,
    );
  }

  /** Load the names. */
  update() {
    const render = async () => {
      const [{ secrets, uses }, { scope }] = await Promise.all([get("/api/secrets"), get("/api/session")]);
      const names = secrets.map((secret) => this.#row(secret));
      return h(
        "div.stack",
        {},
        names.length ? h("ul.secrets", {}, names) : h("p.hint", {}, t("secrets.none")),
        uses.length ? this.#renderUses(uses, scope === "owner") : null,
      );
    };
    return load(this.body, render, { isUpdate: true });
  }

  #row({ name, files, usedBy }) {
    const names = usedBy.map((user) => t(`secrets.user.${user.kind}`, user)).join(", ");
    const facts = [names ? t("secrets.used", { names }) : null, ...files];
    return h(
      "li.bar",
      { data: { key: name } },
      h(
        "div.about",
        {},
        h("code", {}, name),
        h("p.hint", {}, facts.filter(Boolean).join(" · ")),
      ),
      button(t("secrets.set"), () => this.#set(name), { "aria-label": t("secrets.set.one", { name }) }),
      actionButton(t("secrets.remove"), () => this.#remove(name), {
        class: "danger",
        "aria-label": t("secrets.remove.one", { name }),
      }),
    );
  }

  #renderUses(uses, isOwner) {
    const rows = uses.map((use) =>
      h(
        "li.bar",
        { data: { key: [use.bundle, use.name, use.origin].join(" ") } },
        h("div.about", {}, t("secrets.use", use)),
        isOwner ? this.#useButton(use) : h("span.hint", {}, t(use.isAllowed ? "secrets.use.allowed" : "secrets.use.owner")),
      ),
    );
    return h("section.stack", {}, h("h3", {}, t("secrets.uses")), h("ul.secrets", {}, rows));
  }

  /** A button for owners that allows tools of a bundle to send a secret, or no longer allows it. */
  #useButton(use) {
    const title = t(use.isAllowed ? "secrets.use.title.not" : "secrets.use.title", use);
    const change = async () => {
      const body = { ...use, isAllowed: !use.isAllowed };
      if (await reviewChange(title, { method: "PUT", path: "/api/secret-uses", body })) await this.update();
    };
    const label = t(use.isAllowed ? "secrets.use.disallow" : "secrets.use.allow");
    return actionButton(label, change, { "aria-label": title });
  }

  /** Ask for a value, and for the name of a new secret, and store it. */
  #set(known) {
    const name = h("input", { type: "text", value: known ?? "", readonly: Boolean(known), spellcheck: "false" });
    const value = h("input", { type: "password", autocomplete: "new-password", spellcheck: "false" });
    const problem = h("p.problem.pre", { role: "alert", hidden: true });
    const submit = async () => {
      try {
        const path = `/api/secrets${encodePath(name.value.trim())}`;
        await sendChange({ method: "PUT", path, body: { value: value.value } });
        dialog.close();
        notify(t("secrets.saved", { name: name.value.trim() }));
        await this.update();
      } catch (error) {
        fill(problem, error.message).hidden = false;
      }
    };
    const dialog = openModal(
      known ? t("secrets.set.one", { name: known }) : t("secrets.add"),
      h(
        "form.stack",
        { onsubmit: (event) => (event.preventDefault(), submit()) },
        labeled(t("secrets.name"), name, { hint: known ? null : t("secrets.name.hint") }),
        labeled(t("secrets.value"), value, { hint: t("secrets.value.hint") }),
        problem,
        h("button", { type: "submit", hidden: true }),
      ),
      [quietButton(t("cancel"), () => dialog.close()), actionButton(t("save"), submit, { class: "primary" })],
    );
    if (known) value.focus();
  }

  async #remove(name) {
    if (!(await confirmAction(t("secrets.remove.sure", { name }), t("secrets.remove")))) return;
    await sendChange({ method: "DELETE", path: `/api/secrets${encodePath(name)}` });
    notify(t("secrets.removed", { name }));
    await this.update();
  }
}

customElements.define("ot-secrets", Secrets);
export const secretList = () => document.createElement("ot-secrets");
