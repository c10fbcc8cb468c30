/** One bundle: its tools, version by version, and what can be done with all of it. */
import { h } from "../core/h.js";
import { load } from "../core/loading.js";
import { badge, button, confirmed, facts, notify, nothing, primary, save, toggle } from "../core/parts.js";
import { go, link } from "../core/router.js";
import { say } from "../core/say.js";
import { clipped, dateOf, number, since } from "../core/text.js";
import { list } from "../core/virtual-list.js";
import { changes } from "../tools/catalogue.js";
import { editBundle } from "./bundle-dialog.js";
import { bundle, deleteBundle, deleteTool, exported, switchStored, toolPages, toolsOf } from "./store.js";

const ROW = 58;
const LONGEST = 300;

class BundleView extends HTMLElement {
  connectedCallback() {
    this.end = changes.listen(() => this.#load());
    this.#load();
  }

  disconnectedCallback() {
    this.end();
  }

  #load() {
    const top = this.list?.scrollTop ?? 0;
    return load(this, async () => {
      const [found, pages] = await Promise.all([
        bundle(this.bundleId),
        toolPages(this.bundleId).begin(this.pages?.items.length),
      ]);
      this.pages = pages;
      return this.#shown(found);
    }).then(() => this.#measure(top));
  }

  #shown(found) {
    this.list = list({
      label: say("bundle.tools"),
      height: ROW,
      row: (index) => this.#row(found, this.pages.items[index]),
      open: (index) => this.#open(found, this.pages.items[index]),
      need: (last) => this.#need(last),
    });
    this.list.classList.add("card");
    const isOurs = found.isBuiltIn;
    return [
      h("a.back", { href: link("bundles") }, say("bundles.back")),
      h("div.title", {}, h("h2", {}, h("bdi", {}, found.displayName)), isOurs ? badge("built-in") : null),
      found.description ? h("p.description", { dir: "auto" }, found.description) : null,
      found.isEnabled ? null : h("p.reason", {}, say("bundle.isOff")),
      h(
        "div.actions",
        {},
        isOurs ? null : primary(say("tool.new"), () => go("bundles", found.id, "new"), { disabled: !found.isEnabled }),
        button(say("bundle.export"), () => this.#export(found)),
        isOurs ? null : button(say("bundle.edit"), () => editBundle(found)),
        isOurs ? null : button(say("bundle.delete"), () => this.#delete(found)),
      ),
      facts([
        [say("bundle.slug"), h("code", {}, found.slug)],
        [say("bundle.created"), dateOf(found.createdAt)],
        [say("bundle.modified"), dateOf(found.modifiedAt)],
      ]),
      this.pages.items.length ? this.list : nothing(say("bundle.empty"), say("bundle.empty.advice")),
    ];
  }

  /** As high as what is in it, up to a part of the screen. */
  #measure(top = this.list?.scrollTop) {
    if (!this.list?.isConnected) return;
    this.list.style.height = `min(${this.pages.total * ROW + 2}px, 60vh)`;
    this.list.show(this.pages.total);
    this.list.scrollTop = top;
  }

  #need(last) {
    this.pages.need(
      last,
      () => this.#measure(),
      (error) => notify(error.message, "bad"),
    );
  }

  #open(found, tool) {
    if (tool) go("bundles", found.id, tool.slug, tool.version);
  }

  #row(found, tool) {
    if (!tool)
      return h("div.tool-row.waiting", {}, h("span", { role: "gridcell" }, h("span.unseen", {}, say("loading"))));
    const name = `${tool.slug} ${tool.version}`;
    const calls = tool.callCount
      ? [" · ", say("live.calls", { n: tool.callCount }), tool.lastCalledAt ? ` · ${since(tool.lastCalledAt)}` : null]
      : null;
    const what =
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
        h("span.about", {}, clipped(what, LONGEST), calls),
      ),
      h(
        "span.end",
        { role: "gridcell" },
        found.isBuiltIn
          ? null
          : button("×", () => this.#deleteTool(tool), {
              class: "quiet",
              tabindex: "-1",
              "aria-label": say("tool.delete", { name }),
            }),
        toggle(
          say("tools.switch", { name }),
          tool.isEnabled,
          async (on) => {
            await switchStored(found.id, tool.slug, tool.version, on);
            notify(say(on ? "switched.on" : "switched.off", { name }));
          },
          { tabindex: "-1" },
        ),
      ),
    );
  }

  async #export(found) {
    try {
      save(`${found.slug}.zip`, await exported(found.id));
    } catch (error) {
      notify(error.message, "bad");
    }
  }

  async #delete(found) {
    const tools = await toolsOf(found.id);
    if (
      !(await confirmed(
        say("bundle.delete.sure", { name: found.displayName, n: number(tools.length) }),
        say("bundle.delete"),
      ))
    )
      return;
    try {
      for (const tool of tools) await deleteTool(found.id, tool.slug, tool.version);
      this.end();
      await deleteBundle(found.id);
      notify(say("deleted", { name: found.displayName }));
      go("bundles");
    } catch (error) {
      notify(error.message, "bad");
    }
  }

  async #deleteTool(tool) {
    const name = `${tool.slug} ${tool.version}`;
    if (!(await confirmed(say("tool.delete.sure", { name }), say("delete")))) return;
    await deleteTool(tool.bundleID, tool.slug, tool.version).then(
      () => notify(say("deleted", { name })),
      (error) => notify(error.message, "bad"),
    );
  }
}

customElements.define("ot-bundle", BundleView);
export const bundleView = (id) => Object.assign(document.createElement("ot-bundle"), { bundleId: id });
