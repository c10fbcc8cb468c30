/** Screen "Servers": upstream servers that need a sign-in. A person signs in to them and out of them here. */
import { ApiError, encodePath, get, request, send } from "../core/api.js";
import { button, confirmAction, definitionList, emptyState, notify, primaryButton } from "../core/components.js";
import { h } from "../core/h.js";
import { t } from "../core/i18n.js";
import { load } from "../core/loading.js";
import { formatDate } from "../core/text.js";
import { deniedState } from "../approvals/sign-in.js";

class ServersScreen extends HTMLElement {
  connectedCallback() {
    this.className = "page";
    this.list = h("div.stack");
    this.append(
      h("div.inner", {}, h("h1", {}, t("screen.servers")), h("p.hint", {}, t("servers.hint")), this.list),
    );
    this.#load();
  }

  show() {}

  #load() {
    return load(this.list, async () => {
      try {
        const { signIns } = await get("/api/sign-ins");
        if (!signIns.length) return emptyState(t("servers.none"), t("servers.none.advice"));
        return signIns.map((one) => this.#render(one));
      } catch (error) {
        if (!(error instanceof ApiError && error.status === 403)) throw error;
        return deniedState(t("servers.denied"), error, () => this.#load());
      }
    });
  }

  #render(one) {
    const label = [one.name, one.account].filter(Boolean).join(" · ");
    const refreshes = one.refreshes ? t("servers.refreshes") : "";
    return h(
      "section.card.stack",
      { "aria-label": label },
      h("h2", {}, one.name),
      definitionList([
        [t("servers.account"), one.account],
        [t("servers.agent"), one.agent ?? t("servers.agent.all")],
        [t("servers.user"), one.signedIn ? (one.user ?? t("servers.user.unknown")) : t("servers.user.none")],
        [t("servers.expires"), one.expiresAt && [formatDate(one.expiresAt), refreshes].filter(Boolean).join(", ")],
        [t("servers.scope"), one.signedIn ? one.scope : null],
        [t("servers.issuer"), one.signedIn ? one.issuer : null],
      ]),
      h("div.actions", {}, this.#buttons(one, label)),
    );
  }

  #buttons(one, label) {
    const signIn = (event) => this.#act(event.currentTarget, () => openSignIn(one));
    const signOut = (event) => this.#act(event.currentTarget, () => this.#signOut(one, label, event.target));
    return one.signedIn
      ? [
          button(t("servers.signInAgain"), signIn, { "aria-label": t("servers.signInAgain.to", { label }) }),
          button(t("servers.signOut"), signOut, { "aria-label": t("servers.signOut.of", { label }), class: "danger" }),
        ]
      : primaryButton(t("servers.signIn"), signIn, { "aria-label": t("servers.signIn.to", { label }) });
  }

  async #act(control, action) {
    control.disabled = true; // a second click would start a second sign-in
    try {
      await action();
    } catch (error) {
      notify(error.message, "bad");
    } finally {
      control.disabled = false;
      if (control.isConnected) control.focus();
    }
  }

  async #signOut({ name, account }, label, control) {
    if (!(await confirmAction(t("servers.signOut.sure", { label }), t("servers.signOut")))) return;
    await request("DELETE", `/api/sign-ins${encodePath(name)}`, { query: { account } });
    notify(t("servers.signedOut", { label }));
    const index = [...this.list.children].indexOf(control.closest("section"));
    await this.#load();
    this.list.children[index]?.querySelector("button")?.focus(); // the button that had the focus is gone
  }
}

/** Leave for the authorization server. The page of the callback links back to this screen. */
async function openSignIn({ name, account }) {
  const { url } = await send("POST", `/api/sign-ins${encodePath(name)}`, { account: account ?? "" });
  location.assign(url);
}

customElements.define("ot-servers", ServersScreen);
