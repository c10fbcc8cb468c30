/** The frame around every screen: navigation, notices, the command palette and the token dialog. */
import { getCsrf, getToken, online, setToken, tokenRequired } from "./api.js";
import { fill, h } from "./h.js";
import { bindKeys } from "./keys.js";
import { loadModule } from "./lazy.js";
import { button, labeled, openModal, emptyState, notify, primaryButton, quietButton } from "./components.js";
import { navigate, route, link } from "./router.js";
import { t, tOr } from "./i18n.js";
import "../tools/screen.js";

// The screens in the order of the navigation.
const SCREENS = {
  tools: () => new Promise((resolve) => setTimeout(resolve)), // already loaded; lets the frame render first
  run: () => import("../run/screen.js"),
  bundles: () => import("../bundles/screen.js"),
  servers: () => import("../servers/screen.js"),
  agents: () => import("../agents/screen.js"),
  tokens: () => import("../tokens/screen.js"),
  runs: () => import("../runs/screen.js"),
  approvals: () => import("../approvals/screen.js"),
  audit: () => import("../audit/screen.js"),
  health: () => import("../health/screen.js"),
  statistics: () => import("../statistics/screen.js"),
};
// Screens of older versions, whose URLs people may have stored.
const REDIRECTS = { live: "runs", stats: "statistics", health: "health" };
const DEFAULT_SCREEN = "tools";
const PRELOAD_DELAY_MS = 1000;
const loadPalette = () => import("../tools/palette.js");
const loadSignIn = () => import("../approvals/sign-in.js");

class Frame extends HTMLElement {
  #name = "";

  connectedCallback() {
    this.links = Object.keys(SCREENS).map((name) => h("a", { href: link(name), data: { name } }, t(`screen.${name}`)));
    this.main = h("main", { id: "main", tabindex: "-1" });
    this.offline = h("p.offline", { role: "alert", hidden: true });
    this.append(
      h("a.skip", { href: "#main", onclick: (event) => this.#skipToContent(event) }, t("skip")),
      this.#header(),
      this.offline,
      this.main,
      h("div", { id: "notices", role: "status", "aria-live": "polite" }),
    );
    route.listen(() => this.#show());
    online.listen((isOnline) => this.#showOnline(isOnline));
    tokenRequired.listen((message) => (message ? this.#askForToken(message) : this.#onToken()));
    if (tokenRequired.value) this.#askForToken(tokenRequired.value);
    this.#bindEvents();
    this.#show();
    setTimeout(() => loadPalette().catch(() => {}), PRELOAD_DELAY_MS);
    this.#watchApprovals();
    if ((getCsrf() || getToken()) && this.#name) this.#showAccount();
  }

  #header() {
    return h(
      "header.head",
      {},
      h(
        "a.brand",
        { href: link(DEFAULT_SCREEN) },
        h("img", { src: "page/icon.svg", alt: "", width: 22, height: 22 }),
        "OneTool",
      ),
      h("nav", { "aria-label": t("screens") }, this.links),
      h(
        "div.right",
        {},
        button(
          [
            h("span.plus", { "aria-hidden": "true" }, "+"),
            h("span.words", {}, t("palette.open")),
            h("kbd", { "aria-hidden": "true" }, t("palette.key")),
          ],
          () => this.#palette(),
          { class: "find" },
        ),
        quietButton("?", () => this.#help(), { "aria-label": t("help.title"), class: "quiet round" }),
      ),
    );
  }

  #bindEvents() {
    const screens = Object.keys(SCREENS);
    bindKeys({
      "+": () => this.#palette(),
      "mod+k": () => this.#palette(),
      "?": () => this.#help(),
      "/": () => this.main.querySelector("input[type=search]")?.focus(),
      ...Object.fromEntries(screens.slice(0, 9).map((name, index) => [String(index + 1), () => navigate(name)])),
    });
    for (const kind of ["dragover", "drop"]) addEventListener(kind, (event) => this.#onDrag(event));
  }

  #onToken() {
    this.#watchApprovals();
    this.#showAccount();
  }

  /** Show the number of runs that wait, if this browser may see them. */
  async #watchApprovals() {
    if (!getCsrf() && !getToken()) return;
    const { approvals, watchApprovals } = await import("../approvals/feed.js");
    if (!this.count) {
      this.count = h("span.count", { hidden: true });
      this.links.find((item) => item.dataset.name === "approvals").append(this.count);
      const showCount = () => {
        const n = approvals.value?.length ?? 0;
        fill(this.count, String(n)).hidden = !n;
        this.count.setAttribute("aria-label", t("approvals.waiting", { n }));
      };
      approvals.listen(showCount);
      showCount();
    }
    watchApprovals();
  }

  async #signIn(code) {
    history.replaceState(null, "", link(DEFAULT_SCREEN)); // the code must not stay in the history
    try {
      await (await loadSignIn()).signIn(code);
      document.querySelector("dialog.token")?.close();
      this.#watchApprovals();
      this.#showAccount();
    } catch (error) {
      notify(error.message, "bad");
    }
    route.value = [DEFAULT_SCREEN];
  }

  async #showAccount() {
    const { showAccount } = await loadSignIn();
    await showAccount(this.querySelector(".head .right")).catch(() => {}); // offline: the frame says so
  }

  async #show() {
    const [name = DEFAULT_SCREEN, ...parts] = route.value;
    if (name === "code") return this.#signIn(parts[0]);
    if (name === "sign-in") {
      notify(tOr(`signIn.${parts[0]}`, t("signIn.failed")), "bad");
      return navigate(DEFAULT_SCREEN);
    }
    if (name === "activity") return this.#redirect(...parts);
    if (!Object.hasOwn(SCREENS, name)) {
      this.#reset();
      fill(
        this.main,
        emptyState(t("notFound"), t("notFound.advice"), h("a", { href: link(DEFAULT_SCREEN) }, t("screen.tools"))),
      );
      return;
    }
    for (const item of this.links) {
      if (item.dataset.name === name) item.setAttribute("aria-current", "page");
      else item.removeAttribute("aria-current");
    }
    this.links.find((item) => item.dataset.name === name).scrollIntoView({ block: "nearest", inline: "nearest" });
    document.title = `${t(`screen.${name}`)} · OneTool`;
    const isNew = this.#name !== name;
    this.#name = name;
    if (isNew && (await loadModule(this.main, SCREENS[name])) === null) return this.#reset();
    if (this.#name !== name) return;
    if (isNew) fill(this.main, document.createElement(`ot-${name}`));
    this.main.firstElementChild.show(...parts);
  }

  #redirect(view = "live", ...rest) {
    history.replaceState(null, "", link(REDIRECTS[view] ?? "runs", ...rest));
    route.value = [REDIRECTS[view] ?? "runs", ...rest];
  }

  #reset() {
    this.#name = "";
  }

  #skipToContent(event) {
    event.preventDefault();
    this.main.focus();
  }

  #showOnline(isOnline) {
    fill(this.offline, isOnline ? "" : t("offline")).hidden = isOnline;
  }

  async #palette() {
    if (document.querySelector("dialog[open]")) return;
    const palette = await loadPalette().catch(() => notify(t("error.unreachable"), "bad"));
    palette?.openPalette();
  }

  #help() {
    if (document.querySelector("dialog[open]")) return;
    const rows = t("help.keys")
      .split("\n")
      .map((line) => line.split("\t"));
    openModal(
      t("help.title"),
      h(
        "dl.keys",
        {},
        rows.map(([keys, description]) => [
          h(
            "dt",
            {},
            keys.split(" ").map((key) => h("kbd", {}, key)),
          ),
          h("dd", {}, description),
        ]),
      ),
      [],
    );
  }

  async #onDrag(event) {
    if (![...(event.dataTransfer?.types ?? [])].includes("Files")) return;
    event.preventDefault();
    if (event.type === "drop" && event.dataTransfer.files.length) {
      (await import("../bundles/importer.js")).importFiles([...event.dataTransfer.files]);
    }
  }

  #askForToken(message) {
    if (document.querySelector("dialog.token")) return;
    const input = h("input", { type: "password", autocomplete: "off", required: true, spellcheck: "false" });
    const signIn = () => input.value.trim() && (dialog.close(), setToken(input.value.trim()));
    const dialog = openModal(
      t("token.title"),
      h(
        "form.stack",
        { onsubmit: (event) => (event.preventDefault(), signIn()) },
        h("p.pre", {}, message),
        labeled(t("token.label"), input, { hint: t("token.hint") }),
      ),
      [primaryButton(t("token.use"), signIn)],
      { class: "token" },
    );
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    loadSignIn()
      .then(({ addSignIns }) => addSignIns(dialog.querySelector("form")))
      .catch(() => {}); // offline: the frame says so
  }
}

customElements.define("ot-frame", Frame);
