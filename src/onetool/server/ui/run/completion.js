/** Completions at the caret: packs, tools, arguments, allowed values and keys of nested objects. */
import { truncate } from "../core/text.js";
import { describeType, findSchema, listArguments, listMembers, listValues, toPython } from "./argument-schema.js";
import { findCall, readContext } from "./code-context.js";
import { findNames, findTool } from "./tool-lookup.js";

const MAX_OPTIONS = 60;
const MAX_NOTE_CHARS = 160;
const MEMBER = /(?<![.\p{L}\p{N}_)\]])([\p{L}_][\p{L}\p{N}_]*)\.([\p{L}\p{N}_]*)$/u;
const NAME = /(?<![.\p{L}\p{N}_])[\p{L}_][\p{L}\p{N}_]*$/u;

/** Return `{ prefix, options: [{ text, about }] }` for the code before the caret, or null.
 *
 * Without `isExplicit`, nothing is offered before the first letter, except after a dot, a quote or `=`. */
export async function findCompletions(before, isExplicit = false) {
  const context = readContext(before);
  if (context.isComment) return null;
  const call = findCall(context);
  if (context.string !== null) return call ? completeString(call, context.string) : null;
  const member = MEMBER.exec(before);
  if (member) return select(member[2], (await findNames(`${member[1]}.${member[2]}`)).map(nameOption));
  const prefix = NAME.exec(before)?.[0] ?? "";
  if (/[.\p{L}\p{N}_]$/u.test(before) && !prefix) return null; // a number, or a member of a value
  const inCall = call ? await completeArgument(call, prefix, isExplicit || /=\s*$/.test(before)) : [];
  if (!prefix && !inCall.length && !(isExplicit && !call)) return null;
  const isName = prefix || (isExplicit && !call);
  return select(prefix, [...inCall, ...(isName ? (await findNames(prefix)).map(nameOption) : [])]);
}

const nameOption = ({ text, signature, description }) => ({ text, about: signature || description || "" });

/** Return the keywords of the call, or the values of its argument. */
async function completeArgument({ name, argument, inside }, prefix, isWanted) {
  const tool = prefix || isWanted ? await findTool(name) : null;
  if (!tool) return [];
  if (inside.length || argument.isValue) return listLiterals(tool, { argument, inside });
  return listArguments(tool)
    .filter((one) => !argument.names.includes(one.name) && NAME.exec(one.name)?.index === 0)
    .map((one) => ({ text: `${one.name}=`, about: describeMember(one, tool) }));
}

function listLiterals(tool, call) {
  if (call.inside.at(-1)?.open === "{" && !call.inside.at(-1).isValue) return [];
  const schema = findSchema(tool, call);
  return schema ? listValues(schema).map((value) => ({ text: toPython(value), about: "" })) : [];
}

/** Complete the key of a dict, or one of the strings that the schema allows. */
async function completeString({ name, argument, inside }, text) {
  const tool = await findTool(name);
  const schema = tool && findSchema(tool, { argument, inside });
  if (!schema) return null;
  const dict = inside.at(-1);
  if (dict?.open === "{" && !dict.isValue)
    return select(
      text,
      listMembers(schema).map((one) => ({ text: escapeQuotes(one.name), about: describeMember(one, tool) })),
    );
  const values = listValues(schema).filter((value) => typeof value === "string");
  return select(
    text,
    values.map((value) => ({ text: escapeQuotes(value), about: "" })),
  );
}

const escapeQuotes = (text) => JSON.stringify(text).slice(1, -1).replaceAll("'", "\\'");

function describeMember({ schema, isRequired }, tool) {
  const type = describeType(schema, tool.inputSchema);
  const about = typeof schema?.description === "string" ? ` · ${schema.description}` : "";
  return `${type}${isRequired ? " *" : ""}${about}`;
}

function select(prefix, options) {
  const start = prefix.toLowerCase();
  const selected = options
    .filter(({ text }) => text.toLowerCase().startsWith(start) && text !== prefix)
    .slice(0, MAX_OPTIONS)
    .map(({ text, about }) => ({ text, about: truncate(about, MAX_NOTE_CHARS) }));
  return selected.length ? { prefix, options: selected } : null;
}
