/** Screen "Activity": live runs, statistics and health. */
import { fill, h } from "../core/h.js";
import { link } from "../core/router.js";
import { t } from "../core/i18n.js";
import { loadStyles } from "../core/styles.js";
import { health } from "./health.js";
import { live } from "./live.js";
import { statistics } from "./statistics.js";

await loadStyles("activity");
const VIEWS = { live, stats: statistics, health };

class ActivityScreen extends HTMLElement {
  #name = "";

  connectedCallback() {
    this.className = "page";
    this.links = Object.keys(VIEWS).map((name) =>
      h("a", { href: link("activity", name), data: { name } }, t(`activity.${name}`)),
    );
    this.body = h("div.part");
    this.append(
      h(
        "div.inner",
        {},
        h("h1.visually-hidden", {}, t("screen.activity")),
        h("nav.parts", { "aria-label": t("screen.activity") }, this.links),
        this.body,
      ),
    );
  }

  show(name = "live", ...rest) {
    const viewName = Object.hasOwn(VIEWS, name) ? name : "live";
    for (const item of this.links) {
      if (item.dataset.name === viewName) item.setAttribute("aria-current", "page");
      else item.removeAttribute("aria-current");
    }
    if (viewName !== this.#name) fill(this.body, VIEWS[viewName]());
    this.#name = viewName;
    this.body.firstElementChild.show?.(...rest);
  }
}

customElements.define("ot-activity", ActivityScreen);
