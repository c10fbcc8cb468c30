/** A tool: description, tester and details. */
import { h } from "../core/h.js";
import { load } from "../core/loading.js";
import { badge, notify, tabs, toggle } from "../core/components.js";
import { link } from "../core/router.js";
import { t } from "../core/i18n.js";
import { truncate } from "../core/text.js";
import { aboutView } from "./about.js";
import { changes, getTool, setToolEnabled } from "./catalog.js";
import { tester } from "./tester.js";

const MAX_CHARS = 5000;

class ToolDetail extends HTMLElement {
  configure(name) {
    this.name = name;
    return this;
  }

  connectedCallback() {
    this.#load().then(() => this.takesFocus && this.heading?.focus());
    this.stopListening = changes.listen(() => this.#refresh());
  }

  disconnectedCallback() {
    this.stopListening();
  }

  #load() {
    return load(this, async () => {
      const found = await getTool(this.name);
      this.switch = toggle(t("tools.switch", { name: found.name }), found.isEnabled, async (on) => {
        await setToolEnabled(this.found, on);
        notify(t(on ? "notice.enabled" : "notice.disabled", { name: found.name }));
      });
      this.reason = h("p.reason", { role: "status" });
      this.heading = h("h2", { tabindex: "-1" }, h("bdi", {}, found.name));
      this.#showState(found);
      return [
        h(
          "header",
          {},
          h("a.back", { href: link("tools") }, t("back")),
          h("div.title", {}, this.heading, badge(found.kind), this.switch),
        ),
        this.reason,
        h("p.description", { dir: "auto" }, truncate(found.description.split("\n\n")[0], MAX_CHARS)),
        tabs(t("tools.detail"), [
          { id: "try", label: t("tools.try"), panel: () => tester(found) },
          { id: "about", label: t("tools.about"), panel: () => aboutView(found) },
        ]),
      ];
    });
  }

  /** Update the state only, so that input in the tester is kept. */
  async #refresh() {
    if (!this.switch) return;
    const found = await getTool(this.name).catch(() => null);
    if (found) this.#showState(found);
  }

  #showState(found) {
    this.found = found;
    this.switch.setAttribute("aria-checked", String(found.isEnabled));
    this.reason.textContent = "";
    if (!found.isEnabled)
      this.reason.append(
        h("span", {}, t("tools.disabledReason", { reason: found.disabledReason || t("tools.disabledReason.byUser") })),
      );
  }
}

customElements.define("ot-tool", ToolDetail);
export const toolDetail = (name, takesFocus) =>
  Object.assign(document.createElement("ot-tool"), { takesFocus }).configure(name);
