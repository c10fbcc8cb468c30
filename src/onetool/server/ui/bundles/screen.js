/** Screen "Bundles": create, edit, import and export stored tools. */
import { fill, h } from "../core/h.js";
import { keyedList } from "../core/keyed-list.js";
import { load } from "../core/loading.js";
import { refill } from "../core/refill.js";
import { button, emptyState, notify, primaryButton, toggle } from "../core/components.js";
import { navigate, link } from "../core/router.js";
import { t } from "../core/i18n.js";
import { loadStyles } from "../core/styles.js";
import { changes, watchChanges } from "../tools/catalog.js";
import { listBundles, setBundleEnabled } from "./bundle-api.js";
import { editBundle } from "./bundle-dialog.js";
import { bundleView } from "./bundle-view.js";
import { ImportDialog } from "./import-dialog.js";
import { toolEditor } from "./tool-editor.js";

await loadStyles("bundles");

class BundlesScreen extends HTMLElement {
  #route = [];
  #renderRows = keyedList(
    ({ id }) => id,
    (bundle) => this.#row(bundle),
  );

  connectedCallback() {
    this.list = h("div.fill");
    this.rows = h("ul.rows");
    this.detail = h("section.detail", { "aria-label": t("bundles.detail") });
    this.append(
      h(
        "section.bundle-list",
        { "aria-label": t("screen.bundles") },
        h(
          "header",
          {},
          h("h1", {}, t("screen.bundles")),
          h(
            "div.actions",
            {},
            button(t("bundles.import"), () => new ImportDialog().open()),
            primaryButton(t("bundles.new"), async () => this.#openCreated(await editBundle())),
          ),
        ),
        h("p.hint", {}, t("bundles.drop")),
        this.list,
      ),
      this.detail,
    );
    this.stopListening = changes.listen(() => this.#load({ isUpdate: true }));
    this.watching = new AbortController();
    watchChanges(this.watching.signal);
    this.#load();
  }

  disconnectedCallback() {
    this.stopListening();
    this.watching.abort();
  }

  show(...parts) {
    const [id, slug, version] = (this.#route = parts);
    this.classList.toggle("has-detail", Boolean(id));
    this.#markSelected();
    if (!id) fill(this.detail, emptyState(t("bundles.choose"), t("bundles.choose.advice")));
    else if (slug) fill(this.detail, toolEditor(id, slug, version));
    else fill(this.detail, bundleView(id));
  }

  #openCreated(bundle) {
    if (bundle) navigate("bundles", bundle.id);
  }

  async #load({ isUpdate = false } = {}) {
    const render = async () => {
      const found = await listBundles();
      if (!found.length) return emptyState(t("bundles.none"), t("bundles.none.advice"));
      return () => refill(this.rows, this.#renderRows(found));
    };
    await load(this.list, render, { isUpdate });
    this.#markSelected();
  }

  #row(bundle) {
    return h(
      "li",
      { class: bundle.isEnabled ? "" : "off" },
      h(
        "a.main",
        { href: link("bundles", bundle.id) },
        h("span.name", {}, bundle.displayName),
        h("span.about", {}, bundle.slug, bundle.isBuiltIn ? ` · ${t("kind.built-in")}` : null),
      ),
      toggle(t("bundles.switch", { name: bundle.displayName }), bundle.isEnabled, async (on) => {
        await setBundleEnabled(bundle, on);
        notify(t(on ? "notice.enabled" : "notice.disabled", { name: bundle.slug }));
      }),
    );
  }

  #markSelected() {
    for (const row of this.list.querySelectorAll("li"))
      row.toggleAttribute("data-selected", row.dataset.key === this.#route[0]);
  }
}

customElements.define("ot-bundles", BundlesScreen);
