/** The sign-ins of one server: a person signs in to it and out of it here. */
import { encodePath, request, send } from "../core/api.js";
import { actionButton, confirmAction, definitionList, notify } from "../core/components.js";
import { h } from "../core/h.js";
import { t } from "../core/i18n.js";
import { formatDate } from "../core/text.js";

/** Render a sign-in. `reload` loads the screen again. */
export function renderSignIn(one, reload) {
  const label = [one.name, one.account].filter(Boolean).join(" · ");
  const refreshes = one.refreshes ? t("servers.refreshes") : "";
  return h(
    "section.sign-in.stack",
    { "aria-label": label, data: { key: label } },
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
  const signIn = () => openSignIn(one);
  const leave = () => signOut(one, label, reload);
  const data = { key: "sign in or out" };
  return one.signedIn
    ? [
        actionButton(t("servers.signInAgain"), signIn, { "aria-label": t("servers.signInAgain.to", { label }) }),
        actionButton(t("servers.signOut"), leave, {
          class: "danger",
          "aria-label": t("servers.signOut.of", { label }),
          data,
        }),
      ]
    : actionButton(t("servers.signIn"), signIn, {
        class: "primary",
        "aria-label": t("servers.signIn.to", { label }),
        data,
      });
}

async function signOut({ name, account }, label, reload) {
  if (!(await confirmAction(t("servers.signOut.sure", { label }), t("servers.signOut")))) return;
  await request("DELETE", `/api/sign-ins${encodePath(name)}`, { query: { account } });
  notify(t("servers.signedOut", { label }));
  await reload();
}

/** Leave for the authorization server. The page of the callback links back to this screen. */
async function openSignIn({ name, account }) {
  const { url } = await send("POST", `/api/sign-ins${encodePath(name)}`, { account: account ?? "" });
  location.assign(url);
}
