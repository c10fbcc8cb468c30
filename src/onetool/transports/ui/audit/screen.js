/** Screen "Audit": who changed or called what, newest first. */
import { ApiError, get, request } from "../core/api.js";
import { button, downloadFile, emptyState, notify, quietButton } from "../core/components.js";
import { fill, h } from "../core/h.js";
import { t, tOr } from "../core/i18n.js";
import { load } from "../core/loading.js";
import { link } from "../core/router.js";
import { tabStorage } from "../core/state.js";
import { loadStyles } from "../core/styles.js";
import { formatDate, formatTime, truncate } from "../core/text.js";
import { deniedState } from "../approvals/sign-in.js";
import { tree } from "../result/tree.js";
import { onChanged } from "../runs/activity.js";

await loadStyles("records");
const KINDS = ["call", "change", "decision", "started"];
const FIELDS = ["text", "actor", "name", "outcome"];
const INPUT_DELAY_MS = 200;
const PAGE_SIZE = 100;

class AuditScreen extends HTMLElement {
  #count = 0; // of records that are shown

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
        h("div.bar", {}, h("h1", {}, t("screen.audit")), quietButton(t("audit.export"), (event) => this.#export(event.target))),
        h("p.hint", {}, t("audit.hint")),
        h("div.filters", { role: "search" }, this.kind, Object.values(this.inputs)),
        this.body,
      ),
    );
    this.stop = onChanged(this, ["audit", "tokens"], () => this.#count <= PAGE_SIZE && this.#load({ isUpdate: true }));
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
    const open = isUpdate && this.body.querySelector("details[open]"); // reading: do not replace it
    if (open) return;
    return load(this.body, async () => {
      try {
        const page = await this.#fetchPage();
        this.#count = page.records.length;
        if (!page.records.length && !page.nextPageToken) return emptyState(t("audit.none"), t("audit.none.advice"));
        const list = h("ol.audit", { "aria-label": t("screen.audit") }, page.records.map(renderRecord));
        return [list, this.#moreButton(list, page.nextPageToken)];
      } catch (error) {
        if (!(error instanceof ApiError && error.status === 403)) throw error;
        return deniedState(t("audit.denied"), error, () => this.#load());
      }
    });
  }

  async #fetchPage(token) {
    let page = await get("/api/audit", { ...this.#query, pageSize: PAGE_SIZE, pageToken: token });
    // A page that matches little is short: continue until there is something to show.
    while (!page.records.length && page.nextPageToken)
      page = await get("/api/audit", { ...this.#query, pageSize: PAGE_SIZE, pageToken: page.nextPageToken });
    return page;
  }

  #moreButton(list, token) {
    const more = button(t("audit.more"), async () => {
      more.disabled = true;
      try {
        const page = await this.#fetchPage(token);
        token = page.nextPageToken;
        this.#count += page.records.length;
        const added = page.records.map(renderRecord);
        list.append(...added);
        added[0]?.querySelector("summary")?.focus();
      } catch (error) {
        notify(error.message, "bad");
      }
      more.disabled = false;
      more.hidden = !token;
    });
    more.hidden = !token;
    return more;
  }

  async #export(control) {
    control.disabled = true;
    try {
      const response = await request("GET", "/api/audit/export", { query: this.#query, accept: "application/x-ndjson" });
      downloadFile("audit.jsonl", await response.blob());
    } catch (error) {
      notify(error.message, "bad");
    } finally {
      control.disabled = false;
    }
  }
}

function renderRecord({ time, kind, actor, agent, name, outcome, details }) {
  const { names = [], arguments: given, correlation_id: run, ...rest } = details;
  const about = names.length ? names.join(", ") : given ? JSON.stringify(given) : "";
  const isToday = formatDate(time) === formatDate(new Date()) || new Date(time).toDateString() === new Date().toDateString();
  const element = h(
    "details",
    { ontoggle: () => element.open && element.children.length === 1 && element.append(more()) },
    h(
      "summary",
      {},
      h("time", { datetime: time }, isToday ? formatTime(time) : formatDate(time)),
      h("span.who", {}, h("bdi", {}, truncate(actor || t("audit.local"), 80))),
      h("span.what", {}, h("strong", {}, truncate(name || tOr(`audit.kind.${kind}`, kind), 120)), " ", h("bdi.about", {}, truncate(about, 160))),
      h("span.audit-outcome", { data: { tone: !outcome || outcome === "ok" ? "good" : "bad" } }, outcome || tOr(`audit.kind.${kind}`, kind)),
    ),
  );
  const more = () =>
    h(
      "div.call-values",
      {},
      h("p.hint", {}, [formatDate(time), tOr(`audit.kind.${kind}`, kind), agent].filter(Boolean).join(" · ")),
      run ? h("p", {}, h("a", { href: link("runs", run) }, t("audit.run"))) : null,
      tree({ ...(names.length ? { names } : {}), ...(given ? { arguments: given } : {}), ...rest }),
    );
  return h("li", {}, element);
}

customElements.define("ot-audit", AuditScreen);
