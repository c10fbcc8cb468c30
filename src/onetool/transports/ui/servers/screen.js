/** Screen "Servers": upstream servers, their states and sign-ins. People add, start, stop and remove them here. */
import { ApiError, get } from "../core/api.js";
import { emptyState, primaryButton, quietButton } from "../core/components.js";
import { h } from "../core/h.js";
import { t } from "../core/i18n.js";
import { load } from "../core/loading.js";
import { loadStyles } from "../core/styles.js";
import { escapeInvisible } from "../core/text.js";
import { deniedState } from "../approvals/sign-in.js";
import { settingsHistory, watchSettings } from "../settings/feed.js";
import { openHistory } from "../settings/history.js";
import { openAddDialog } from "./add-dialog.js";
import { renderServer } from "./server-card.js";

await loadStyles("settings");
await loadStyles("bundles");
const REFRESH_MS = 3000;

class ServersScreen extends HTMLElement {
  #stops = [];
  #version = null;
  #shown = "";

  connectedCallback() {
    this.className = "page";
    this.list = h("div.stack.servers");
    const actions = h(
      "div.actions",
      {},
      quietButton(t("settings.history"), openHistory),
      primaryButton(t("servers.add"), () => openAddDialog(() => this.#load())),
    );
    this.append(
      h(
        "div.inner",
        {},
        h("div.bar.heading", {}, h("h1", {}, t("screen.servers")), actions),
        h("p.hint", {}, t("servers.hint")),
        this.list,
      ),
    );
    const timer = setInterval(() => this.#refresh(), REFRESH_MS);
    this.#stops = [
      watchSettings(),
      settingsHistory.listen((history) => this.#onHistory(history)),
      () => clearInterval(timer),
    ];
    this.#load();
  }

  disconnectedCallback() {
    for (const stop of this.#stops) stop();
  }

  show() {}

  #onHistory({ version }) {
    if (this.#version !== null && this.#version !== version) this.#load();
    this.#version = version;
  }

  async #fetch() {
    const [{ servers }, { signIns }] = await Promise.all([get("/api/servers"), get("/api/sign-ins")]);
    return { servers, signIns };
  }

  /** Load the list, keep what is open, and focus the control with this label, if there is one. */
  async #load(focusLabel) {
    const open = new Set([...this.list.querySelectorAll("article:has(details[open])")].map((one) => one.dataset.server));
    await load(this.list, async () => {
      try {
        return this.#render(await this.#fetch());
      } catch (error) {
        if (!(error instanceof ApiError && error.status === 403)) throw error;
        return deniedState(t("servers.denied"), error, () => (watchSettings(), this.#load()));
      }
    });
    for (const card of this.list.querySelectorAll("article"))
      if (open.has(card.dataset.server)) card.querySelector("details").open = true;
    if (focusLabel)
      [...this.list.querySelectorAll("[aria-label]")]
        .find((one) => one.ariaLabel === escapeInvisible(focusLabel))
        ?.focus();
  }

  /** Show new states, unless the person is reading or using something in the list. */
  async #refresh() {
    const isBusy =
      document.hidden || document.querySelector("dialog[open]") || this.list.querySelector("details[open]");
    if (isBusy || !this.#shown || this.list.contains(document.activeElement)) return;
    const found = await this.#fetch().catch(() => null);
    if (found && JSON.stringify(found) !== this.#shown && !this.list.contains(document.activeElement))
      this.list.replaceChildren(...[this.#render(found)].flat());
  }

  #render(found) {
    this.#shown = JSON.stringify(found);
    if (!found.servers.length) return emptyState(t("servers.none"), t("servers.none.advice"));
    const reload = (label) => this.#load(label);
    return found.servers.map((server) =>
      renderServer(
        server,
        found.signIns.filter(({ name }) => name === server.name),
        reload,
      ),
    );
  }
}

customElements.define("ot-servers", ServersScreen);
