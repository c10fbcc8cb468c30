/** A stored tool: made anew, or changed as a new version, since a version that is stored never changes. Tried before it
 * is saved. */
import { fill, h } from "../core/h.js";
import { load } from "../core/loading.js";
import { badge, button, labelled, modal, notify, primary } from "../core/parts.js";
import { go, link } from "../core/router.js";
import { say } from "../core/say.js";
import { duration } from "../core/text.js";
import { form } from "../form/form.js";
import { resultView } from "../result/view.js";
import { wrong } from "../result/wrong.js";
import { argumentsOf } from "./arguments.js";
import { complain, slugOf } from "./bundle-dialog.js";
import { httpFields } from "./http-fields.js";
import { bundle, deleteTool, invoke, putTool, storedTool } from "./store.js";

const NEW = "new";

class ToolEditor extends HTMLElement {
  connectedCallback() {
    const isNew = this.slug === NEW && !this.version;
    load(this, async () => {
      const [home, old] = await Promise.all([
        bundle(this.bundleId),
        isNew ? null : storedTool(this.bundleId, this.slug, this.version),
      ]);
      return this.#shown(home, old);
    });
  }

  #shown(home, old) {
    this.old = old;
    const isFixed = home.isBuiltIn || old?.type === "python" || old?.type === "go";
    const text = (word, value, given = {}, about = {}) =>
      labelled(say(word), h("input", { value, spellcheck: "false", ...given }), about);
    this.fields = {
      displayName: text("tool.displayName", old?.displayName ?? "", {}, { required: true }),
      slug: text(
        "tool.slug",
        old?.slug ?? "",
        { readonly: Boolean(old) },
        { required: true, hint: old ? null : say("bundle.slug.hint") },
      ),
      version: text(
        "tool.version",
        old ? nextVersion(old.version) : "1",
        {},
        { required: true, hint: old ? say("tool.version.hint", { version: old.version }) : null },
      ),
      description: labelled(say("bundle.description"), h("textarea", { rows: 2, value: old?.description ?? "" }), {
        hint: say("tool.description.hint"),
      }),
      tags: text("tool.tags", (old?.tags ?? []).join(", "), {}, { hint: say("tool.tags.hint") }),
    };
    this.http = httpFields(old?.httpImpl);
    this.args = argumentsOf(old?.argSchema);
    this.problem = h("p.problem.pre", { role: "alert" });
    this.#suggestSlug();
    return [
      h("a.back", { href: link("bundles", home.id) }, `← ${home.displayName}`),
      h(
        "div.title",
        {},
        h("h2", {}, h("bdi", {}, old ? `${old.displayName} ${old.version}` : say("tool.new"))),
        old ? badge(old.type) : null,
      ),
      old?.disabledReason ? h("p.reason", {}, old.disabledReason) : null,
      isFixed
        ? h(
            "p.hint",
            {},
            say(home.isBuiltIn ? "tool.builtIn" : "tool.python", { function: old?.pythonImpl?.function ?? "" }),
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
              primary(say(old ? "tool.saveVersion" : "save"), () => this.#save()),
              button(say("tool.try"), () => this.#try()),
            ),
          ),
    ];
  }

  #suggestSlug() {
    const { displayName, slug } = this.fields;
    displayName.control.addEventListener("input", () => {
      if (!this.old && !slug.isTouched) slug.control.value = slugOf(displayName.control.value);
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

  /** Add the arguments that the request uses and nobody has described, as texts. */
  #schema() {
    const known = this.args.names;
    if (known)
      for (const name of this.http.placeholders)
        if (!known.has(name)) this.args.add(name);
    return this.args.value;
  }

  async #save() {
    const { slug, version } = this.fields;
    try {
      const stored = await this.#stored(slug.control.value, version.control.value);
      notify(say("saved", { name: `${stored.slug} ${stored.version}` }));
      go("bundles", this.bundleId);
    } catch (error) {
      this.#complain(error);
    }
  }

  async #stored(slug, version) {
    this.#clear();
    const missing = ["displayName", "slug", "version"].find((name) => !this.fields[name].control.value.trim());
    if (missing) {
      this.fields[missing].control.focus();
      throw Object.assign(new Error(say("check.required")), {
        details: { problems: [{ field: missing, problem: say("check.required") }] },
      });
    }
    return putTool(this.bundleId, slug, version, this.#draft());
  }

  #clear() {
    Object.values({ ...this.fields, ...this.http.fields }).forEach((field) => field.complain());
    fill(this.problem);
  }

  #complain(error) {
    const problems = error.details?.problems ?? [];
    const named = { ...this.fields, ...this.http.fields };
    const placed = problems
      .map(({ field, problem }) => ({ field: field.replace(/^httpImpl\./, "").replace(/^auth\..*/, "value"), problem }))
      .filter(({ field }) => named[field]);
    if (placed.length) complain(named, { details: { problems: placed } });
    if (error.code === "duplicate") this.fields.version.complain(error.message);
    else if (placed.length < Math.max(1, problems.length)) fill(this.problem, error.message);
    this.querySelector("[aria-invalid=true]")?.focus();
  }

  /** Under a name of its own for as long as the dialog is open: nobody else calls a tool that is being tried. */
  async #try() {
    const slug = `try-${Date.now().toString(36)}`;
    let stored;
    try {
      stored = await this.#stored(slug, "1");
    } catch (error) {
      return this.#complain(error);
    }
    const forget = () => deleteTool(this.bundleId, slug, "1").catch((error) => notify(error.message, "bad"));
    const dialog = modal(say("tool.try"), this.#tester(stored), []);
    addEventListener("pagehide", forget, { once: true });
    dialog.addEventListener("close", () => (removeEventListener("pagehide", forget), forget()));
  }

  #tester(stored) {
    const output = h("div.output");
    const fields = form(stored.argSchema);
    const run = primary(say("tester.run"), () => fields.check() && this.#invoke(stored, fields.value, run, output), {
      class: "primary run",
    });
    return h("div.stack", {}, fields, h("div.bar", {}, run), output);
  }

  async #invoke({ slug, version }, args, run, output) {
    const began = performance.now();
    run.disabled = true;
    try {
      const { ok, value, error } = await invoke(this.bundleId, slug, version, args);
      const ms = performance.now() - began;
      fill(output, ok ? resultView(value, duration(ms)) : wrong(error, ms));
    } catch (error) {
      fill(output, wrong({ type: error.code ?? "error", message: error.message }, performance.now() - began));
    } finally {
      run.disabled = false;
    }
  }
}

/** `1.9` becomes `1.10`; a version is an opaque word, so that this is a suggestion only. */
function nextVersion(version) {
  const match = /^(.*?)(\d+)$/.exec(version);
  return match ? `${match[1]}${Number(match[2]) + 1}` : `${version}-2`;
}

customElements.define("ot-tool-editor", ToolEditor);
export const toolEditor = (bundleId, slug, version) =>
  Object.assign(document.createElement("ot-tool-editor"), { bundleId, slug, version });
