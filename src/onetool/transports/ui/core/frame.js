/** What stands around every screen: the head with the way to all of them, notices, the palette, and the question for a
 * token. */
import { online, useToken, wanted } from "./api.js";
import { fill, h } from "./h.js";
import { listen } from "./keys.js";
import { lazily } from "./lazy.js";
import { button, labelled, modal, nothing, notify, primary, quiet } from "./parts.js";
import { go, here, link } from "./router.js";
import { say } from "./say.js";
import "../tools/screen.js";

const SCREENS = {
  tools: () => new Promise((drawn) => setTimeout(drawn)), // it is there; the frame is drawn before it
  run: () => import("../run/screen.js"),
  bundles: () => import("../bundles/screen.js"),
  activity: () => import("../activity/screen.js"),
};
const FIRST = "tools";
const IDLE = 1000; // then what will be wanted at once is fetched ahead
const loadPalette = () => import("../tools/palette.js");

class Frame extends HTMLElement {
  #name = "";

  connectedCallback() {
    this.links = Object.keys(SCREENS).map((name) =>
      h("a", { href: link(name), data: { name } }, say(`screen.${name}`)),
    );
    this.main = h("main", { id: "main", tabindex: "-1" });
    this.lost = h("p.lost", { role: "alert", hidden: true });
    this.append(
      h("a.skip", { href: "#main", onclick: (event) => this.#skip(event) }, say("skip")),
      this.#head(),
      this.lost,
      this.main,
      h("div", { id: "notices", role: "status", "aria-live": "polite" }),
    );
    here.listen(() => this.#show());
    online.listen((is) => this.#tell(is));
    wanted.listen((message) => message && this.#askForToken(message));
    if (wanted.value) this.#askForToken(wanted.value);
    this.#listen();
    this.#show();
    setTimeout(() => loadPalette().catch(() => {}), IDLE);
  }

  #head() {
    return h(
      "header.head",
      {},
      h(
        "a.brand",
        { href: link(FIRST) },
        h("img", { src: "/page/icon.svg", alt: "", width: 22, height: 22 }),
        "OneTool",
      ),
      h("nav", { "aria-label": say("screens") }, this.links),
      h(
        "div.right",
        {},
        button(
          [
            h("span.plus", { "aria-hidden": "true" }, "+"),
            h("span.words", {}, say("palette.open")),
            h("kbd", { "aria-hidden": "true" }, say("palette.key")),
          ],
          () => this.#palette(),
          { class: "find" },
        ),
        quiet("?", () => this.#help(), { "aria-label": say("help.title"), class: "quiet round" }),
      ),
    );
  }

  #listen() {
    const screens = Object.keys(SCREENS);
    listen({
      "+": () => this.#palette(),
      "mod+k": () => this.#palette(),
      "?": () => this.#help(),
      "/": () => this.main.querySelector("input[type=search]")?.focus(),
      ...Object.fromEntries(screens.map((name, place) => [String(place + 1), () => go(name)])),
    });
    for (const kind of ["dragover", "drop"]) addEventListener(kind, (event) => this.#dropped(event));
  }

  async #show() {
    const [name = FIRST, ...parts] = here.value;
    if (!Object.hasOwn(SCREENS, name)) {
      this.#forget();
      fill(
        this.main,
        nothing(say("nowhere"), say("nowhere.advice"), h("a", { href: link(FIRST) }, say("screen.tools"))),
      );
      return;
    }
    for (const one of this.links) {
      if (one.dataset.name === name) one.setAttribute("aria-current", "page");
      else one.removeAttribute("aria-current");
    }
    document.title = `${say(`screen.${name}`)} · OneTool`;
    const isNew = this.#name !== name;
    this.#name = name;
    if (isNew && (await lazily(this.main, SCREENS[name])) === null) return this.#forget();
    if (this.#name !== name) return;
    if (isNew) fill(this.main, document.createElement(`ot-${name}`));
    this.main.firstElementChild.show(...parts);
  }

  #forget() {
    this.#name = "";
  }

  #skip(event) {
    event.preventDefault();
    this.main.focus();
  }

  #tell(isOnline) {
    fill(this.lost, isOnline ? "" : say("lost")).hidden = isOnline;
  }

  async #palette() {
    if (document.querySelector("dialog[open]")) return;
    const palette = await loadPalette().catch(() => notify(say("error.unreachable"), "bad"));
    palette?.openPalette();
  }

  #help() {
    if (document.querySelector("dialog[open]")) return;
    const rows = say("help.keys")
      .split("\n")
      .map((line) => line.split("\t"));
    modal(
      say("help.title"),
      h(
        "dl.keys",
        {},
        rows.map(([keys, what]) => [
          h(
            "dt",
            {},
            keys.split(" ").map((key) => h("kbd", {}, key)),
          ),
          h("dd", {}, what),
        ]),
      ),
      [],
    );
  }

  async #dropped(event) {
    if (![...(event.dataTransfer?.types ?? [])].includes("Files")) return;
    event.preventDefault();
    if (event.type === "drop" && event.dataTransfer.files.length) {
      (await import("../bundles/importing.js")).importFiles([...event.dataTransfer.files]);
    }
  }

  #askForToken(message) {
    if (document.querySelector("dialog.token")) return;
    const input = h("input", { type: "password", autocomplete: "off", required: true, spellcheck: "false" });
    const use = () => input.value.trim() && (dialog.close(), useToken(input.value.trim()));
    const dialog = modal(
      say("token.title"),
      h(
        "form.stack",
        { onsubmit: (event) => (event.preventDefault(), use()) },
        h("p", {}, message),
        labelled(say("token.label"), input, { hint: say("token.hint") }),
      ),
      [primary(say("token.use"), use)],
      { class: "token" },
    );
    dialog.addEventListener("cancel", (event) => event.preventDefault());
  }
}

customElements.define("ot-frame", Frame);
