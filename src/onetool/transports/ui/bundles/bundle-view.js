/** A bundle with its tools, one row for each version, and its actions. */
import { h } from "../core/h.js";
import { load } from "../core/loading.js";
import {
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
import { virtualList } from "../core/virtual-list.js";
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
    this.stopListening = changes.listen(() => this.#load());
    this.#load();
  }

  disconnectedCallback() {
    this.stopListening();
  }

  #load() {
    const top = this.list?.scrollTop ?? 0;
    return load(this, async () => {
      const [found, pages] = await Promise.all([
        getBundle(this.bundleId),
        toolPages(this.bundleId).loadFirst(this.pages?.items.length),
      ]);
      const key = JSON.stringify([found, pages.items]);
      if (this.list?.isConnected && this.list.key === key) return [...this.childNodes]; // keeps the focus
      this.pages = pages;
      const content = this.#render(found);
      this.list.key = key;
      return content;
    }).then(() => this.#resizeList(top));
  }

  #render(found) {
    this.list = virtualList({
      label: t("bundle.tools"),
      height: ROW_HEIGHT,
      row: (index) => this.#row(found, this.pages.items[index]),
      open: (index) => this.#open(found, this.pages.items[index]),
      load: (last) => this.#loadUntil(last),
    });
    this.list.classList.add("card");
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
        button(t("bundle.export"), () => this.#export(found)),
        isBuiltIn ? null : button(t("bundle.edit"), () => editBundle(found)),
        isBuiltIn ? null : button(t("bundle.delete"), () => this.#delete(found)),
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
  #resizeList(top = this.list?.scrollTop) {
    if (!this.list?.isConnected) return;
    this.list.style.height = `min(${this.pages.total * ROW_HEIGHT + 2}px, 60vh)`;
    this.list.show(this.pages.total);
    this.list.scrollTop = top;
  }

  #loadUntil(last) {
    this.pages.loadUntil(
      last,
      () => this.#resizeList(),
      (error) => notify(error.message, "bad"),
    );
  }

  #open(found, tool) {
    if (tool) navigate("bundles", found.id, tool.slug, tool.version);
  }

  #row(found, tool) {
    if (!tool)
      return h(
        "div.tool-row.waiting",
        {},
        h("span", { role: "gridcell" }, h("span.visually-hidden", {}, t("loading"))),
      );
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
    return h(
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
            await setToolEnabled(found.id, tool.slug, tool.version, on);
            notify(t(on ? "notice.enabled" : "notice.disabled", { name }));
          },
          { tabindex: "-1" },
        ),
      ),
    );
  }

  async #export(found) {
    try {
      downloadFile(`${found.slug}.zip`, await exportBundle(found.id));
    } catch (error) {
      notify(error.message, "bad");
    }
  }

  async #delete(found) {
    const tools = await listTools(found.id);
    if (
      !(await confirmAction(
        t("bundle.delete.sure", { name: found.displayName, n: formatNumber(tools.length) }),
        t("bundle.delete"),
      ))
    )
      return;
    try {
      for (const tool of tools) await deleteTool(found.id, tool.slug, tool.version);
      this.stopListening();
      await deleteBundle(found.id, found.etag);
      notify(t("deleted", { name: found.displayName }));
      navigate("bundles");
    } catch (error) {
      notify(error.message, "bad");
    }
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
