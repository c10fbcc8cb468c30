/** Validates a value against a JSON Schema. The server validates everything again; patterns are checked only there,
 * because a browser cannot run them safely. */
import { t } from "../core/i18n.js";
import { getKind, resolve, variants, withoutNull } from "./schema.js";

const MAX_STEPS = 20_000; // a hostile schema can branch in every step
const FORMATS = {
  date: /^\d{4}-\d\d-\d\d$/,
  "date-time": /^\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)$/,
  time: /^\d\d:\d\d:\d\d/,
  email: /^[^\s@]+@[^\s@]+$/,
  uri: /^[A-Za-z][A-Za-z0-9+.-]*:\S*$/,
  uuid: /^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$/i,
};

/** Return the problems as `[{ path: ["a", 0], text }]`. */
export function findProblems(schema, value, root, budget = { left: MAX_STEPS }) {
  if ((budget.left -= 1) < 0) return [];
  const { isNullable, rest } = withoutNull(resolve(schema, root), root);
  if (value === null && isNullable) return [];
  const kind = getKind(rest);
  const text = (CHECKS[kind] ?? (() => null))(rest, value);
  if (text) return [{ path: [], text }];
  if (kind === "array") return checkItems(rest, value, root, budget);
  if (kind === "object") return checkProperties(rest, value, root, budget);
  if (kind === "variants") return checkVariants(rest, value, root, budget);
  return [];
}

export const isValid = (schema, value, root) => findProblems(schema, value, root).length === 0;

const CHECKS = {
  constant: (schema, value) =>
    isEqual(schema.const, value) ? null : t("check.const", { value: JSON.stringify(schema.const) }),
  choice: (schema, value) => (schema.enum.some((one) => isEqual(one, value)) ? null : t("check.enum")),
  string: (schema, value) => (typeof value === "string" ? checkText(schema, value) : t("check.string")),
  number: (schema, value) => (typeof value === "number" ? checkNumber(schema, value) : t("check.number")),
  integer: (schema, value) => (Number.isInteger(value) ? checkNumber(schema, value) : t("check.integer")),
  boolean: (_, value) => (typeof value === "boolean" ? null : t("check.boolean")),
  null: (_, value) => (value === null ? null : t("check.null")),
  array: (schema, value) => (Array.isArray(value) ? checkLength(schema, value) : t("check.array")),
  object: (schema, value) => (isObject(value) ? null : t("check.object")),
};

function checkText(schema, value) {
  const length = [...value.slice(0, 1e6)].length;
  if (length < schema.minLength) return t("check.minLength", { n: schema.minLength });
  if (length > schema.maxLength) return t("check.maxLength", { n: schema.maxLength });
  const format = Object.hasOwn(FORMATS, schema.format ?? "") ? FORMATS[schema.format] : null;
  return format && !format.test(value.slice(0, 10_000)) ? t("check.format", { format: schema.format }) : null;
}

function checkNumber(schema, value) {
  const { minimum, maximum, exclusiveMinimum: above, exclusiveMaximum: below, multipleOf: step } = schema;
  if (value < minimum) return t("check.minimum", { limit: minimum });
  if (value > maximum) return t("check.maximum", { limit: maximum });
  if (typeof above === "number" && value <= above) return t("check.above", { limit: above });
  if (typeof below === "number" && value >= below) return t("check.below", { limit: below });
  const quotient = value / step;
  return step > 0 && Math.abs(quotient - Math.round(quotient)) > 1e-9 ? t("check.multiple", { limit: step }) : null;
}

function checkLength(schema, value) {
  if (value.length < schema.minItems) return t("check.minItems", { n: schema.minItems });
  if (value.length > schema.maxItems) return t("check.maxItems", { n: schema.maxItems });
  const hasDuplicates = schema.uniqueItems && new Set(value.map((item) => JSON.stringify(item))).size < value.length;
  return hasDuplicates ? t("check.unique") : null;
}

function checkItems(schema, value, root, budget) {
  return value.flatMap((item, index) => {
    const itemSchema = schema.prefixItems?.[index] ?? schema.items ?? true;
    return itemSchema === true ? [] : prefixPath(index, findProblems(itemSchema, item, root, budget));
  });
}

function checkProperties(schema, value, root, budget) {
  const known = schema.properties ?? {};
  const missing = (schema.required ?? []).filter((name) => !Object.hasOwn(value, name));
  const found = missing.map((name) => ({ path: [name], text: t("check.required") }));
  for (const [name, item] of Object.entries(value)) {
    if (Object.hasOwn(known, name)) found.push(...prefixPath(name, findProblems(known[name], item, root, budget)));
    else if (schema.additionalProperties === false && !schema.patternProperties)
      found.push({ path: [name], text: t("check.unknown", { name }) });
    else if (isObject(schema.additionalProperties))
      found.push(...prefixPath(name, findProblems(schema.additionalProperties, item, root, budget)));
  }
  return found;
}

function checkVariants(schema, value, root, budget) {
  const all = variants(schema, root).map((option) => findProblems(option, value, root, budget));
  return all.some((found) => !found.length) ? [] : (all.sort((one, other) => one.length - other.length)[0] ?? []);
}

const prefixPath = (step, found) => found.map(({ path, text }) => ({ path: [step, ...path], text }));
const isEqual = (one, other) => JSON.stringify(one) === JSON.stringify(other);
export const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
