/** Screen "Tokens": create and revoke tokens, and what each of them used per month. */
import { encodePath, get, request, send } from "../core/api.js";
import {
  actionButton,
  confirmAction,
  copyButton,
  emptyState,
  labeled,
  notify,
  openModal,
  primaryButton,
  quietButton,
} from "../core/components.js";
import { dataTable } from "../core/data-table.js";
import { fill, h } from "../core/h.js";
import { t, tOr } from "../core/i18n.js";
import { load } from "../core/loading.js";
import { link } from "../core/router.js";
import { loadStyles } from "../core/styles.js";
import { formatDate, formatNumber, formatRelativeTime } from "../core/text.js";
import { loadPermitted } from "../approvals/sign-in.js";
import { onChanged } from "../runs/activity.js";
import { formatCost, readPrice } from "../statistics/price.js";

await loadStyles("records");
const EXPIRIES = ["", "1d", "7d", "30d", "90d", "365d"];
const DEFAULT_EXPIRY = "90d";

class TokensScreen extends HTMLElement {
  connectedCallback() {
    this.className = "page";
    this.create = primaryButton(t("tokens.create"), () => this.#create(), { hidden: true });
    this.list = h("div.figures");
    this.month = h("select", { "aria-label": t("tokens.month"), onchange: () => this.#showSpending() });
    this.spending = h("div.figures");
    this.append(
      h(
        "div.inner",
        {},
        h("div.bar", {}, h("h1", {}, t("screen.tokens")), this.create),
        h("p.hint", {}, t("tokens.hint")),
        this.list,
        h("div.bar", {}, h("h2", {}, t("tokens.spending")), this.month),
        this.spending,
      ),
    );
    this.stop = onChanged(["tokens"], () => this.#load({ isUpdate: true }));
    this.#load();
    this.#loadSpending();
  }

  disconnectedCallback() {
    this.stop();
  }

  show() {}

  #load({ isUpdate = false } = {}) {
    const render = async () => {
      this.found = await get("/api/tokens");
      this.create.hidden = false;
      const rows = this.found.tokens.map((token) => this.#row(token));
      if (!rows.length) return emptyState(t("tokens.none"), t("tokens.none.advice"));
      return table(t("screen.tokens"), COLUMNS, rows);
    };
    const retry = () => (this.#load(), this.#loadSpending());
    return loadPermitted(this.list, t("tokens.denied"), render, { isUpdate, retry });
  }

  #row(token) {
    const { name, agent, scope, created, expires, isExpired, lastUsed, tokenEnv, canRevoke } = token;
    return h(
      "tr",
      { data: { token: name, key: name } },
      h("th", { scope: "row" }, h("bdi", {}, name), tokenEnv ? h("span.hint", {}, ` $${tokenEnv}`) : null),
      h("td", {}, h("bdi", {}, agent)),
      h("td", {}, h("span.badge", { data: { scope } }, tOr(`scope.${scope}`, scope))),
      h("td", {}, created ? formatDate(created) : "–"),
      h(
        "td",
        { data: isExpired ? { tone: "bad" } : {} },
        expires ? formatDate(expires) : t("tokens.never"),
        isExpired ? ` ${t("tokens.expired")}` : "",
      ),
      h("td", {}, lastUsed ? formatRelativeTime(lastUsed) : t("tokens.unused")),
      h(
        "td",
        {},
        actionButton(t("tokens.revoke"), () => this.#revoke(token), {
          class: "danger",
          disabled: !canRevoke,
          "aria-label": t("tokens.revoke.one", { name }),
        }),
      ),
    );
  }

  async #revoke({ name }) {
    if (!(await confirmAction(t("tokens.revoke.sure", { name }), t("tokens.revoke")))) return;
    await request("DELETE", `/api/tokens${encodePath(name)}`).finally(() => this.#load({ isUpdate: true }));
    notify(t("tokens.revoked", { name }));
  }

  #create() {
    const { agents, scopes } = this.found;
    const name = h("input", { type: "text", required: true, maxlength: 64, autocomplete: "off", spellcheck: "false" });
    const agent = select(agents.map((one) => [one, one]));
    const scope = select(scopes.map((one) => [one, t(`scope.${one}.about`)]));
    const expires = select(EXPIRIES.map((one) => [one, t(`expiry.${one || "never"}`)]));
    agent.value = agents.includes("default") ? "default" : agents[0];
    expires.value = DEFAULT_EXPIRY;
    const field = labeled(t("tokens.name"), name, { hint: t("tokens.name.hint"), required: true });
    const submit = async () => {
      try {
        const created = await send("POST", "/api/tokens", {
          name: name.value.trim(),
          agent: agent.value,
          scope: scope.value,
          expires: expires.value || null,
        });
        dialog.close();
        showCreated(created);
        this.#load({ isUpdate: true });
      } catch (error) {
        field.showProblem(error.message);
      }
    };
    const dialog = openModal(
      t("tokens.create"),
      h(
        "form.stack",
        { onsubmit: (event) => (event.preventDefault(), submit()) },
        field,
        labeled(t("tokens.agent"), agent),
        labeled(t("tokens.scope"), scope),
        labeled(t("tokens.expires"), expires),
        h("button", { type: "submit", hidden: true }),
      ),
      [quietButton(t("cancel"), () => dialog.close()), primaryButton(t("tokens.create"), submit)],
    );
  }

  // --- spending ---------------------------------------------------------------------------------------------------

  #loadSpending() {
    return load(this.spending, async () => {
      const { spending } = await get("/api/spending");
      this.rows = spending;
      const months = [...new Set(spending.map(({ month }) => month))];
      fill(
        this.month,
        months.map((month) => h("option", { value: month }, month)),
      );
      this.month.hidden = !months.length;
      return this.#spendingTable();
    });
  }

  #showSpending() {
    fill(this.spending, this.#spendingTable());
  }

  #spendingTable() {
    const rows = this.rows.filter(({ month }) => month === this.month.value);
    if (!rows.length) return h("p.hint", {}, t("tokens.spending.none"));
    const price = readPrice();
    const line = (row) => [
      h("th", { scope: "row" }, h("bdi", {}, row.actor || t("tokens.noToken"))),
      h("td", {}, h("bdi", {}, row.agent)),
      ...["runs", "calls", "failed", "answerTokens"].map((name) => h("td.figure", {}, formatNumber(row[name]))),
      h("td.figure", {}, row.cost ? formatNumber(row.cost) : "–"),
      h("td.figure", {}, formatCost(row.answerTokens, price)),
    ];
    return [
      table(
        t("tokens.spending"),
        SPENDING_COLUMNS,
        rows.map((row) => h("tr", {}, line(row))),
      ),
      h(
        "p.hint",
        {},
        t("tokens.spending.hint", { price }),
        " ",
        h("a", { href: link("statistics") }, t("screen.statistics")),
      ),
    ];
  }
}

const COLUMNS = ["name", "agent", "scope", "created", "expires", "lastUsed", "actions"].map((name) => [name, false]);
const FIGURES = ["runs", "calls", "failed", "answers", "cost", "model"];
const SPENDING_COLUMNS = [["token"], ["agent"], ...FIGURES.map((name) => [name, true])];

function table(label, columns, rows) {
  const named = columns.map(([name, isFigure]) => [t(`tokenColumn.${name}`), isFigure]);
  const element = dataTable(label, named, rows);
  element.classList.add("card");
  return element;
}

const select = (options) =>
  h(
    "select",
    {},
    options.map(([value, text]) => h("option", { value }, text)),
  );

/** Show a new token, which the server does not show again. */
function showCreated({ name, token, notes }) {
  const dialog = openModal(
    t("tokens.created", { name }),
    [
      h("p", {}, t("tokens.created.once")),
      h("div.new-token", {}, h("code", { tabindex: "0" }, token), copyButton(token)),
      h("p.hint", {}, t("tokens.created.use")),
      notes.map((note) => h("p.hint", {}, note)),
    ],
    [primaryButton(t("close"), () => dialog.close())],
  );
}

customElements.define("ot-tokens", TokensScreen);
