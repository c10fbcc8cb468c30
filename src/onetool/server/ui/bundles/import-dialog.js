/** Dialog to import a document or an archive: its source, what it changes, and what its tools need. */
import { fill, h } from "../core/h.js";
import { button, labeled, notify, openModal, primaryButton, quietButton, spinner } from "../core/components.js";
import { navigate } from "../core/router.js";
import { t } from "../core/i18n.js";
import { loadStyles } from "../core/styles.js";
import { importDocument } from "./bundle-api.js";
import { differenceView } from "./difference-view.js";
import { requirementsForm } from "./requirements.js";

await loadStyles("bundles");
const MAX_PROBLEMS = 50;

export class ImportDialog {
  #query = {};
  #source = null;

  /** `slug` is the bundle to update, if it is known. */
  constructor({ slug } = {}) {
    this.slug = slug;
    if (slug) this.#query.name = slug;
  }

  /** Open the dialog for `{ file }` or `{ url }`, or ask for one. Resolves when the dialog is closed. */
  open(source) {
    this.content = h("div.stack");
    this.footer = h("div.actions");
    const title = this.slug ? t("import.update", { name: this.slug }) : t("import.title");
    this.dialog = openModal(title, this.content, [this.footer], { class: "wide" });
    const closed = new Promise((resolve) => this.dialog.addEventListener("close", resolve));
    if (source) this.#check(source);
    else this.#askForSource();
    return closed;
  }

  #show(content, action) {
    fill(this.content, content);
    fill(this.footer, quietButton(t("cancel"), () => this.dialog.close()), action);
  }

  #askForSource() {
    const accept = ".json,.yaml,.yml,.zip";
    const file = labeled(t("import.file"), h("input", { type: "file", accept }));
    const url = labeled(t("import.url"), h("input", { type: "url", placeholder: "https://", spellcheck: "false" }), {
      hint: t("import.url.hint"),
    });
    const text = labeled(t("import.paste"), h("textarea.code", { rows: 6, spellcheck: "false" }));
    const submit = () => {
      const pasted = text.control.value.trim();
      const type = pasted.startsWith("{") ? "json" : "yaml";
      if (file.control.files.length) this.#check({ file: file.control.files[0] });
      else if (url.control.value) this.#check({ url: url.control.value });
      else if (pasted) this.#check({ file: new File([pasted], `pasted.${type}`) });
      else text.showProblem(t("import.empty"));
    };
    this.#show([file, url, text], primaryButton(t("import.continue"), submit));
  }

  /** Ask the server what the document changes, and show it. */
  async #check(source, notice = null) {
    this.#source = source;
    fill(this.content, spinner());
    try {
      const found = await importDocument(source, { ...this.#query, dryRun: "true" });
      const form = await requirementsForm(found);
      this.#showPreview(found, form, notice);
    } catch (error) {
      this.#showError(error);
    }
  }

  #showPreview(found, form, notice) {
    const { displayName, isNew, toolCount, difference, problems, warnings } = found;
    const view = isNew ? null : differenceView(difference);
    const slug = this.slug ? null : labeled(t("bundle.slug"), h("input", { value: found.slug, spellcheck: "false" }));
    slug?.control.addEventListener("change", () => {
      this.#query.name = slug.control.value;
      this.#check(this.#source);
    });
    const alert = h("p.problem.pre", { role: "alert" }, notice);
    const label = t(isNew ? "bundles.import" : "import.apply");
    const apply = primaryButton(label, () => this.#apply(found, view, form, alert));
    this.#show(
      [
        h("p", {}, t(isNew ? "import.new" : "import.existing", { name: displayName, n: toolCount })),
        slug,
        view,
        form,
        list(t("import.problems"), problems),
        list(t("import.warnings"), warnings),
        alert,
      ],
      apply,
    );
    apply.focus();
  }

  async #apply({ isNew, etag }, view, form, alert) {
    const query = { ...this.#query, ...(isNew ? {} : { update: "true", ...view.query }) };
    let stored;
    try {
      stored = await importDocument(this.#source, query, etag);
    } catch (error) {
      if (error.status === 412) return this.#check(this.#source, t("import.changed"));
      return fill(alert, error.message);
    }
    notify(t("import.done", { n: stored.toolCount, name: stored.slug }));
    navigate("bundles", stored.bundle.id);
    try {
      await form.save();
      this.dialog.close();
    } catch (error) {
      // The tools are stored; only the settings are not.
      this.#show([form, h("p.problem.pre", { role: "alert" }, error.message)], this.#retryButton(form));
    }
  }

  #retryButton(form) {
    return primaryButton(t("retry"), () =>
      form.save().then(
        () => this.dialog.close(),
        (error) => notify(error.message, "bad"),
      ),
    );
  }

  /** Show an error, with a field if the person can give what is missing. */
  #showError(error) {
    const { needs, suggestion } = error.details ?? {};
    const field = needs === "server" ? "server" : error.code === "slug_taken" && !this.slug ? "name" : null;
    const label = field && t(field === "server" ? "import.server" : "bundle.slug");
    const input = field && labeled(label, h("input", { value: suggestion ?? "", spellcheck: "false" }));
    const submit = () => {
      this.#query[field] = input.control.value;
      this.#check(this.#source);
    };
    const next = field
      ? primaryButton(t("import.continue"), submit)
      : button(t("import.back"), () => this.#askForSource());
    this.#show([h("p.problem.pre", { role: "alert" }, error.message), input], next);
    input?.control.focus();
  }
}

function list(title, items) {
  if (!items.length) return null;
  const shown = items.slice(0, MAX_PROBLEMS).map((item) => h("li", {}, item));
  return h("details", {}, h("summary", {}, `${title} (${items.length})`), h("ul.todo", {}, shown));
}
