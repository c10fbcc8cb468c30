/** Failures in groups: how often a tool failed with the same message, and its last run. */
import { get } from "../core/api.js";
import { fill, h } from "../core/h.js";
import { t } from "../core/i18n.js";
import { button } from "../core/components.js";
import { load } from "../core/loading.js";
import { link } from "../core/router.js";
import { formatNumber, formatRelativeTime } from "../core/text.js";

const SHOWN = 20;

class Errors extends HTMLElement {
  connectedCallback() {
    this.body = h("div");
    this.append(h("h2", {}, t("errors.title")), this.body);
    this.update();
  }

  update() {
    return load(this.body, async () => {
      const { errors } = await get("/api/errors");
      if (!errors.length) return h("p.hint", {}, t("errors.none"));
      const list = h("ul.errors", {}, errors.slice(0, SHOWN).map(renderGroup));
      const more = button(t("errors.more", { n: errors.length - SHOWN }), () => {
        fill(list, errors.map(renderGroup));
        more.remove();
      });
      return [list, errors.length > SHOWN ? more : null];
    });
  }
}

function renderGroup({ name, type, message, count, agent, actor, lastAt, runID }) {
  return h(
    "li",
    {},
    h("span.badge", {}, formatNumber(count), "×"),
    h(
      "div",
      {},
      h("strong", {}, h("bdi", {}, name)),
      " ",
      h("span.bad", {}, type),
      h("p.pre", { dir: "auto" }, message),
      h(
        "p.hint",
        {},
        [t("errors.last", { time: formatRelativeTime(lastAt) }), agent === "default" ? "" : agent, actor]
          .filter(Boolean)
          .join(" · "),
        " · ",
        h("a", { href: link("runs", runID) }, t("errors.run")),
      ),
    ),
  );
}

customElements.define("ot-errors", Errors);
export const errors = () => document.createElement("ot-errors");
