/** Finds the schema of the argument, or of the part of an argument, at the caret. */
import { getKind, resolve, withoutNull } from "../form/schema.js";

const MAX_VALUES = 50;
const MAX_NAME_CHARS = 200;

/** Return the arguments in the order of the signature: `[{ name, schema, isRequired }]`. */
export function listArguments(tool) {
  const root = tool.inputSchema;
  const members = listMembers(resolve(root, root));
  return [...members.filter(({ isRequired }) => isRequired), ...members.filter(({ isRequired }) => !isRequired)];
}

/** Return the argument that the caret is in, or undefined. */
export function findArgument(tool, { name, position, names }) {
  const all = listArguments(tool);
  if (name) return all.find((one) => one.name === name);
  return names.length ? undefined : all[position];
}

/** Return the schema at the caret, with nested objects and lists followed, or null. */
export function findSchema(tool, { argument, inside }) {
  let schema = findArgument(tool, argument)?.schema;
  for (const { open, key, isValue } of inside) {
    const current = simplify(schema, tool.inputSchema);
    if (open === "[") schema = current.items;
    else if (open === "{" && isValue) schema = getOwn(current.properties, key);
    else if (open === "(") return null;
    else schema = current;
    if (schema === undefined) return null;
  }
  return simplify(schema, tool.inputSchema);
}

/** Return the members of an object schema: `[{ name, schema, isRequired }]`. */
export function listMembers(schema) {
  const required = new Set(Array.isArray(schema.required) ? schema.required : []);
  const properties = schema.properties && typeof schema.properties === "object" ? schema.properties : {};
  return Object.entries(properties).map(([name, member]) => ({
    name: name.slice(0, MAX_NAME_CHARS),
    schema: member,
    isRequired: required.has(name),
  }));
}

/** Return the values that a schema allows, as Python literals; an empty list if there are too many to list. */
export function listValues(schema) {
  const values = "const" in schema ? [schema.const] : Array.isArray(schema.enum) ? schema.enum : null;
  if (values) return values.slice(0, MAX_VALUES).filter(isScalar);
  return schema.type === "boolean" ? [true, false] : [];
}

export const toPython = (value) =>
  value === null ? "None" : value === true ? "True" : value === false ? "False" : JSON.stringify(value);

/** Return the type of a schema in a few characters. */
export function describeType(schema, root) {
  const simple = simplify(schema, root);
  const kind = getKind(simple);
  if (kind === "choice" || kind === "constant") return listValues(simple).slice(0, 4).map(toPython).join(" | ");
  return PYTHON_TYPES[kind] ?? "Any";
}

const PYTHON_TYPES = { string: "str", integer: "int", number: "float", boolean: "bool", array: "list", object: "dict" };

export const simplify = (schema, root) => withoutNull(resolve(schema ?? {}, root), root).rest;
const isScalar = (value) => value === null || typeof value !== "object";
const getOwn = (object, key) => (object && key !== null && Object.hasOwn(object, key) ? object[key] : undefined);
