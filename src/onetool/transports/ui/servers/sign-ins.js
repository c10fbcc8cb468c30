/** The sign-ins of one server: a person signs in to it and out of it here. */
import { encodePath, request, send } from "../core/api.js";
import { button, confirmAction, definitionList, notify, primaryButton } from "../core/components.js";
import { h } from "../core/h.js";
import { t } from "../core/i18n.js";
import { formatDate } from "../core/text.js";

/** Render a sign-in. `reload` loads the screen again and focuses the button with this label. */
export function renderSignIn(one, reload) {
  const label = [one.name, one.account].filter(Boolean).join(" · ");
  const refreshes = one.refreshes ? t("servers.refreshes") : "";
  return h(
    "section.sign-in.stack",
    { "aria-label": label },
    definitionList([
      [t("servers.account"), one.account],
      [t("servers.agent"), one.agent ?? t("servers.agent.all")],
      [t("servers.user"), one.signedIn ? (one.user ?? t("servers.user.unknown")) : t("servers.user.none")],
      [t("servers.expires"), one.expiresAt && [formatDate(one.expiresAt), refreshes].filter(Boolean).join(", ")],
      [t("servers.scope"), one.signedIn ? one.scope : null],
      [t("servers.issuer"), one.signedIn ? one.issuer : null],
    ]),
    h("div.actions", {}, renderButtons(one, label, reload)),
  );
}

function renderButtons(one, label, reload) {
  const signIn = (event) => act(event.currentTarget, () => openSignIn(one));
  const leave = (event) => act(event.currentTarget, () => signOut(one, label, reload));
  return one.signedIn
    ? [
        button(t("servers.signInAgain"), signIn, { "aria-label": t("servers.signInAgain.to", { label }) }),
        button(t("servers.signOut"), leave, { "aria-label": t("servers.signOut.of", { label }), class: "danger" }),
      ]
    : primaryButton(t("servers.signIn"), signIn, { "aria-label": t("servers.signIn.to", { label }) });
}

/** Run an action with its button disabled: a second click would start it again. */
export async function act(control, action) {
  control.disabled = true;
  try {
    await action();
  } catch (error) {
    notify(error.message, "bad");
  } finally {
    control.disabled = false;
    if (control.isConnected) control.focus();
  }
}

async function signOut({ name, account }, label, reload) {
  if (!(await confirmAction(t("servers.signOut.sure", { label }), t("servers.signOut")))) return;
  await request("DELETE", `/api/sign-ins${encodePath(name)}`, { query: { account } });
  notify(t("servers.signedOut", { label }));
  await reload(t("servers.signIn.to", { label })); // the button that had the focus is gone
}

/** Leave for the authorization server. The page of the callback links back to this screen. */
async function openSignIn({ name, account }) {
  const { url } = await send("POST", `/api/sign-ins${encodePath(name)}`, { account: account ?? "" });
  location.assign(url);
}
