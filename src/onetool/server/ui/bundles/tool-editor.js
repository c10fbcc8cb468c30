/** Editor for a stored HTTP tool. Saving creates a tool or a new version, because stored versions never change. A tool
 * can be tried before it is saved. */
import { fill, h } from "../core/h.js";
import { load } from "../core/loading.js";
import { badge, button, labeled, notify, openModal, primaryButton } from "../core/components.js";
import { navigate, link } from "../core/router.js";
import { t } from "../core/i18n.js";
import { changes, getTool } from "../tools/catalog.js";
import { argumentsEditor } from "./arguments.js";
import { showProblems, toSlug } from "./bundle-dialog.js";
import { versionNotice } from "./conflict.js";
import { httpFields } from "./http-fields.js";
import { deleteTool, getBundle, getStoredTool, putTool } from "./bundle-api.js";
import { toolTester } from "./tool-tester.js";

const NEW = "new";
const TRIAL = "try-"; // start of the slugs of tools that are stored for a test

class ToolEditor extends HTMLElement {
  connectedCallback() {
    const isNew = this.slug === NEW && !this.version;
    load(this, async () => {
      const [parent, old] = await Promise.all([
        getBundle(this.bundleId),
        isNew ? null : getStoredTool(this.bundleId, this.slug, this.version),
      ]);
      return this.#render(parent, old);
    }).then(() => this.#rememberVersions());
    this.stopListening = changes.listen(() => this.#checkVersions());
  }

  disconnectedCallback() {
    this.stopListening();
  }

  #render(parent, old) {
    Object.assign(this, { parent, old });
    const isFixed = parent.isBuiltIn || old?.type === "python" || old?.type === "go";
    const text = (key, value, attributes = {}, options = {}) =>
      labeled(t(key), h("input", { value, spellcheck: "false", ...attributes }), options);
    this.fields = {
      displayName: text("tool.displayName", old?.displayName ?? "", {}, { required: true }),
      slug: text(
        "tool.slug",
        old?.slug ?? "",
        { readonly: Boolean(old) },
        { required: true, hint: old ? null : t("bundle.slug.hint") },
      ),
      version: text(
        "tool.version",
        old ? nextVersion(old.version) : "1",
        {},
        { required: true, hint: old ? t("tool.version.hint", { version: old.version }) : null },
      ),
      description: labeled(t("bundle.description"), h("textarea", { rows: 2, value: old?.description ?? "" }), {
        hint: t("tool.description.hint"),
      }),
      tags: text("tool.tags", (old?.tags ?? []).join(", "), {}, { hint: t("tool.tags.hint") }),
    };
    this.http = httpFields(old?.httpImpl);
    this.args = argumentsEditor(old?.argSchema);
    this.problem = h("p.problem.pre", { role: "alert" });
    this.conflict = h("div.conflict-place");
    this.#suggestSlug();
    this.initial = isFixed ? "" : JSON.stringify(this.#draft());
    return [
      h("a.back", { href: link("bundles", parent.id) }, `← ${parent.displayName}`),
      h(
        "div.title",
        {},
        h("h2", {}, h("bdi", {}, old ? `${old.displayName} ${old.version}` : t("tool.new"))),
        old ? badge(old.type) : null,
      ),
      old?.disabledReason ? h("p.reason", {}, old.disabledReason) : null,
      isFixed
        ? h(
            "p.hint",
            {},
            t(parent.isBuiltIn ? "tool.builtIn" : "tool.python", { function: old?.pythonImpl?.function ?? "" }),
          )
        : null,
      isFixed
        ? h("pre.command", { tabindex: "0" }, JSON.stringify(old, null, 2))
        : h(
            "form.stack",
            { onsubmit: (event) => (event.preventDefault(), this.#save()) },
            this.conflict,
            h("div.line", {}, this.fields.displayName, this.fields.slug, this.fields.version),
            this.fields.description,
            this.http,
            this.args,
            this.fields.tags,
            this.problem,
            h(
              "div.bar",
              {},
              primaryButton(t(old ? "tool.saveVersion" : "save"), () => this.#save()),
              button(t("tool.try"), () => this.#try()),
            ),
          ),
    ];
  }

  #suggestSlug() {
    const { displayName, slug } = this.fields;
    displayName.control.addEventListener("input", () => {
      if (!this.old && !slug.isTouched) slug.control.value = toSlug(displayName.control.value);
    });
    slug.control.addEventListener("input", () => (slug.isTouched = true));
  }

  #draft() {
    const tags = this.fields.tags.control.value
      .split(",")
      .map((tag) => tag.trim())
      .filter(Boolean);
    return {
      displayName: this.fields.displayName.control.value,
      isEnabled: true,
      type: "http",
      httpImpl: this.http.value,
      description: this.fields.description.control.value,
      tags,
      argSchema: this.#schema(),
      ...(this.old?.outputSchema ? { outputSchema: this.old.outputSchema } : {}),
    };
  }

  /** Return the schema. Arguments that the request uses without declaring them are added as strings. */
  #schema() {
    const known = this.args.names;
    if (known) for (const name of this.http.placeholders) if (!known.has(name)) this.args.add(name);
    return this.args.value;
  }

  async #save() {
    const { slug, version } = this.fields;
    try {
      const known = this.fields.version.control.value;
      await this.#checkVersions();
      if (this.fields.version.control.value !== known) return; // somebody else was faster: look at it first
      const stored = await this.#store(slug.control.value, version.control.value);
      notify(t("saved", { name: `${stored.slug} ${stored.version}` }));
      navigate("bundles", this.bundleId);
    } catch (error) {
      this.#showError(error);
    }
  }

  async #store(slug, version) {
    this.#clear();
    const missing = ["displayName", "slug", "version"].find((name) => !this.fields[name].control.value.trim());
    if (missing) {
      this.fields[missing].control.focus();
      throw Object.assign(new Error(t("check.required")), {
        details: { problems: [{ field: missing, problem: t("check.required") }] },
      });
    }
    return putTool(this.bundleId, slug, version, this.#draft());
  }

  #clear() {
    Object.values({ ...this.fields, ...this.http.fields }).forEach((field) => field.showProblem());
    fill(this.problem);
  }

  #showError(error) {
    const problems = error.details?.problems ?? [];
    const fields = { ...this.fields, ...this.http.fields };
    const assigned = problems
      .map(({ field, problem }) => ({ field: field.replace(/^httpImpl\./, "").replace(/^auth\..*/, "value"), problem }))
      .filter(({ field }) => fields[field]);
    if (assigned.length) showProblems(fields, { details: { problems: assigned } });
    if (error.code === "duplicate") this.#showDuplicate(error);
    else if (assigned.length < Math.max(1, problems.length)) fill(this.problem, error.message);
    this.querySelector("[aria-invalid=true]")?.focus();
  }

  #showDuplicate(error) {
    const version = this.fields.version.control.value;
    this.fields.version.showProblem(error.message);
    if (version !== this.old?.version) this.#showOther(version);
  }

  /** Call the stored tool, or, if it was edited, store it under a temporary slug while the dialog is open. */
  async #try() {
    try {
      if (this.old?.isEnabled && JSON.stringify(this.#draft()) === this.initial)
        return openModal(t("tool.try"), toolTester(this.bundleId, this.old), [], { class: "wide" });
      return this.#openTrial(await this.#store(`${TRIAL}${Date.now().toString(36)}`, "1"));
    } catch (error) {
      return this.#showError(error);
    }
  }

  #openTrial(stored) {
    const remove = () => deleteTool(this.bundleId, stored.slug, "1").catch((error) => notify(error.message, "bad"));
    const dialog = openModal(t("tool.try"), toolTester(this.bundleId, stored), [], { class: "wide" });
    addEventListener("pagehide", remove, { once: true });
    dialog.addEventListener("close", () => (removeEventListener("pagehide", remove), remove()));
  }

  // --- other people ---------------------------------------------------------------------------------------------

  /** Look for versions that somebody else has saved since this one was opened. */
  async #checkVersions() {
    if (!this.old || !this.versions) return;
    const found = await this.#listVersions();
    const other = found.findLast((version) => !this.versions.has(version));
    if (other) await this.#showOther(other);
  }

  async #rememberVersions() {
    if (this.old) this.versions = new Set([this.old.version, ...(await this.#listVersions())]);
  }

  async #listVersions() {
    const { versions = [] } = await getTool(`${this.parent.slug}.${this.old.slug}`).catch(() => ({}));
    return versions.map(({ version }) => version);
  }

  /** Show the version of somebody else, keep what was typed, and suggest a version after it. */
  async #showOther(version) {
    const theirs = await getStoredTool(this.bundleId, this.fields.slug.control.value, version).catch(() => null);
    if (!theirs || !this.isConnected) return;
    this.versions?.add(version);
    this.fields.version.control.value = nextVersion(version);
    fill(this.conflict, versionNotice(theirs, this.#draft()));
  }
}

/** Suggest the next version: `1.10` after `1.9`. */
function nextVersion(version) {
  const match = /^(.*?)(\d+)$/.exec(version);
  return match ? `${match[1]}${Number(match[2]) + 1}` : `${version}-2`;
}

customElements.define("ot-tool-editor", ToolEditor);
export const toolEditor = (bundleId, slug, version) =>
  Object.assign(document.createElement("ot-tool-editor"), { bundleId, slug, version });
