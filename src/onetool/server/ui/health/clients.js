/** The connected clients, each with a button that disconnects it. */
import { encodePath, get, request } from "../core/api.js";
import { actionButton, confirmAction, notify } from "../core/components.js";
import { h } from "../core/h.js";
import { t, tOr } from "../core/i18n.js";
import { formatRelativeTime } from "../core/text.js";
import { loadPermitted } from "../approvals/sign-in.js";
import { onChanged } from "../runs/activity.js";

class Clients extends HTMLElement {
  connectedCallback() {
    this.body = h("div");
    this.append(h("h2", {}, t("clients.title")), this.body);
    this.stop = onChanged(["clients"], () => this.update());
    this.#load();
  }

  disconnectedCallback() {
    this.stop();
  }

  update() {
    return this.#load({ isUpdate: true });
  }

  #load({ isUpdate = false } = {}) {
    const render = async () => {
      const { clients } = await get("/api/clients");
      if (!clients.length) return h("p.hint", {}, t("clients.none"));
      return h(
        "ul.clients",
        {},
        clients.map((client) => this.#row(client)),
      );
    };
    return loadPermitted(this.body, t("clients.denied"), render, { isUpdate });
  }

  #row(client) {
    const { id, name, kind, agent, actor, since, lastCall, directory, process } = client;
    const label = name || t("clients.unnamed");
    const facts = [
      tOr(`clients.${kind}`, kind),
      agent,
      actor,
      t("clients.since", { time: formatRelativeTime(since) }),
      lastCall ? t("clients.lastCall", { time: formatRelativeTime(lastCall) }) : t("clients.noCall"),
      directory,
      process ? t("clients.process", { process: String(process) }) : "",
    ];
    return h(
      "li",
      { data: { key: id } },
      h("div", {}, h("strong", {}, h("bdi", {}, label)), h("p.hint", {}, facts.filter(Boolean).join(" · "))),
      actionButton(t("clients.disconnect"), () => this.#disconnect(client, label), {
        class: "danger",
        "aria-label": t("clients.disconnect.one", { name: label }),
      }),
    );
  }

  async #disconnect({ id }, name) {
    if (!(await confirmAction(t("clients.disconnect.sure", { name }), t("clients.disconnect")))) return;
    await request("DELETE", `/api/clients${encodePath(id)}`).finally(() => this.update());
    notify(t("clients.disconnected", { name }));
  }
}

customElements.define("ot-clients", Clients);
export const clients = () => document.createElement("ot-clients");
