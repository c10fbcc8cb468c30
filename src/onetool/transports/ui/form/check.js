/** What is wrong with a value, by its schema. The server checks all of it; patterns are left to it, which a page cannot
 * run safely. */
import { say } from "../core/say.js";
import { kindOf, resolved, variants, withoutNull } from "./schema.js";

const MAX_STEPS = 20_000; // a hostile schema branches in every step; the server looks at all of it
const FORMATS = {
  date: /^\d{4}-\d\d-\d\d$/,
  "date-time": /^\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)$/,
  time: /^\d\d:\d\d:\d\d/,
  email: /^[^\s@]+@[^\s@]+$/,
  uri: /^[A-Za-z][A-Za-z0-9+.-]*:\S*$/,
  uuid: /^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$/i,
};

/** `[{ path: ["a", 0], text }]`; nothing where all is well. */
export function problems(schema, value, root, budget = { left: MAX_STEPS }) {
  if ((budget.left -= 1) < 0) return [];
  const whole = resolved(schema, root);
  const { isNullable, rest } = withoutNull(whole, root);
  if (value === null && isNullable) return [];
  const kind = kindOf(rest);
  const text = (CHECKS[kind] ?? (() => null))(rest, value);
  if (text) return [{ path: [], text }];
  if (kind === "array") return ofItems(rest, value, root, budget);
  if (kind === "object") return ofProperties(rest, value, root, budget);
  if (kind === "variants") return ofVariants(rest, value, root, budget);
  return [];
}

export const fits = (schema, value, root) => problems(schema, value, root).length === 0;

const CHECKS = {
  constant: (schema, value) =>
    same(schema.const, value) ? null : say("check.const", { value: JSON.stringify(schema.const) }),
  choice: (schema, value) => (schema.enum.some((one) => same(one, value)) ? null : say("check.enum")),
  string: (schema, value) => (typeof value === "string" ? ofText(schema, value) : say("check.string")),
  number: (schema, value) => (typeof value === "number" ? ofNumber(schema, value) : say("check.number")),
  integer: (schema, value) => (Number.isInteger(value) ? ofNumber(schema, value) : say("check.integer")),
  boolean: (_, value) => (typeof value === "boolean" ? null : say("check.boolean")),
  null: (_, value) => (value === null ? null : say("check.null")),
  array: (schema, value) => (Array.isArray(value) ? ofLength(schema, value) : say("check.array")),
  object: (schema, value) => (isObject(value) ? null : say("check.object")),
};

function ofText(schema, value) {
  const length = [...value.slice(0, 1e6)].length;
  if (length < schema.minLength) return say("check.minLength", { n: schema.minLength });
  if (length > schema.maxLength) return say("check.maxLength", { n: schema.maxLength });
  const format = Object.hasOwn(FORMATS, schema.format ?? "") ? FORMATS[schema.format] : null;
  return format && !format.test(value.slice(0, 10_000)) ? say("check.format", { format: schema.format }) : null;
}

function ofNumber(schema, value) {
  const { minimum, maximum, exclusiveMinimum: above, exclusiveMaximum: below, multipleOf: step } = schema;
  if (value < minimum) return say("check.minimum", { limit: minimum });
  if (value > maximum) return say("check.maximum", { limit: maximum });
  if (typeof above === "number" && value <= above) return say("check.above", { limit: above });
  if (typeof below === "number" && value >= below) return say("check.below", { limit: below });
  const times = value / step;
  return step > 0 && Math.abs(times - Math.round(times)) > 1e-9 ? say("check.multiple", { limit: step }) : null;
}

function ofLength(schema, value) {
  if (value.length < schema.minItems) return say("check.minItems", { n: schema.minItems });
  if (value.length > schema.maxItems) return say("check.maxItems", { n: schema.maxItems });
  const isTwice = schema.uniqueItems && new Set(value.map((item) => JSON.stringify(item))).size < value.length;
  return isTwice ? say("check.unique") : null;
}

function ofItems(schema, value, root, budget) {
  return value.flatMap((item, place) => {
    const own = schema.prefixItems?.[place] ?? schema.items ?? true;
    return own === true ? [] : under(place, problems(own, item, root, budget));
  });
}

function ofProperties(schema, value, root, budget) {
  const known = schema.properties ?? {};
  const missing = (schema.required ?? []).filter((name) => !Object.hasOwn(value, name));
  const found = missing.map((name) => ({ path: [name], text: say("check.required") }));
  for (const [name, item] of Object.entries(value)) {
    if (Object.hasOwn(known, name)) found.push(...under(name, problems(known[name], item, root, budget)));
    else if (schema.additionalProperties === false && !schema.patternProperties)
      found.push({ path: [name], text: say("check.unknown", { name }) });
    else if (isObject(schema.additionalProperties))
      found.push(...under(name, problems(schema.additionalProperties, item, root, budget)));
  }
  return found;
}

function ofVariants(schema, value, root, budget) {
  const all = variants(schema, root).map((option) => problems(option, value, root, budget));
  return all.some((found) => !found.length) ? [] : (all.sort((one, other) => one.length - other.length)[0] ?? []);
}

const under = (step, found) => found.map(({ path, text }) => ({ path: [step, ...path], text }));
const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);
export const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
