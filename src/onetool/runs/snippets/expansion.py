"""Expansion of `$name key=value` to the Python code of a template. Values never become code.

This module parses commands, binds parameters, expands nested snippets and describes snippets.
`template` renders templates and `values` inserts values into code. No code is run.
"""

import json
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from onetool.core.names import join_names, nearest
from onetool.errors import ArgumentError, ToolError, ToolNotFound
from onetool.runs.snippets.values import (
    PLACEHOLDER,
    DeclaredText,
    insert,
    parse_exactly,
    restore,
    truncate,
)
from onetool.settings.model import Param, Snippet
from onetool.util.render import render
from onetool.util.text import did_you_mean
from onetool_child.json_types import JsonMapping, JsonObject

Snippets = Mapping[str, Snippet]
MAX_CHAIN = 10
EXAMPLE_VALUE = "Python"
EXAMPLES = {
    "integer": "1",
    "number": "1.5",
    "boolean": "true",
    "array": "[]",
    "object": "{}",
}  # by type

_NAME = re.compile(r"\s*\$(\S{0,200})(?!\S)")
_STARTS_LINES = re.compile(r"""[ \t]*+\r?\n\s*+[^\s=:"']++[ \t]*+:""")
_LINE = re.compile(r"""([^\s=:"']++)[ \t]*+:(.*)""")
# The rules of `shlex`, which takes quadratic time for a long word.
_WORD = r"""(?:[^ \t\r\n\\'"]++|\\[\s\S]|'[^']*+'|"(?:[^"\\]++|\\[\s\S])*+")++"""
_TOKEN = re.compile(
    rf"[ \t\r\n]++|(?P<word>{_WORD})(?=[ \t\r\n]|\Z)|(?:{_WORD})?+(?P<unclosed>[\s\S])"
)
_PIECE = re.compile(r"""\\([\s\S])|'([^']*+)'|"((?:[^"\\]++|\\[\s\S])*+)\"""")


def is_snippet(command: str) -> bool:
    """Return whether the command calls a snippet; no Python code starts with a dollar sign."""
    return command.lstrip().startswith("$")


def expand(command: str, snippets: Snippets) -> str:
    """Return the code for `$name key=value …`, or for `$name` followed by lines of `key: value`."""
    name, values = _parse(command)
    return _expand(name, values, snippets, ())


def expand_call(name: str, values: JsonMapping, snippets: Snippets) -> str:
    """Return the code of a snippet that code calls, with values of any type."""
    return _expand(name.removeprefix("$"), values, snippets, ())


def render_signature(name: str, snippet: Snippet) -> str:
    parts = [f"${name}"]
    for key, param in snippet.params.items():
        value = param.default
        text = (
            json.dumps(value, ensure_ascii=False, default=str)
            if isinstance(value, dict | list)
            else str(value)
        )
        parts += [
            (
                f"{key}={param.type or '…'}"
                if param.required
                else f"[{key}={truncate(shlex.quote(' '.join(text.split())))}]"
            )
        ]
    return " ".join(parts)


def make_example(snippet: Snippet) -> dict[str, str]:
    """Return example values of the required parameters."""
    params = snippet.params.items()
    return {
        key: EXAMPLES.get(param.type or "", EXAMPLE_VALUE)
        for key, param in params
        if param.required
    }


def describe(name: str, snippet: Snippet, snippets: Snippets | None = None) -> str:
    """Return the definition as YAML, an example call and its expansion."""
    head = render({"name": name, "description": snippet.description}, "yml_h")
    body = render({"body": snippet.body}, "yml_h").removesuffix("\n")
    required = make_example(snippet)
    call = " ".join([f"${name}", *(f"{key}={value}" for key, value in required.items())])
    try:
        code = expand_call(name, required, {**(snippets or {}), name: snippet})
    except ToolError as error:
        code = textwrap.indent(f"cannot expand with this value: {error}", "# ")
    return (
        f"{head}\n{_describe_params(snippet)}\n{body}\n\n# Example with defaults:\n# {call}\n#"
        f" Expands to:\n{code}"
    )


def _expand(name: str, values: JsonMapping, snippets: Snippets, outer: tuple[str, ...]) -> str:
    chain = (*outer, name)
    if name in outer or len(chain) > MAX_CHAIN:
        reason = (
            "are circular" if name in outer else f"are nested more than {MAX_CHAIN} levels deep"
        )
        raise ToolError(f"snippets {reason}: {' → '.join(f'${link}' for link in chain)}")
    if name not in snippets:
        word = truncate(name)
        near = [f"${match}" for match in nearest(word, dict(snippets))]
        all_names = join_names([f"${all_names}" for all_names in snippets])
        raise ToolNotFound(
            f"unknown snippet ${word}.{did_you_mean(near)} Snippets: {all_names}.", nearest=near
        )
    code, inserted = _render(name, snippets[name].body, _bind(name, snippets[name], values))
    if not is_snippet(code):
        return code
    inner, arguments = _parse(code)
    values = {
        str(restore(key, inserted)): restore(value, inserted) for key, value in arguments.items()
    }
    return _expand(inner, values, snippets, chain)


def _render(name: str, body: str, variables: JsonMapping) -> tuple[str, JsonMapping]:
    """Return the code of a body and the values of its placeholders, which a nested call needs."""
    from onetool.runs.snippets.template import Rendering

    rendering = Rendering()
    try:
        code = rendering.render(body, variables)
        return code if is_snippet(code) else insert(code, rendering.values), rendering.values
    except ArgumentError as error:
        raise ArgumentError(f"${name}: {error}") from None
    except ToolError as error:
        raise ToolError(f"cannot render the body of ${name}: {error}") from None


# --- parameters -----------------------------------------------------------------------------------


def _bind(name: str, snippet: Snippet, values: JsonMapping) -> JsonObject:
    for key in values:
        if key not in snippet.params:
            word = truncate(key)
            raise _call_error(
                name,
                snippet,
                f"has no parameter {word!r}.{did_you_mean(nearest(word, dict(snippet.params)))}",
            )
    missing = [key for key, param in snippet.params.items() if param.required and key not in values]
    if missing:
        raise _call_error(name, snippet, f"requires {' and '.join(missing)}.")
    bound = {key: param.default for key, param in snippet.params.items()}
    for key, value in values.items():
        param = snippet.params[key]
        bound[key] = parse_exactly(value) if isinstance(value, str) and _is_data(param) else value
        if not param.accepts(bound[key]):
            raise _call_error(
                name, snippet, f"requires {key} of type {param.type}, not {truncate(repr(value))}."
            )
    texts = (
        key
        for key, value in bound.items()
        if isinstance(value, str) and snippet.params[key].type == "string"
    )
    return {**bound, **{key: DeclaredText(bound[key]) for key in texts}}


def _is_data(param: Param) -> bool:
    """Return whether a string is read as data: `false` for `type: boolean` or `default: true`."""
    if param.type is not None:
        return param.type != "string"
    return param.default is not None and not isinstance(param.default, str)


def _call_error(name: str, snippet: Snippet, problem: str) -> ArgumentError:
    return ArgumentError(
        f"${name} {problem} Call it as: {render_signature(name, snippet)}",
        expected=render_signature(name, snippet),
    )


def _describe_params(snippet: Snippet) -> str:
    lines = ["params:" if snippet.params else "params: {}"]
    for key, param in snippet.params.items():
        fields = [f"type: {param.type}"] if param.type else []
        fields += [] if param.required else [f"default: {_quote(param.default)}"]
        fields += [f"description: {_quote(param.description)}"] if param.description else []
        lines += [f"  {render({key: None}, 'yml_h').removesuffix(' null')} {{{', '.join(fields)}}}"]
    return "\n".join(lines)


def _quote(value: Any) -> str:
    import yaml

    if not isinstance(value, str):
        return render(value, "yml")
    quoted: str = yaml.dump(value, default_style='"', allow_unicode=True, width=sys.maxsize)
    return quoted.removesuffix("\n")


# --- the command ----------------------------------------------------------------------------------


def _parse(command: str) -> tuple[str, dict[str, str]]:
    head = _NAME.match(command)
    if not head or not head[1] or PLACEHOLDER.search(head[1]):
        raise ToolError("invalid snippet call: expected $name key=value other='two words'")
    name = head[1]
    rest = command[head.end() :]
    pairs = _parse_lines(name, rest) if _STARTS_LINES.match(rest) else _parse_words(name, rest)
    values: dict[str, str] = {}
    for key, value in pairs:
        if key in values:
            raise ArgumentError(f"${name} got {key!r} twice")
        values[key] = value
    return name, values


def _parse_words(name: str, text: str) -> Iterator[tuple[str, str]]:
    for token in _TOKEN.finditer(text):
        if token["unclosed"]:
            rest = text[token.start("unclosed") :][:20]
            raise ArgumentError(f"${name}: unclosed {rest[0]} in {rest!r}")
        if token["word"]:
            word = _PIECE.sub(_unquote, token["word"])
            key, equals, value = word.partition("=")
            if not equals:
                raise ArgumentError(
                    f"${name} accepts only named values: write key=value for {truncate(word)!r}"
                )
            yield key, value


def _unquote(piece: re.Match[str]) -> str:
    escaped, single, double = piece.groups()
    if double is not None:
        return re.sub(r'\\(["\\])', r"\1", double)
    return escaped if escaped is not None else single


def _parse_lines(name: str, text: str) -> Iterator[tuple[str, str]]:
    pairs: list[tuple[str, list[str]]] = []
    for line in textwrap.dedent(re.sub(r"\r\n?", "\n", text).strip("\n")).split("\n"):
        start = _LINE.match(line)
        if start:
            pairs.append((start[1], [start[2].strip()]))
        elif pairs and line[:1] in {"", " ", "\t"}:
            pairs[-1][1].append(line)
        elif line:
            raise ArgumentError(
                f"${name}: invalid line {truncate(line)!r}: expected `key: value`; indent"
                " continuation lines"
            )
    return ((key, _join_lines(lines)) for key, lines in pairs)


def _join_lines(lines: list[str]) -> str:
    """Return a key's value: the rest of its line, or the indented lines below it."""
    first = lines[0]
    more = textwrap.dedent("\n".join(lines[1:])).rstrip()
    if more:
        return more if first in {"", "|"} else f"{first}\n{more}"
    quoted = first[:1] in {"'", '"'} and re.fullmatch(_WORD, first)
    return _PIECE.sub(_unquote, first) if quoted else first
