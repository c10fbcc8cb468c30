/** Screen "Agents": their permissions, limits and policies, and what each of them may call. */
import { encodePath, get } from "../core/api.js";
import { emptyState, notify, primaryButton, quietButton } from "../core/components.js";
import { fill, h } from "../core/h.js";
import { t } from "../core/i18n.js";
import { load } from "../core/loading.js";
import { forgetInput, refill } from "../core/refill.js";
import { link, navigate } from "../core/router.js";
import { loadStyles } from "../core/styles.js";
import { loadPermitted } from "../approvals/sign-in.js";
import { changeNotice } from "../settings/conflict.js";
import { watchSettings } from "../settings/feed.js";
import { openHistory } from "../settings/history.js";
import { CONFLICT, reviewChange } from "../settings/review.js";
import { SettingsForm } from "../settings/settings-form.js";
import { askForName, makeNewAgent } from "./add-agent.js";
import { makeFields, nameSetting } from "./fields.js";
import { renderHosts } from "./hosts.js";
import "./call-view.js";

const RETRY_MS = 300;
const READ_ONLY = { permissions: ["read", "network"], policy: "read-only" };

await loadStyles("settings");

class AgentsScreen extends HTMLElement {
  #stop = null;
  #agents = [];
  #keys = []; // of settings that an agent can have
  #name = null;
  #agent = null; // as the server has it
  #form = null;

  connectedCallback() {
    this.className = "page";
    this.list = h("nav.agent-list", { "aria-label": t("agents.list") });
    this.detail = h("section.agent", { "aria-label": t("agents.detail") });
    this.append(
      h(
        "div.inner",
        {},
        h(
          "div.bar.heading",
          {},
          h("h1", {}, t("screen.agents")),
          h(
            "div.actions",
            {},
            quietButton(t("settings.history"), openHistory),
            primaryButton(t("agents.add"), askForName),
          ),
        ),
        h("p.hint", {}, t("agents.hint")),
        h("div.agents-layout", {}, this.list, this.detail),
        renderHosts(),
      ),
    );
    this.#stop = watchSettings(() => this.#onChange());
    this.#loadList();
  }

  disconnectedCallback() {
    this.#stop();
  }

  show(name) {
    if (name === this.#name && this.#form) return;
    this.#name = name ?? null;
    if (this.#agents.length) this.#loadAgent();
  }

  #loadList() {
    return loadPermitted(this.list, t("agents.denied"), async () => {
      await this.#fetchList();
      this.#loadAgent();
      return this.#renderList();
    });
  }

  async #fetchList() {
    const { agents, settings } = await get("/api/agents");
    this.#agents = agents;
    this.#keys = settings;
  }

  #renderList() {
    return h(
      "ul",
      {},
      this.#agents.map(({ name, permissions, isOwn }) =>
        h(
          "li",
          {},
          h(
            "a",
            { href: link("agents", name), "aria-current": name === this.#name ? "page" : null },
            h("strong", {}, name),
            h(
              "span.hint",
              {},
              [permissions.join(", ") || t("agents.nothing"), isOwn ? t("agents.own") : null]
                .filter(Boolean)
                .join(" · "),
            ),
          ),
        ),
      ),
    );
  }

  async #loadAgent() {
    const name = (this.#name ??= this.#agents[0]?.name ?? null);
    refill(this.list, this.#renderList());
    if (name === null) return fill(this.detail, emptyState(t("agents.none")));
    this.#form = null;
    forgetInput(this.detail);
    await load(this.detail, async () => {
      const isKnown = this.#agents.some((agent) => agent.name === name);
      this.#agent = isKnown ? await get(`/api/agents${encodePath(name)}`) : makeNewAgent(name);
      return this.#renderAgent();
    });
  }

  #renderAgent() {
    const view = document.createElement("ot-call-view");
    const onInput = () => (view.update(), this.#showState());
    const form = (this.#form = new SettingsForm(() => makeFields(this.#keys), onInput));
    this.notice = h("div.notice-area", { role: "status" });
    this.save = primaryButton(t("agents.review"), () => this.#review());
    this.reset = quietButton(t("agents.reset"), () => (this.#showSettings(), view.update(0), this.#showState()));
    const preset = quietButton(t("agents.preset.read-only"), () => form.fill(READ_ONLY));
    const { name, entry, isNew } = this.#agent;
    const remove = () =>
      this.#change(t("agents.remove.title", { name }), { method: "DELETE" }, () => navigate("agents"));
    this.#showSettings();
    view.configure(name, () => (isNew || form.isChanged ? form.readDraft() : null));
    this.#showState();
    return [
      h("h2", {}, name),
      h("p.hint", {}, entry.etag ? entry.file : t("agents.notInFile", { file: entry.file })),
      this.notice,
      h(
        "div.agent-columns",
        {},
        h(
          "form.card.stack",
          {
            onsubmit: (event) => (event.preventDefault(), this.#review()),
            "aria-label": t("agents.settings.of", { name }),
          },
          h("div.bar", {}, h("span.hint", {}, t("agents.preset")), preset),
          form.element,
          h("div.actions", {}, this.save, this.reset, entry.etag ? quietButton(t("agents.remove"), remove) : null),
        ),
        h("div.card.stack.call-card", {}, view),
      ),
    ];
  }

  #showSettings() {
    this.#form.show({ effective: this.#agent.effective, values: this.#agent.entry.values });
  }

  #showState() {
    this.save.disabled = this.reset.disabled = !this.#form.isChanged && !this.#agent.isNew;
  }

  #review() {
    const { name } = this.#agent;
    let body;
    try {
      body = { settings: this.#form.readPatch() };
    } catch (error) {
      return notify(error.message, "bad");
    }
    if (this.#agent.isNew) body.settings.permissions ??= [];
    return this.#change(t("agents.review.title", { name }), { method: "PATCH", body }, () => this.#loadList());
  }

  /** Show the difference and save it. After a conflict, show what the other person changed and keep the input. */
  async #change(title, change, done) {
    const { name, entry } = this.#agent;
    try {
      const path = `/api/agents${encodePath(name)}`;
      if (!(await reviewChange(title, { ...change, path, etag: entry.etag }))) return;
      notify(t("saved", { name }));
      this.#form = null;
      await done();
    } catch (error) {
      if (error.status === CONFLICT) await this.#rebase();
      else notify(error.message, "bad");
    }
  }

  /** Load the agent again after a change of somebody else, and keep what was typed. */
  async #rebase() {
    const { name } = this.#agent;
    let fresh;
    try {
      fresh = await get(`/api/agents${encodePath(name)}`);
    } catch (error) {
      return error.status === 404 ? this.#showRemoved() : notify(error.message, "bad");
    }
    if (!this.#form || JSON.stringify(fresh) === JSON.stringify(this.#agent)) return;
    const both = this.#form.rebase({ effective: fresh.effective, values: fresh.entry.values });
    this.#agent = fresh;
    this.#showState();
    fill(this.notice, changeNotice(name, fresh.entry.values, both.map(nameSetting)));
  }

  /** Make the agent a new one, with everything that the form shows. */
  #showRemoved() {
    const { name } = this.#agent;
    this.#form.detach();
    this.#agent = makeNewAgent(name);
    this.#showState();
    fill(this.notice, h("p.banner", {}, t("agents.gone", { name })));
  }

  /** Show what somebody else changed, later if the agent is being loaded or reviewed. */
  async #onChange() {
    if (!this.isConnected) return;
    if (this.#agent && (!this.#form || document.querySelector("dialog[open]")))
      return setTimeout(() => this.#onChange(), RETRY_MS);
    await this.#fetchList();
    refill(this.list, this.#renderList());
    if (this.#form && !this.#agent.isNew) await this.#rebase(); // never replaces the form: somebody may be typing
  }
}

customElements.define("ot-agents", AgentsScreen);
