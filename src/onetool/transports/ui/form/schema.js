/** A JSON Schema made simple: references followed, parts put together, and one word for what it describes. */

const MAX_STEPS = 500; // a schema may refer to itself, twice in every step
const OF_PROPERTIES = ["properties", "required", "additionalProperties", "minProperties", "maxProperties"];
const OF_ITEMS = ["items", "prefixItems", "minItems", "maxItems", "uniqueItems"];

/** The schema with its `$ref` and `allOf` worked in. */
export function resolved(schema, root, budget = { left: MAX_STEPS }) {
  if (schema === false) return { not: {} };
  if (schema === null || typeof schema !== "object" || (budget.left -= 1) < 0) return {};
  let whole = schema;
  if (typeof schema.$ref === "string") {
    const { $ref, ...own } = schema;
    whole = { ...resolved(pointed(root, $ref), root, budget), ...own };
  }
  if (!Array.isArray(whole.allOf)) return whole;
  const { allOf, ...own } = whole;
  return allOf.map((part) => resolved(part, root, budget)).reduce(joined, own);
}

function pointed(root, reference) {
  if (!reference.startsWith("#")) return {};
  const steps = reference.slice(1).split("/").filter(Boolean);
  return (
    steps.reduce((at, step) => at?.[decodeURIComponent(step).replaceAll("~1", "/").replaceAll("~0", "~")], root) ?? {}
  );
}

function joined(whole, part) {
  return {
    ...part,
    ...whole,
    ...(whole.properties || part.properties ? { properties: { ...part.properties, ...whole.properties } } : {}),
    ...(whole.required || part.required
      ? { required: [...new Set([...(whole.required ?? []), ...(part.required ?? [])])] }
      : {}),
  };
}

/** Whether it may be null, and what else it may be. */
export function withoutNull(schema, root) {
  if (Array.isArray(schema.type) && schema.type.includes("null") && schema.type.length > 1) {
    const rest = schema.type.filter((type) => type !== "null");
    return { isNullable: true, rest: { ...schema, type: rest.length === 1 ? rest[0] : rest } };
  }
  for (const key of ["anyOf", "oneOf"]) {
    const options = schema[key];
    if (!Array.isArray(options)) continue;
    const others = options.filter((option) => resolved(option, root).type !== "null");
    if (others.length === options.length || !others.length) continue;
    const { [key]: _, ...own } = schema;
    return {
      isNullable: true,
      rest: others.length === 1 ? { ...resolved(others[0], root), ...own } : { ...own, [key]: others },
    };
  }
  return { isNullable: false, rest: schema };
}

export function kindOf(schema) {
  if ("const" in schema) return "constant";
  if (Array.isArray(schema.enum)) return "choice";
  if (Array.isArray(schema.anyOf) || Array.isArray(schema.oneOf)) return "variants";
  if (Array.isArray(schema.type)) return schema.type.length === 1 ? schema.type[0] : "variants";
  if (typeof schema.type === "string") return schema.type;
  if (OF_PROPERTIES.some((key) => key in schema)) return "object";
  if (OF_ITEMS.some((key) => key in schema)) return "array";
  return "any";
}

/** The schemas that a value may have one of. */
export function variants(schema, root) {
  const { anyOf, oneOf, type, ...own } = schema;
  const options = anyOf ?? oneOf ?? type.map((one) => ({ type: one }));
  return options.map((option) => ({ ...own, ...resolved(option, root) }));
}
