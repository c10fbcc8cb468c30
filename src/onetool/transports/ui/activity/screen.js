/** Activity: what is happening, what it adds up to, and how the parts are doing. */
import { fill, h } from "../core/h.js";
import { link } from "../core/router.js";
import { say } from "../core/say.js";
import { style } from "../core/styles.js";
import { health } from "./health.js";
import { live } from "./live.js";
import { statistics } from "./statistics.js";

await style("activity");
const PARTS = { live, stats: statistics, health };

class ActivityScreen extends HTMLElement {
  #name = "";

  connectedCallback() {
    this.className = "page";
    this.links = Object.keys(PARTS).map((name) =>
      h("a", { href: link("activity", name), data: { name } }, say(`activity.${name}`)),
    );
    this.body = h("div.part");
    this.append(
      h(
        "div.inner",
        {},
        h("h1.unseen", {}, say("screen.activity")),
        h("nav.parts", { "aria-label": say("screen.activity") }, this.links),
        this.body,
      ),
    );
  }

  show(name = "live", ...rest) {
    const wanted = Object.hasOwn(PARTS, name) ? name : "live";
    for (const one of this.links) {
      if (one.dataset.name === wanted) one.setAttribute("aria-current", "page");
      else one.removeAttribute("aria-current");
    }
    if (wanted !== this.#name) fill(this.body, PARTS[wanted]());
    this.#name = wanted;
    this.body.firstElementChild.show?.(...rest);
  }
}

customElements.define("ot-activity", ActivityScreen);
