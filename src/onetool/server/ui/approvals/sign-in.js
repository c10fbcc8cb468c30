/** Signs in with a one-time code, of `onetool ui` or of an issuer, shows who has signed in, and signs out. */
import { ApiError, get, request, send, setCsrf, setToken, tokenRequired } from "../core/api.js";
import { button, emptyState, quietButton } from "../core/components.js";
import { h } from "../core/h.js";
import { t } from "../core/i18n.js";
import { load } from "../core/loading.js";

/** Open a session and return its scope. */
export async function signIn(code) {
  setToken(""); // the session replaces it
  const { csrf, scope } = await send("POST", "/api/session", { code });
  setCsrf(csrf);
  return scope;
}

/** Show who has signed in, and a button that signs out. */
export async function showAccount(container) {
  const { actor, scope } = await get("/api/session");
  container.querySelector(".account")?.remove();
  if (!actor) return;
  const text = t("account.as", { actor });
  container.append(
    h(
      "span.account",
      {},
      h("span.who", { title: `${text} (${scope})` }, text),
      quietButton(t("account.signOut"), signOut, { title: text }),
    ),
  );
}

/** Add a link for each issuer with which people can sign in. */
export async function addSignIns(container) {
  const response = await fetch("api/session", { cache: "no-store" });
  const { signIn: options } = response.ok ? await response.json() : { signIn: [] };
  const links = options.map(({ issuer, path }) =>
    h("p", {}, h("a.sign-in", { href: `.${path}` }, t("account.signIn", { issuer: new URL(issuer).host }))),
  );
  container.append(...links);
}

/** Fill the element with the result of `make`, or, if the server denies that, with a way to sign in. `retry` is called
 * after that; by default, it calls `make` again. */
export function loadPermitted(element, title, make, { isUpdate, retry } = {}) {
  const attempt = async () => {
    try {
      return await make();
    } catch (error) {
      if (!(error instanceof ApiError && error.status === 403)) throw error;
      return deniedState(title, error, retry ?? (() => loadPermitted(element, title, make)));
    }
  };
  return load(element, attempt, { isUpdate });
}

/** A placeholder for content that needs a session or a token of a larger scope. `retry` loads it with the token. */
export function deniedState(title, error, retry) {
  const useToken = () => {
    tokenRequired.value = title;
    const stop = tokenRequired.listen(() => (stop(), retry()));
  };
  return emptyState(
    title,
    error.details?.scope === "use" ? error.message : t("account.denied.advice"),
    button(t("account.useToken"), useToken),
  );
}

async function signOut() {
  await request("DELETE", "/api/session");
  setCsrf("");
  setToken("");
  location.hash = "";
  location.reload();
}
