/** A bundle with its tools, one row for each version, and its actions. */
import { h } from "../core/h.js";
import { load } from "../core/loading.js";
import {
  actionButton,
  badge,
  button,
  confirmAction,
  definitionList,
  notify,
  emptyState,
  primaryButton,
  downloadFile,
  toggle,
} from "../core/components.js";
import { navigate, link } from "../core/router.js";
import { t } from "../core/i18n.js";
import { truncate, formatDate, formatNumber, formatRelativeTime } from "../core/text.js";
import { virtualList, waitingRow } from "../core/virtual-list.js";
import { changes } from "../tools/catalog.js";
import { editBundle } from "./bundle-dialog.js";
import { ImportDialog } from "./import-dialog.js";
import {
  deleteBundle,
  deleteTool,
  exportBundle,
  getBundle,
  listTools,
  setToolEnabled,
  toolPages,
} from "./bundle-api.js";

const ROW_HEIGHT = 58;
const MAX_CHARS = 300;

class BundleView extends HTMLElement {
  connectedCallback() {
    this.list = virtualList({
      label: t("bundle.tools"),
      height: ROW_HEIGHT,
      row: (index) => this.#row(this.pages.items[index]),
      update: (row, index) => row.text === JSON.stringify(this.pages.items[index]),
      open: (index) => this.#open(this.pages.items[index]),
      load: (first, last) => this.#loadRows(first, last),
    });
    this.list.classList.add("card");
    this.#listen();
    this.#load();
  }

  disconnectedCallback() {
    this.stopListening();
  }

  #listen() {
    this.stopListening = changes.listen(() => this.#load({ isUpdate: true }));
  }

  async #load({ isUpdate = false } = {}) {
    const render = async () => {
      const [found, pages] = await Promise.all([
        getBundle(this.bundleId),
        toolPages(this.bundleId).loadFirst(this.pages?.items.length),
      ]);
      return () => {
        Object.assign(this, { found, pages });
        return this.#render();
      };
    };
    await load(this, render, { isUpdate });
    this.#resizeList();
  }

  #render() {
    const { found } = this;
    const { isBuiltIn } = found;
    return [
      h("a.back", { href: link("bundles") }, t("bundles.back")),
      h("div.title", {}, h("h2", {}, h("bdi", {}, found.displayName)), isBuiltIn ? badge("built-in") : null),
      found.description ? h("p.description", { dir: "auto" }, found.description) : null,
      found.isEnabled ? null : h("p.reason", {}, t("bundle.disabled")),
      h(
        "div.actions",
        {},
        isBuiltIn
          ? null
          : primaryButton(t("tool.new"), () => navigate("bundles", found.id, "new"), { disabled: !found.isEnabled }),
        isBuiltIn
          ? null
          : button(t("bundle.update"), () => new ImportDialog({ slug: found.slug }).open(), {
              disabled: !found.isEnabled,
            }),
        actionButton(t("bundle.export"), () => this.#export()),
        isBuiltIn ? null : button(t("bundle.edit"), () => editBundle(found)),
        isBuiltIn ? null : actionButton(t("bundle.delete"), () => this.#delete()),
      ),
      definitionList([
        [t("bundle.slug"), h("code", {}, found.slug)],
        [t("bundle.created"), formatDate(found.createdAt)],
        [t("bundle.modified"), formatDate(found.modifiedAt)],
      ]),
      this.pages.items.length ? this.list : emptyState(t("bundle.empty"), t("bundle.empty.advice")),
    ];
  }

  /** Fit the list to its content, up to 60% of the window. */
  #resizeList() {
    if (!this.list.isConnected) return;
    this.list.style.height = `min(${this.pages.total * ROW_HEIGHT + 2}px, 60vh)`;
    this.list.show(this.pages.total);
  }

  #loadRows(first, last) {
    this.pages.load(
      first,
      last,
      () => this.#resizeList(),
      (error) => notify(error.message, "bad"),
    );
  }

  #open(tool) {
    if (tool) navigate("bundles", this.found.id, tool.slug, tool.version);
  }

  #row(tool) {
    const { found } = this;
    if (!tool) return waitingRow("tool-row");
    const name = `${tool.slug} ${tool.version}`;
    const calls = tool.callCount
      ? [
          " · ",
          t("live.calls", { n: tool.callCount }),
          tool.lastCalledAt ? ` · ${formatRelativeTime(tool.lastCalledAt)}` : null,
        ]
      : null;
    const summary =
      tool.disabledReason ??
      [tool.type, tool.httpImpl?.method, tool.httpImpl?.urlTemplate, tool.pythonImpl?.function]
        .filter(Boolean)
        .join(" ");
    const row = h(
      "div.tool-row",
      { class: tool.isEnabled ? "" : "off" },
      h(
        "span.main",
        { role: "gridcell" },
        h(
          "a.name",
          { href: link("bundles", found.id, tool.slug, tool.version), tabindex: "-1" },
          h("bdi", {}, tool.displayName),
          h("span.version", {}, tool.version),
        ),
        h("span.about", {}, truncate(summary, MAX_CHARS), calls),
      ),
      h(
        "span.end",
        { role: "gridcell" },
        found.isBuiltIn
          ? null
          : button("×", () => this.#deleteTool(tool), {
              class: "quiet",
              tabindex: "-1",
              "aria-label": t("tool.delete", { name }),
            }),
        toggle(
          t("tools.switch", { name }),
          tool.isEnabled,
          async (on) => {
            await setToolEnabled(tool, on);
            notify(t(on ? "notice.enabled" : "notice.disabled", { name }));
          },
          { tabindex: "-1" },
        ),
      ),
    );
    row.text = JSON.stringify(tool);
    return row;
  }

  async #export() {
    const { slug, id } = this.found;
    downloadFile(`${slug}.zip`, await exportBundle(id));
  }

  async #delete() {
    const { found } = this;
    const tools = await listTools(found.id);
    if (
      !(await confirmAction(
        t("bundle.delete.sure", { name: found.displayName, n: formatNumber(tools.length) }),
        t("bundle.delete"),
      ))
    )
      return;
    this.stopListening();
    try {
      for (const tool of tools) await deleteTool(found.id, tool.slug, tool.version);
      await deleteBundle(found.id, found.etag);
    } catch (error) {
      this.#listen();
      this.#load(); // show what is left
      throw error;
    }
    notify(t("deleted", { name: found.displayName }));
    navigate("bundles");
  }

  async #deleteTool(tool) {
    const name = `${tool.slug} ${tool.version}`;
    if (!(await confirmAction(t("tool.delete.sure", { name }), t("delete")))) return;
    await deleteTool(tool.bundleID, tool.slug, tool.version).then(
      () => notify(t("deleted", { name })),
      (error) => notify(error.message, "bad"),
    );
  }
}

customElements.define("ot-bundle", BundleView);
export const bundleView = (id) => Object.assign(document.createElement("ot-bundle"), { bundleId: id });
