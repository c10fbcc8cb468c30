/** Dialog to create or edit a bundle. */
import { fill, h } from "../core/h.js";
import { labeled, openModal, primaryButton, quietButton } from "../core/components.js";
import { t } from "../core/i18n.js";
import { getBundle, newId, putBundle } from "./bundle-api.js";
import { conflictNotice } from "./conflict.js";

/** Resolves to the stored bundle, or to null if the user cancels. */
export function editBundle(old) {
  return new Promise((resolve) => {
    const field = (key, control, options) => labeled(t(key), control, options);
    const fields = {
      displayName: field("bundle.displayName", h("input", { value: old?.displayName ?? "", maxlength: 256 }), {
        required: true,
      }),
      slug: field("bundle.slug", h("input", { value: old?.slug ?? "", spellcheck: "false", maxlength: 64 }), {
        required: true,
        hint: t("bundle.slug.hint"),
      }),
      description: field("bundle.description", h("textarea", { value: old?.description ?? "", rows: 3 })),
    };
    const store = async (event) => {
      event?.preventDefault();
      const body = Object.fromEntries(Object.entries(fields).map(([name, { control }]) => [name, control.value]));
      Object.values(fields).forEach((one) => one.showProblem());
      for (const name of ["displayName", "slug"])
        if (!body[name]) return (fields[name].showProblem(t("check.required")), fields[name].control.focus());
      try {
        const stored = await putBundle(old?.id ?? newId(), { ...body, isEnabled: old?.isEnabled ?? true }, etag);
        resolve(stored);
        dialog.close();
      } catch (error) {
        if (error.status === 412) await showConflict(body);
        else showProblems(fields, error);
      }
    };
    fields.displayName.control.addEventListener("input", () => {
      if (!old && !fields.slug.isTouched) fields.slug.control.value = toSlug(fields.displayName.control.value);
    });
    fields.slug.control.addEventListener("input", () => (fields.slug.isTouched = true));
    let etag = old?.etag;
    const conflict = h("div");
    /** Show what somebody else has saved. Saving again replaces it. */
    const showConflict = async (body) => {
      const theirs = await getBundle(old.id);
      etag = theirs.etag;
      const { displayName, slug, description } = theirs;
      fill(conflict, conflictNotice(t("conflict.bundle"), { displayName, slug, description }, body));
    };
    const dialog = openModal(
      t(old ? "bundle.edit" : "bundles.new"),
      h(
        "form.stack",
        { onsubmit: store },
        Object.values(fields),
        conflict,
        h("button", { type: "submit", hidden: true }),
      ),
      [quietButton(t("cancel"), () => dialog.close()), primaryButton(t("save"), store)],
    );
    dialog.addEventListener("close", () => resolve(null));
  });
}

/** Show the problems that the server reports beside their fields. */
export function showProblems(fields, error) {
  const found = (error.details?.problems ?? []).filter(({ field }) => fields[field]);
  const [first] = Object.keys(fields);
  const problems = found.length
    ? found
    : [{ field: error.code === "slug_taken" ? "slug" : first, problem: error.message }];
  for (const { field, problem } of problems) (fields[field] ?? fields[first]).showProblem(problem);
}

export const toSlug = (text) =>
  text
    .normalize("NFKC")
    .toLowerCase()
    .replace(/[^\p{L}\p{Nd}]+/gu, "-")
    .replace(/^-+|-+$/g, "")
    .slice(0, 64);
