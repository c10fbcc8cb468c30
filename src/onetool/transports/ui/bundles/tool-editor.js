/** Editor for a stored HTTP tool. Saving creates a tool or a new version, because stored versions never change. A tool
 * can be tried before it is saved. */
import { fill, h } from "../core/h.js";
import { load } from "../core/loading.js";
import { badge, button, labeled, openModal, notify, primaryButton } from "../core/components.js";
import { navigate, link } from "../core/router.js";
import { t } from "../core/i18n.js";
import { formatDuration } from "../core/text.js";
import { form } from "../form/form.js";
import { resultView } from "../result/view.js";
import { errorView } from "../result/error-view.js";
import { argumentsEditor } from "./arguments.js";
import { showProblems, toSlug } from "./bundle-dialog.js";
import { httpFields } from "./http-fields.js";
import { deleteTool, getBundle, getStoredTool, invoke, putTool } from "./bundle-api.js";

const NEW = "new";

class ToolEditor extends HTMLElement {
  connectedCallback() {
    const isNew = this.slug === NEW && !this.version;
    load(this, async () => {
      const [parent, old] = await Promise.all([
        getBundle(this.bundleId),
        isNew ? null : getStoredTool(this.bundleId, this.slug, this.version),
      ]);
      return this.#render(parent, old);
    });
  }

  #render(parent, old) {
    this.old = old;
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
    this.#suggestSlug();
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
    if (error.code === "duplicate") this.fields.version.showProblem(error.message);
    else if (assigned.length < Math.max(1, problems.length)) fill(this.problem, error.message);
    this.querySelector("[aria-invalid=true]")?.focus();
  }

  /** Store the tool under a temporary slug while the dialog is open. */
  async #try() {
    const slug = `try-${Date.now().toString(36)}`;
    let stored;
    try {
      stored = await this.#store(slug, "1");
    } catch (error) {
      return this.#showError(error);
    }
    const remove = () => deleteTool(this.bundleId, slug, "1").catch((error) => notify(error.message, "bad"));
    const dialog = openModal(t("tool.try"), this.#tester(stored), []);
    addEventListener("pagehide", remove, { once: true });
    dialog.addEventListener("close", () => (removeEventListener("pagehide", remove), remove()));
  }

  #tester(stored) {
    const output = h("div.output");
    const fields = form(stored.argSchema);
    const run = primaryButton(
      t("tester.run"),
      () => fields.check() && this.#invoke(stored, fields.value, run, output),
      {
        class: "primary run",
      },
    );
    return h("div.stack", {}, fields, h("div.bar", {}, run), output);
  }

  async #invoke({ slug, version }, args, run, output) {
    const startedAt = performance.now();
    run.disabled = true;
    try {
      const { ok, value, error } = await invoke(this.bundleId, slug, version, args);
      const ms = performance.now() - startedAt;
      fill(output, ok ? resultView(value, formatDuration(ms)) : errorView(error, ms));
    } catch (error) {
      fill(output, errorView({ type: error.code ?? "error", message: error.message }, performance.now() - startedAt));
    } finally {
      run.disabled = false;
    }
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
