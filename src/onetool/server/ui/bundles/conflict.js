/** Shows what somebody else has saved meanwhile, beside what the person has typed, which is kept. */
import { h } from "../core/h.js";
import { t } from "../core/i18n.js";
import { truncate } from "../core/text.js";
import { changeList } from "./difference-view.js";

const MAX_CHANGES = 50;
const MAX_CHARS = 300;

/** A notice about the version of somebody else, with its differences from the draft. */
export const conflictNotice = (title, theirs, draft) =>
  h("section.conflict", { role: "alert" }, h("p", {}, title), changeList(compareValues(theirs, draft)));

/** Return the differences of two values as `[{ name, before, after }]`, by path. */
function compareValues(before, after, path = "") {
  if (isObject(before) && isObject(after)) {
    const names = new Set([...Object.keys(before), ...Object.keys(after)]);
    const found = [...names].flatMap((name) =>
      compareValues(getOwn(before, name), getOwn(after, name), path ? `${path}.${name}` : name),
    );
    return found.slice(0, MAX_CHANGES);
  }
  const [one, other] = [render(before), render(after)];
  return one === other ? [] : [{ part: null, name: path, before: one, after: other }];
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const getOwn = (object, name) => (Object.hasOwn(object, name) ? object[name] : undefined);
const render = (value) =>
  value === undefined ? null : truncate(typeof value === "string" ? value : JSON.stringify(value), MAX_CHARS);

/** Notice of a conflict of versions. */
export const versionNotice = (theirs, draft) =>
  conflictNotice(t("conflict.version", { version: theirs.version }), pick(theirs, draft), draft);

/** Return the fields of the value that the draft has too. */
const pick = (value, draft) =>
  Object.fromEntries(Object.keys(draft).map((name) => [name, name in value ? value[name] : draft[name]]));
