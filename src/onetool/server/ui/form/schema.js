/** Simplifies JSON Schemas: resolves references, merges `allOf` and determines the kind of value. */

const MAX_STEPS = 500; // a schema can refer to itself
const OBJECT_KEYWORDS = ["properties", "required", "additionalProperties", "minProperties", "maxProperties"];
const ARRAY_KEYWORDS = ["items", "prefixItems", "minItems", "maxItems", "uniqueItems"];

/** Return the schema with `$ref` and `allOf` resolved. */
export function resolve(schema, root, budget = { left: MAX_STEPS }) {
  if (schema === false) return { not: {} };
  if (schema === null || typeof schema !== "object" || (budget.left -= 1) < 0) return {};
  let merged = schema;
  if (typeof schema.$ref === "string") {
    const { $ref, ...own } = schema;
    merged = { ...resolve(dereference(root, $ref), root, budget), ...own };
  }
  if (!Array.isArray(merged.allOf)) return merged;
  const { allOf, ...own } = merged;
  return allOf.map((part) => resolve(part, root, budget)).reduce(merge, own);
}

function dereference(root, reference) {
  if (!reference.startsWith("#")) return {};
  const steps = reference.slice(1).split("/").filter(Boolean);
  return (
    steps.reduce(
      (target, step) => target?.[decodeURIComponent(step).replaceAll("~1", "/").replaceAll("~0", "~")],
      root,
    ) ?? {}
  );
}

function merge(base, part) {
  return {
    ...part,
    ...base,
    ...(base.properties || part.properties ? { properties: { ...part.properties, ...base.properties } } : {}),
    ...(base.required || part.required
      ? { required: [...new Set([...(base.required ?? []), ...(part.required ?? [])])] }
      : {}),
  };
}

/** Return whether the value may be null, and the schema for other values. */
export function withoutNull(schema, root) {
  if (Array.isArray(schema.type) && schema.type.includes("null") && schema.type.length > 1) {
    const rest = schema.type.filter((type) => type !== "null");
    return { isNullable: true, rest: { ...schema, type: rest.length === 1 ? rest[0] : rest } };
  }
  for (const key of ["anyOf", "oneOf"]) {
    const options = schema[key];
    if (!Array.isArray(options)) continue;
    const others = options.filter((option) => resolve(option, root).type !== "null");
    if (others.length === options.length || !others.length) continue;
    const { [key]: _, ...own } = schema;
    return {
      isNullable: true,
      rest: others.length === 1 ? { ...resolve(others[0], root), ...own } : { ...own, [key]: others },
    };
  }
  return { isNullable: false, rest: schema };
}

export function getKind(schema) {
  if ("const" in schema) return "constant";
  if (Array.isArray(schema.enum)) return "choice";
  if (Array.isArray(schema.anyOf) || Array.isArray(schema.oneOf)) return "variants";
  if (Array.isArray(schema.type)) return schema.type.length === 1 ? schema.type[0] : "variants";
  if (typeof schema.type === "string") return schema.type;
  if (OBJECT_KEYWORDS.some((key) => key in schema)) return "object";
  if (ARRAY_KEYWORDS.some((key) => key in schema)) return "array";
  return "any";
}

/** Return the alternative schemas. */
export function variants(schema, root) {
  const { anyOf, oneOf, type, ...own } = schema;
  const options = anyOf ?? oneOf ?? type.map((one) => ({ type: one }));
  return options.map((option) => ({ ...own, ...resolve(option, root) }));
}
