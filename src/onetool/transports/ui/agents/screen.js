/** Screen "Agents": their permissions, limits and policies, and what each of them may call. */
import { ApiError, encodePath, get } from "../core/api.js";
import { emptyState, notify, primaryButton, quietButton } from "../core/components.js";
import { fill, h } from "../core/h.js";
import { t } from "../core/i18n.js";
import { load } from "../core/loading.js";
import { link, navigate } from "../core/router.js";
import { loadStyles } from "../core/styles.js";
import { deniedState } from "../approvals/sign-in.js";
import { settingsHistory, watchSettings } from "../settings/feed.js";
import { openHistory } from "../settings/history.js";
import { CONFLICT, reviewChange } from "../settings/review.js";
import { askForName, makeNewAgent } from "./add-agent.js";
import { AgentForm, nameSetting } from "./agent-form.js";
import { renderHosts } from "./hosts.js";
import "./call-view.js";

const RETRY_MS = 300;

await loadStyles("settings");

class AgentsScreen extends HTMLElement {
  #stops = [];
  #version = null;
  #agents = [];
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
    this.#stops = [watchSettings(), settingsHistory.listen((history) => this.#onHistory(history))];
    this.#loadList();
  }

  disconnectedCallback() {
    for (const stop of this.#stops) stop();
  }

  show(name) {
    if (name === this.#name && this.#form) return;
    this.#name = name ?? null;
    if (this.#agents.length) this.#loadAgent();
  }

  #loadList() {
    return load(this.list, async () => {
      try {
        this.#agents = (await get("/api/agents")).agents;
      } catch (error) {
        if (!(error instanceof ApiError && error.status === 403)) throw error;
        fill(this.detail);
        return deniedState(t("agents.denied"), error, () => (watchSettings(), this.#loadList()));
      }
      this.#loadAgent();
      return this.#renderList();
    });
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
    fill(this.list, this.#renderList());
    if (name === null) return fill(this.detail, emptyState(t("agents.none")));
    this.#form = null;
    await load(this.detail, async () => {
      const isKnown = this.#agents.some((agent) => agent.name === name);
      this.#agent = isKnown ? await get(`/api/agents${encodePath(name)}`) : makeNewAgent(name);
      return this.#renderAgent();
    });
  }

  #renderAgent() {
    const view = document.createElement("ot-call-view");
    const form = (this.#form = new AgentForm(() => (view.update(), this.#showState())));
    this.notice = h("div.notice-area", { role: "status" });
    this.save = primaryButton(t("agents.review"), () => this.#review());
    this.reset = quietButton(t("agents.reset"), () => (form.show(this.#agent), view.update(0), this.#showState()));
    const { name, entry, isNew } = this.#agent;
    const remove = () =>
      this.#change(t("agents.remove.title", { name }), { method: "DELETE" }, () => navigate("agents"));
    form.show(this.#agent);
    setTimeout(() => view.configure(name, () => (isNew || form.isChanged ? form.readDraft() : null)));
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
          form.element,
          h("div.actions", {}, this.save, this.reset, entry.etag ? quietButton(t("agents.remove"), remove) : null),
        ),
        h("div.card.stack.call-card", {}, view),
      ),
    ];
  }

  #showState() {
    let isChanged = true;
    try {
      isChanged = this.#form.isChanged;
    } catch {
      // a field is invalid: saving shows why
    }
    this.save.disabled = this.reset.disabled = !isChanged && !this.#agent.isNew;
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
    const { name, entry } = this.#agent;
    const fresh = await get(`/api/agents${encodePath(name)}`).catch(() => null);
    if (!fresh) return fill(this.notice, h("p.banner", {}, t("agents.gone", { name })));
    if (fresh.entry.etag === entry.etag || !this.#form) return;
    const both = this.#form.rebase(fresh);
    const last = settingsHistory.value?.changes.find((one) => one.names.includes(name));
    this.#agent = fresh;
    this.#showState();
    fill(
      this.notice,
      h(
        "div.banner",
        {},
        h("p", {}, t(last ? "agents.changed.by" : "agents.changed", { name, actor: last?.actor })),
        h(
          "p",
          {},
          both.length
            ? t("agents.changed.both", { settings: both.map(nameSetting).join(", ") })
            : t("agents.changed.kept"),
        ),
        h("p.hint", {}, t("agents.changed.now"), " ", h("code", {}, JSON.stringify(fresh.entry.values))),
      ),
    );
    this.notice.scrollIntoView({ block: "nearest" });
  }

  async #onHistory({ version }) {
    const isNew = this.#version !== null && this.#version !== version;
    if (isNew && this.#agent && (!this.#form || document.querySelector("dialog[open]"))) return this.#retry();
    this.#version = version;
    if (!isNew) return;
    this.#agents = (await get("/api/agents")).agents;
    fill(this.list, this.#renderList());
    if (this.#form && !this.#agent.isNew) await this.#rebase(); // never replaces the form: somebody may be typing
  }

  /** Handle a change later, because the agent is being loaded or reviewed. */
  #retry() {
    setTimeout(() => this.isConnected && this.#onHistory(settingsHistory.value), RETRY_MS);
  }
}

customElements.define("ot-agents", AgentsScreen);
