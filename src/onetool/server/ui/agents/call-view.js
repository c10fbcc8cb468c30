/** What an agent may call: all tools with the decision about each, and a simulator for one call. Nothing is called. */
import { encodePath, request, send } from "../core/api.js";
import { button, labeled } from "../core/components.js";
import { fill, h } from "../core/h.js";
import { t } from "../core/i18n.js";
import { refill } from "../core/refill.js";

const DELAY_MS = 250;
const PAGE_SIZE = 100;
const DECISIONS = ["allow", "ask", "deny"];
const TONES = { allow: "good", deny: "bad", ask: "warn" };

class CallView extends HTMLElement {
  #timer = 0;
  #aborter = null;
  #name = "";
  #readDraft = () => null;
  #decision = "";

  connectedCallback() {
    if (this.hasChildNodes()) return;
    this.search = h("input", {
      type: "search",
      spellcheck: "false",
      autocomplete: "off",
      oninput: () => this.update(),
    });
    this.counts = h("div.counts", { role: "group", "aria-label": t("agents.calls.filter") });
    this.list = h("ul.verdicts", { tabindex: "0", "aria-label": t("agents.calls") });
    this.status = h("p.hint", { role: "status" });
    this.call = h("input", {
      type: "text",
      spellcheck: "false",
      autocomplete: "off",
      placeholder: "fs.read(path='a.txt')",
    });
    this.verdict = h("div.verdict", { role: "status" });
    const check = () => this.#check();
    this.append(
      h("h3", {}, t("agents.simulator")),
      h(
        "form.stack",
        { onsubmit: (event) => (event.preventDefault(), check()) },
        labeled(t("agents.simulator.call"), this.call, { hint: t("agents.simulator.hint") }),
        h("div.actions", {}, button(t("agents.simulator.check"), check)),
      ),
      this.verdict,
      h("h3", {}, t("agents.calls")),
      this.counts,
      labeled(t("agents.calls.search"), this.search),
      this.status,
      this.list,
    );
    this.update(0);
  }

  disconnectedCallback() {
    clearTimeout(this.#timer);
    this.#aborter?.abort();
  }

  /** Set the agent before the element is shown. `readDraft` returns its settings as they would be, null if they are
   * saved, or throws. */
  configure(name, readDraft) {
    this.#name = name;
    this.#readDraft = readDraft;
  }

  /** Load the decisions again, after a short time without further changes. */
  update(delay = DELAY_MS) {
    clearTimeout(this.#timer);
    if (!this.isConnected) return;
    this.#timer = setTimeout(() => this.#load(), delay);
  }

  async #load() {
    this.#aborter?.abort();
    const { signal } = (this.#aborter = new AbortController());
    const query = { q: this.search.value.trim(), decision: this.#decision, pageSize: PAGE_SIZE };
    try {
      const draft = this.#readDraft();
      const body = draft ? { settings: draft } : undefined;
      const path = `/api/agents${encodePath(this.#name)}/tools`;
      const response = await request(draft ? "POST" : "GET", path, { body, query, signal });
      this.#show(await response.json());
    } catch (error) {
      if (error.name !== "AbortError") fill(this.status, error.message).dataset.tone = "bad";
    }
  }

  #show({ counts, tools, total, isComplete }) {
    refill(
      this.counts,
      DECISIONS.map((name) =>
        button(`${t(`agents.decision.${name}`)} ${counts[name] ?? 0}`, () => this.#choose(name), {
          class: "count-button",
          "aria-pressed": String(this.#decision === name),
          data: { tone: TONES[name], key: name },
        }),
      ),
    );
    delete this.status.dataset.tone;
    const shown = t("agents.calls.shown", { n: total, shown: tools.length });
    fill(this.status, isComplete ? shown : t("agents.calls.incomplete", { shown }));
    fill(
      this.list,
      tools.map((one) => renderVerdict(one, "li")),
    );
  }

  #choose(name) {
    this.#decision = this.#decision === name ? "" : name;
    this.update(0);
  }

  async #check() {
    try {
      const body = { call: this.call.value, settings: this.#readDraft() };
      fill(this.verdict, renderVerdict(await send("POST", `/api/agents${encodePath(this.#name)}/check`, body), "div"));
    } catch (error) {
      fill(this.verdict, h("p.problem.pre", {}, error.message));
    }
  }
}

function renderVerdict({ tool, decision, reason, effects, varies }, tag) {
  return h(
    tag,
    {},
    h("span.badge.decision", { data: { tone: TONES[decision] } }, t(`agents.decision.${decision}`)),
    " ",
    h("code", {}, tool),
    " ",
    h("span.hint", {}, [effects, varies ? t("agents.varies") : null].filter(Boolean).join(" · ")),
    h("p.hint", {}, reason),
  );
}

customElements.define("ot-call-view", CallView);
