/** One tool: what it is, and a place to try it. */
import { h } from "../core/h.js";
import { load } from "../core/loading.js";
import { badge, notify, tabs, toggle } from "../core/parts.js";
import { link } from "../core/router.js";
import { say } from "../core/say.js";
import { clipped } from "../core/text.js";
import { about } from "./about.js";
import { changes, switchTool, tool } from "./catalogue.js";
import { tester } from "./tester.js";

const LONGEST = 5000;

class ToolDetail extends HTMLElement {
  use(name) {
    this.name = name;
    return this;
  }

  connectedCallback() {
    this.#load().then(() => this.takesFocus && this.heading?.focus());
    this.end = changes.listen(() => this.#refresh());
  }

  disconnectedCallback() {
    this.end();
  }

  #load() {
    return load(this, async () => {
      const found = await tool(this.name);
      this.switch = toggle(say("tools.switch", { name: found.name }), found.isEnabled, async (on) => {
        await switchTool(found.name, on);
        notify(say(on ? "switched.on" : "switched.off", { name: found.name }));
      });
      this.reason = h("p.reason", { role: "status" });
      this.heading = h("h2", { tabindex: "-1" }, h("bdi", {}, found.name));
      this.#told(found);
      return [
        h(
          "header",
          {},
          h("a.back", { href: link("tools") }, say("back")),
          h("div.title", {}, this.heading, badge(found.kind), this.switch),
        ),
        this.reason,
        h("p.description", { dir: "auto" }, clipped(found.description.split("\n\n")[0], LONGEST)),
        tabs(say("tools.detail"), [
          { id: "try", label: say("tools.try"), panel: () => tester(found) },
          { id: "about", label: say("tools.about"), panel: () => about(found) },
        ]),
      ];
    });
  }

  /** What was typed into the tester stays where it is. */
  async #refresh() {
    if (!this.switch) return;
    const found = await tool(this.name).catch(() => null);
    if (found) this.#told(found);
  }

  #told(found) {
    this.switch.setAttribute("aria-checked", String(found.isEnabled));
    this.reason.textContent = "";
    if (!found.isEnabled)
      this.reason.append(
        h("span", {}, say("tools.isOff", { reason: found.disabledReason || say("tools.isOff.byHand") })),
      );
  }
}

customElements.define("ot-tool", ToolDetail);
export const toolDetail = (name, takesFocus) =>
  Object.assign(document.createElement("ot-tool"), { takesFocus }).use(name);
