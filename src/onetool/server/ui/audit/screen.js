/** Screen "Audit": who changed or called what, newest first. */
import { get, request } from "../core/api.js";
import { actionButton, downloadFile, emptyState } from "../core/components.js";
import { fill, h } from "../core/h.js";
import { t, tOr } from "../core/i18n.js";
import { keyedList } from "../core/keyed-list.js";
import { link } from "../core/router.js";
import { tabStorage } from "../core/state.js";
import { loadStyles } from "../core/styles.js";
import { formatDate, formatMoment, truncate } from "../core/text.js";
import { loadPermitted } from "../approvals/sign-in.js";
import { tree } from "../result/tree.js";
import { onChanged } from "../runs/activity.js";

await loadStyles("records");
const KINDS = ["call", "change", "decision", "started"];
const FIELDS = ["text", "actor", "name", "outcome"];
const INPUT_DELAY_MS = 200;
const PAGE_SIZE = 100;

class AuditScreen extends HTMLElement {
  #records = []; // that are shown
  #nextToken = null;
  #list = h("ol.audit", { "aria-label": t("screen.audit") });
  #more = actionButton(t("audit.more"), () => this.#loadMore());
  #renderRecords = keyedList(({ time, kind, name }) => `${time} ${kind} ${name}`, renderRecord);

  connectedCallback() {
    this.className = "page";
    this.kind = h(
      "select",
      { "aria-label": t("audit.kind"), onchange: () => this.#load() },
      h("option", { value: "" }, t("audit.kind.all")),
      KINDS.map((kind) => h("option", { value: kind }, t(`audit.kind.${kind}`))),
    );
    const stored = tabStorage.read("auditFilters", {});
    this.inputs = Object.fromEntries(FIELDS.map((name) => [name, this.#input(name, stored[name] ?? "")]));
    this.kind.value = stored.kind ?? "";
    this.body = h("div.stack");
    this.append(
      h(
        "div.inner",
        {},
        h(
          "div.bar",
          {},
          h("h1", {}, t("screen.audit")),
          actionButton(t("audit.export"), () => this.#export(), { class: "quiet" }),
        ),
        h("p.hint", {}, t("audit.hint")),
        h("div.filters", { role: "search" }, this.kind, Object.values(this.inputs)),
        this.body,
      ),
    );
    const update = () => this.#records.length <= PAGE_SIZE && this.#load({ isUpdate: true });
    this.stop = onChanged(["audit", "tokens"], update);
    this.#load();
  }

  disconnectedCallback() {
    this.stop();
    clearTimeout(this.timer);
  }

  show() {}

  get #query() {
    const values = Object.fromEntries(FIELDS.map((name) => [name, this.inputs[name].value.trim()]));
    return { kind: this.kind.value, ...values };
  }

  #input(name, value) {
    const label = t(`audit.${name}`);
    return h("input", {
      type: name === "text" ? "search" : "text",
      "aria-label": label,
      placeholder: label,
      autocomplete: "off",
      spellcheck: "false",
      value,
      oninput: () => {
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.#load(), INPUT_DELAY_MS);
      },
    });
  }

  #load({ isUpdate = false } = {}) {
    tabStorage.write("auditFilters", this.#query);
    const render = async () => {
      const { records, nextPageToken } = await this.#fetchPage();
      if (!records.length) return emptyState(t("audit.none"), t("audit.none.advice"));
      return () => this.#render(records, nextPageToken);
    };
    return loadPermitted(this.body, t("audit.denied"), render, { isUpdate });
  }

  #render(records, nextToken) {
    this.#records = records;
    this.#nextToken = nextToken;
    this.#more.hidden = !nextToken;
    return [fill(this.#list, this.#renderRecords(records)), this.#more];
  }

  async #fetchPage(token) {
    let page = await get("/api/audit", { ...this.#query, pageSize: PAGE_SIZE, pageToken: token });
    // A page that matches little is short: continue until there is something to show.
    while (!page.records.length && page.nextPageToken)
      page = await get("/api/audit", { ...this.#query, pageSize: PAGE_SIZE, pageToken: page.nextPageToken });
    return page;
  }

  async #loadMore() {
    const shown = this.#records;
    const page = await this.#fetchPage(this.#nextToken);
    if (shown !== this.#records) return; // other records are shown now
    this.#render([...shown, ...page.records], page.nextPageToken);
    this.#list.children[shown.length]?.querySelector("summary").focus();
  }

  async #export() {
    const response = await request("GET", "/api/audit/export", { query: this.#query, accept: "application/x-ndjson" });
    downloadFile("audit.jsonl", await response.blob());
  }
}

function renderRecord({ time, kind, actor, agent, name, outcome, details }) {
  const { names = [], arguments: given, correlation_id: run, ...rest } = details;
  const about = names.length ? names.join(", ") : given ? JSON.stringify(given) : "";
  const kindName = tOr(`audit.kind.${kind}`, kind);
  const element = h(
    "details",
    { ontoggle: () => element.open && element.children.length === 1 && element.append(more()) },
    h(
      "summary",
      {},
      h("time", { datetime: time }, formatMoment(time)),
      h("span.who", {}, h("bdi", {}, truncate(actor || t("audit.local"), 80))),
      h("span.what", {}, h("strong", {}, truncate(name || kindName, 120)), " ", h("bdi.about", {}, truncate(about, 160))),
      h("span.audit-outcome", { data: { tone: ["", "ok"].includes(outcome ?? "") ? "good" : "bad" } }, outcome || kindName),
    ),
  );
  const more = () =>
    h(
      "div.call-values",
      {},
      h("p.hint", {}, [formatDate(time), kindName, agent].filter(Boolean).join(" · ")),
      run ? h("p", {}, h("a", { href: link("runs", run) }, t("audit.run"))) : null,
      tree({ ...(names.length ? { names } : {}), ...(given ? { arguments: given } : {}), ...rest }),
    );
  return h("li", {}, element);
}

customElements.define("ot-audit", AuditScreen);
