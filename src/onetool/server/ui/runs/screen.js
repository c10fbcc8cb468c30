/** Screen "Runs": a list of runs with filters, updated live, and one run with its calls. */
import { encodePath, get, NetworkError, request } from "../core/api.js";
import { actionButton, button, downloadFile, emptyState, notify, quietButton } from "../core/components.js";
import { fill, h } from "../core/h.js";
import { t } from "../core/i18n.js";
import { errorState, load, whenOnline } from "../core/loading.js";
import { Pages } from "../core/pages.js";
import { navigate } from "../core/router.js";
import { loadStyles } from "../core/styles.js";
import { virtualList, waitingRow } from "../core/virtual-list.js";
import { watchActivity } from "./activity.js";
import { runDetail } from "./run-detail.js";
import { runFilters } from "./run-filters.js";
import { renderRow, updateRow } from "./run-row.js";

await loadStyles("records");
const ROW_HEIGHT = 52;
const PAGE_SIZE = 200;
const UPDATE_INTERVAL_MS = 120;

class RunsScreen extends HTMLElement {
  #pages = null;
  #loadingPages = null;
  #started = []; // runs that started while the list was being loaded
  #selectedId = "";
  #timer = 0;
  #dirty = new Set();
  #newIds = new Set(); // runs that are not in the list
  #addedCount = 0; // since the list was last shown
  #byId = new Map();
  #stop = null;

  connectedCallback() {
    this.filters = runFilters(() => this.#search());
    this.list = virtualList({
      label: t("screen.runs"),
      height: ROW_HEIGHT,
      row: (index) => this.#row(index),
      update: (row, index) => this.#updateRow(row, index),
      open: (index) => this.#pages.items[index] && navigate("runs", this.#pages.items[index].id),
      load: (first, last) => this.#loadRows(first, last),
    });
    this.more = quietButton("", () => this.#search(), { class: "quiet new-runs", hidden: true });
    this.none = h("div.none", { hidden: true });
    this.note = h("p.hint", { role: "status" });
    this.detail = h("section.run-detail", { "aria-label": t("runs.detail"), tabindex: "-1" });
    this.append(
      h(
        "section.run-list",
        { "aria-label": t("screen.runs") },
        h(
          "div.bar",
          {},
          h("h1", {}, t("screen.runs")),
          actionButton(t("runs.export"), () => this.#export(), { class: "quiet" }),
        ),
        this.filters,
        this.more,
        this.note,
        this.none,
        this.list,
      ),
      this.detail,
    );
    this.#stop = watchActivity({ onStart: (runs) => this.#merge(runs), onEvent: (data) => this.#handleEvent(data) });
    this.#search();
  }

  disconnectedCallback() {
    this.#stop();
    clearTimeout(this.#timer);
    this.#loadingPages?.cancel();
    this.#pages?.cancel();
  }

  show(id = "") {
    this.classList.toggle("has-detail", Boolean(id));
    if (id === this.#selectedId && this.detail.hasChildNodes()) return;
    this.#selectedId = id;
    this.list.refresh();
    if (!id) return fill(this.detail, emptyState(t("runs.choose"), t("runs.choose.advice")));
    fill(this.detail);
    this.#showDetail();
  }

  #showDetail({ isUpdate = false } = {}) {
    const id = this.#selectedId;
    load(this.detail, async () => runDetail(await get(`/api/runs${encodePath(id)}`)), { isUpdate });
  }

  // --- the list ---------------------------------------------------------------------------------------------------

  /** Load the list. An update keeps the active row. */
  async #search({ isUpdate = false } = {}) {
    this.#loadingPages?.cancel(); // an older response must not replace a newer one
    const byId = new Map();
    const pages = (this.#loadingPages = new Pages(async (token, signal) => {
      const query = { ...this.filters.value, pageSize: PAGE_SIZE, pageToken: token };
      const { runs, nextPageToken } = await get("/api/runs", query, signal);
      for (const run of runs) byId.set(run.id, run);
      return { items: runs, next: nextPageToken, total: pages.items.length + runs.length + 1 };
    }));
    this.setAttribute("aria-busy", "true");
    try {
      await pages.loadFirst();
    } catch (error) {
      if (error.name !== "AbortError") this.#showError(error);
      return;
    } finally {
      if (pages === this.#loadingPages) this.removeAttribute("aria-busy");
    }
    this.#replacePages(pages, byId, isUpdate);
  }

  #replacePages(pages, byId, isUpdate) {
    const newest = this.#pages?.items[0]?.id;
    this.#pages?.cancel();
    [this.#pages, this.#byId, this.#loadingPages] = [pages, byId, null];
    for (const run of this.#started) if (!byId.has(run.id)) this.#insert(run);
    this.#started = [];
    this.#newIds.clear();
    this.#addedCount = 0;
    const added = isUpdate ? pages.items.findIndex(({ id }) => id === newest) : -1;
    this.#showList(added < 0 ? { top: true } : { added });
  }

  #showList(options) {
    const { items, total } = this.#pages;
    this.list.hidden = !items.length;
    this.none.hidden = Boolean(items.length);
    this.more.hidden = !this.#newIds.size;
    fill(this.more, t("runs.new", { n: this.#newIds.size }));
    if (!items.length) fill(this.none, this.#emptyState());
    this.list.show(items.length && total, options);
  }

  #emptyState() {
    if (this.filters.isPlain) return emptyState(t("runs.none"), t("runs.none.advice"));
    return emptyState(
      t("runs.noMatch"),
      "",
      button(t("tools.clear"), () => this.filters.set({})),
    );
  }

  #showError(error) {
    fill(
      this.none,
      errorState(error, () => this.#search()),
    ).hidden = false;
    this.list.hidden = true;
    if (error instanceof NetworkError) whenOnline(this, () => this.#search());
  }

  #loadRows(first, last) {
    const pages = this.#pages;
    if (!pages) return;
    const onLoad = () => pages === this.#pages && this.#showList();
    const onError = (error) => (notify(error.message, "bad"), whenOnline(this, () => this.#search()));
    pages.load(first, last, onLoad, onError);
  }

  #row(index) {
    const run = this.#pages.items[index];
    if (!run) return waitingRow("run-row");
    const row = renderRow(run);
    this.#updateRow(row, index);
    return row;
  }

  #updateRow(row, index) {
    return updateRow(row, this.#pages.items[index], row.runId === this.#selectedId);
  }

  // --- live updates -----------------------------------------------------------------------------------------------

  /** Add the runs that were missed while the stream was not connected. */
  #merge(runs) {
    if (!this.#pages?.items.length) return;
    const newest = this.#pages.items[0].startedAt;
    const missed = runs.filter((run) => run.startedAt > newest && !this.#byId.has(run.id));
    if (!missed.length) return;
    if (this.filters.isPlain && this.list.scrollTop === 0) return this.#search({ isUpdate: true });
    for (const { id } of missed) this.#newIds.add(id);
    this.#showList();
  }

  #handleEvent(data) {
    if (data.event === "missed") return fill(this.note, t("runs.missed", { n: data.count }));
    if (!data.runID) return;
    const run = this.#byId.get(data.runID) ?? (data.event === "called" ? this.#add(data) : null);
    if (!run) return;
    run.callCount = Math.max(run.callCount, data.callCount); // a list that was read later has more
    if (data.event !== "called" && data.kind === run.kind)
      Object.assign(run, { durationMs: data.durationMs, error: data.error, state: data.state });
    this.#dirty.add(data.runID);
    this.#timer ||= setTimeout(() => this.#flush(), UPDATE_INTERVAL_MS);
  }

  /** Add a run that has started. In a list with filters, only their number is shown. */
  #add({ runID, kind, name, agent, actor, client, directory, command }) {
    if (!this.filters.isPlain) {
      this.#newIds.add(runID);
      this.#timer ||= setTimeout(() => this.#flush(), UPDATE_INTERVAL_MS);
      return null;
    }
    const startedAt = new Date().toISOString();
    const run = { id: runID, kind, name, agent, actor, client, directory, command: command ?? "", startedAt };
    Object.assign(run, { callCount: 0, state: "running", durationMs: null, error: null });
    if (this.#loadingPages) this.#started.push(run);
    this.#insert(run);
    return run;
  }

  #insert(run) {
    this.#byId.set(run.id, run);
    if (!this.#pages) return; // the first page is being loaded
    this.#pages.items.unshift(run);
    this.#pages.total += 1;
    this.#addedCount += 1;
  }

  #flush() {
    this.#timer = 0;
    if (!this.#pages) return;
    const ids = this.#dirty;
    this.#dirty = new Set();
    this.#showList({ added: this.#addedCount });
    this.#addedCount = 0;
    if (this.#selectedId && ids.has(this.#selectedId)) this.#showDetail({ isUpdate: true });
  }

  async #export() {
    const options = { query: this.filters.value, accept: "application/x-ndjson" };
    const response = await request("GET", "/api/runs/export", options);
    downloadFile("runs.jsonl", await response.blob());
  }
}

customElements.define("ot-runs", RunsScreen);
