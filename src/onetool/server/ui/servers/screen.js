/** Screen "Servers": upstream servers, their states and sign-ins. People add, start, stop and remove them here. */
import { get } from "../core/api.js";
import { emptyState, primaryButton, quietButton } from "../core/components.js";
import { h } from "../core/h.js";
import { t } from "../core/i18n.js";
import { keyedList } from "../core/keyed-list.js";
import { loadStyles } from "../core/styles.js";
import { loadPermitted } from "../approvals/sign-in.js";
import { watchSettings } from "../settings/feed.js";
import { openHistory } from "../settings/history.js";
import { openAddDialog } from "./add-dialog.js";
import { secretList } from "./secrets.js";
import { renderServer } from "./server-card.js";

await loadStyles("settings");
await loadStyles("bundles");
const REFRESH_MS = 3000;

class ServersScreen extends HTMLElement {
  #stops = [];
  #renderCards = keyedList(
    ({ server }) => server.name,
    ({ server, signIns }) => renderServer(server, signIns, () => this.#updateAll()),
  );

  connectedCallback() {
    this.className = "page";
    this.list = h("div.stack.servers");
    this.secrets = secretList();
    this.secretSection = h("section.card", { "aria-label": t("secrets.title"), hidden: true }, this.secrets);
    const actions = h(
      "div.actions",
      {},
      quietButton(t("settings.history"), openHistory),
      primaryButton(t("servers.add"), () => openAddDialog(() => this.#updateAll())),
    );
    this.append(
      h(
        "div.inner",
        {},
        h("div.bar.heading", {}, h("h1", {}, t("screen.servers")), actions),
        h("p.hint", {}, t("servers.hint")),
        this.list,
        this.secretSection,
      ),
    );
    const timer = setInterval(() => document.hidden || this.#update(), REFRESH_MS);
    this.#stops = [watchSettings(() => this.#updateAll()), () => clearInterval(timer)];
    this.#load().then(() => this.#updateSecrets());
  }

  disconnectedCallback() {
    for (const stop of this.#stops) stop();
  }

  show() {}

  #load({ isUpdate = false } = {}) {
    const retry = () => this.#load().then(() => this.#updateSecrets());
    return loadPermitted(this.list, t("servers.denied"), () => this.#render(), { isUpdate, retry });
  }

  #update() {
    return this.#load({ isUpdate: true });
  }

  async #updateAll() {
    await this.#update();
    await this.#updateSecrets();
  }

  /** Show the secrets to those who may see their names. */
  async #updateSecrets() {
    const { scope } = await get("/api/session").catch(() => ({ scope: null }));
    this.secretSection.hidden = !["admin", "owner"].includes(scope);
    if (!this.secretSection.hidden) await this.secrets.update();
  }

  async #render() {
    const [{ servers }, { signIns }] = await Promise.all([get("/api/servers"), get("/api/sign-ins")]);
    if (!servers.length) return emptyState(t("servers.none"), t("servers.none.advice"));
    const entries = servers.map((server) => ({ server, signIns: signIns.filter(({ name }) => name === server.name) }));
    return this.#renderCards(entries);
  }
}

customElements.define("ot-servers", ServersScreen);
