/** The few facts of a bundle, in a dialog: for a new one, or for one that there is. */
import { h } from "../core/h.js";
import { labelled, modal, primary, quiet } from "../core/parts.js";
import { say } from "../core/say.js";
import { newId, putBundle } from "./store.js";

/** Resolves to the bundle as it is stored, or to nothing. */
export function editBundle(old) {
  return new Promise((resolve) => {
    const field = (word, control, given) => labelled(say(word), control, given);
    const fields = {
      displayName: field("bundle.displayName", h("input", { value: old?.displayName ?? "", maxlength: 256 }), {
        required: true,
      }),
      slug: field("bundle.slug", h("input", { value: old?.slug ?? "", spellcheck: "false", maxlength: 64 }), {
        required: true,
        hint: say("bundle.slug.hint"),
      }),
      description: field("bundle.description", h("textarea", { value: old?.description ?? "", rows: 3 })),
    };
    const store = async (event) => {
      event?.preventDefault();
      const body = Object.fromEntries(Object.entries(fields).map(([name, { control }]) => [name, control.value]));
      Object.values(fields).forEach((one) => one.complain());
      for (const name of ["displayName", "slug"])
        if (!body[name]) return (fields[name].complain(say("check.required")), fields[name].control.focus());
      try {
        const stored = await putBundle(old?.id ?? newId(), { ...body, isEnabled: old?.isEnabled ?? true });
        resolve(stored);
        dialog.close();
      } catch (error) {
        complain(fields, error);
      }
    };
    fields.displayName.control.addEventListener("input", () => {
      if (!old && !fields.slug.isTouched) fields.slug.control.value = slugOf(fields.displayName.control.value);
    });
    fields.slug.control.addEventListener("input", () => (fields.slug.isTouched = true));
    const dialog = modal(
      say(old ? "bundle.edit" : "bundles.new"),
      h("form.stack", { onsubmit: store }, Object.values(fields), h("button", { type: "submit", hidden: true })),
      [quiet(say("cancel"), () => dialog.close()), primary(say("save"), store)],
    );
    dialog.addEventListener("close", () => resolve(null));
  });
}

/** What the server says, beside the field it is about. */
export function complain(fields, error) {
  const found = (error.details?.problems ?? []).filter(({ field }) => fields[field]);
  const [first] = Object.keys(fields);
  const problems = found.length
    ? found
    : [{ field: error.code === "slug_taken" ? "slug" : first, problem: error.message }];
  for (const { field, problem } of problems) (fields[field] ?? fields[first]).complain(problem);
}

export const slugOf = (text) =>
  text
    .normalize("NFKC")
    .toLowerCase()
    .replace(/[^\p{L}\p{Nd}]+/gu, "-")
    .replace(/^-+|-+$/g, "")
    .slice(0, 64);
