/** Bundles: tools that are kept as data, made, changed as new versions, taken in and given away. */
import { fill, h } from "../core/h.js";
import { load } from "../core/loading.js";
import { button, nothing, notify, primary, toggle } from "../core/parts.js";
import { go, link } from "../core/router.js";
import { say } from "../core/say.js";
import { style } from "../core/styles.js";
import { changes } from "../tools/catalogue.js";
import { editBundle } from "./bundle-dialog.js";
import { bundleView } from "./bundle-view.js";
import { importFiles } from "./importing.js";
import { bundles, switchBundle } from "./store.js";
import { toolEditor } from "./tool-editor.js";

await style("bundles");

class BundlesScreen extends HTMLElement {
  #parts = [];

  connectedCallback() {
    this.list = h("div.fill");
    this.file = h("input", {
      type: "file",
      accept: ".json,.yaml,.yml,.zip",
      multiple: true,
      hidden: true,
      "aria-label": say("bundles.import"),
      onchange: () => (importFiles([...this.file.files]), (this.file.value = "")),
    });
    this.detail = h("section.detail", { "aria-label": say("bundles.detail") });
    this.append(
      h(
        "section.bundle-list",
        { "aria-label": say("screen.bundles") },
        h(
          "header",
          {},
          h("h1", {}, say("screen.bundles")),
          h(
            "div.actions",
            {},
            button(say("bundles.import"), () => this.file.click()),
            primary(say("bundles.new"), async () => this.#created(await editBundle())),
          ),
          this.file,
        ),
        h("p.hint", {}, say("bundles.drop")),
        this.list,
      ),
      this.detail,
    );
    this.end = changes.listen(() => this.#load());
    this.#load();
  }

  disconnectedCallback() {
    this.end();
  }

  show(...parts) {
    const [id, slug, version] = (this.#parts = parts);
    this.classList.toggle("has-detail", Boolean(id));
    this.#mark();
    if (!id) fill(this.detail, nothing(say("bundles.choose"), say("bundles.choose.advice")));
    else if (slug) fill(this.detail, toolEditor(id, slug, version));
    else fill(this.detail, bundleView(id));
  }

  #created(bundle) {
    if (bundle) go("bundles", bundle.id);
  }

  #load() {
    return load(this.list, async () => {
      const found = await bundles();
      if (!found.length) return nothing(say("bundles.none"), say("bundles.none.advice"));
      return h(
        "ul.rows",
        {},
        found.map((bundle) => this.#row(bundle)),
      );
    }).then(() => this.#mark());
  }

  #row(bundle) {
    return h(
      "li",
      { class: bundle.isEnabled ? "" : "off", data: { id: bundle.id } },
      h(
        "a.main",
        { href: link("bundles", bundle.id) },
        h("span.name", {}, bundle.displayName),
        h("span.about", {}, bundle.slug, bundle.isBuiltIn ? ` · ${say("kind.built-in")}` : null),
      ),
      toggle(say("bundles.switch", { name: bundle.displayName }), bundle.isEnabled, async (on) => {
        await switchBundle(bundle.id, on);
        notify(say(on ? "switched.on" : "switched.off", { name: bundle.slug }));
      }),
    );
  }

  #mark() {
    for (const row of this.list.querySelectorAll("li"))
      row.toggleAttribute("data-here", row.dataset.id === this.#parts[0]);
  }
}

customElements.define("ot-bundles", BundlesScreen);
