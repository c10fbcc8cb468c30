"""Snippets: `$name key=value` becomes the Python code of a template, and no value ever becomes code.

Here are the command, its parameters, snippets that call snippets, and the description of one. Templates are rendered
by `template`, and values are put into the code by `values`. No code is run.
"""

import json
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from onetool.config.model import Snippet
from onetool.errors import ArgumentError, ToolError, ToolNotFound
from onetool.registry import nearest, shown
from onetool.render import render
from onetool.snippets.values import PLACEHOLDER, exactly, insert, restored, shortened

MAX_CHAIN = 10
EXAMPLE_VALUE = "Python"

_NAME = re.compile(r"\s*\$(\S{0,200})(?!\S)")
_STARTS_LINES = re.compile(r"""[ \t]*+\r?\n\s*+[^\s=:"']++[ \t]*+:""")
_LINE = re.compile(r"""([^\s=:"']++)[ \t]*+:(.*)""")
# The rules of `shlex`, which takes quadratic time for a long word.
_WORD = r"""(?:[^ \t\r\n\\'"]++|\\[\s\S]|'[^']*+'|"(?:[^"\\]++|\\[\s\S])*+")++"""
_TOKEN = re.compile(rf"[ \t\r\n]++|(?P<word>{_WORD})(?=[ \t\r\n]|\Z)|(?:{_WORD})?+(?P<unclosed>[\s\S])")
_PIECE = re.compile(r"""\\([\s\S])|'([^']*+)'|"((?:[^"\\]++|\\[\s\S])*+)\"""")


def is_snippet(command: str) -> bool:
    """No Python code starts with a dollar."""
    return command.lstrip().startswith("$")


def expand(command: str, snippets: Mapping[str, Snippet]) -> str:
    """The code that `$name key=value …`, or `$name` over lines of `key: value`, stands for."""
    name, values = _parse(command)
    return _expand(name, values, snippets, ())


def expand_call(name: str, values: Mapping[str, Any], snippets: Mapping[str, Snippet]) -> str:
    """The code of a snippet that code calls, with values of any kind."""
    return _expand(name.removeprefix("$"), values, snippets, ())


def signature(name: str, snippet: Snippet) -> str:
    words = [f"${name}"]
    for key, param in snippet.params.items():
        value = param.default
        text = json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, dict | list) else str(value)
        words += [f"{key}=…" if param.required else f"[{key}={shortened(shlex.quote(' '.join(text.split())))}]"]
    return " ".join(words)


def describe(name: str, snippet: Snippet, snippets: Mapping[str, Snippet] | None = None) -> str:
    """The definition as YAML, an example call, and what that becomes; `snippets` are those its body may call."""
    head = render({"name": name, "description": snippet.description}, "yml_h")
    body = render({"body": snippet.body}, "yml_h").removesuffix("\n")
    required = {key: EXAMPLE_VALUE for key, param in snippet.params.items() if param.required}
    call = " ".join([f"${name}", *(f"{key}={value}" for key, value in required.items())])
    try:
        code = expand_call(name, required, {**(snippets or {}), name: snippet})
    except ToolError as error:
        code = textwrap.indent(f"not with this value: {error}", "# ")
    return f"{head}\n{_describe_params(snippet)}\n{body}\n\n# Example with defaults:\n# {call}\n# Expands to:\n{code}"


def _expand(name: str, values: Mapping[str, Any], snippets: Mapping[str, Snippet], outer: tuple[str, ...]) -> str:
    chain = (*outer, name)
    if name in outer or len(chain) > MAX_CHAIN:
        reason = "go round in a circle" if name in outer else f"are nested more than {MAX_CHAIN} deep"
        raise ToolError(f"snippets {reason}: {' → '.join(f'${link}' for link in chain)}")
    if name not in snippets:
        word = shortened(name)
        near = [f"${match}" for match in nearest(word, dict(snippets))]
        known = shown([f"${known}" for known in snippets])
        raise ToolNotFound(f"there is no snippet ${word}.{_guess(near)} Snippets: {known}.", nearest=near)
    code, placed = _render(name, snippets[name].body, _bind(name, snippets[name], values))
    if not is_snippet(code):
        return code
    inner, given = _parse(code)
    passed = {str(restored(key, placed)): restored(value, placed) for key, value in given.items()}
    return _expand(inner, passed, snippets, chain)


def _render(name: str, body: str, variables: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The code of a body, or, if that is the call of another snippet, the call and what its placeholders stand for."""
    from onetool.snippets.template import Rendering

    rendering = Rendering()
    try:
        code = rendering.render(body, variables)
        return code if is_snippet(code) else insert(code, rendering.values), rendering.values
    except ArgumentError as error:
        raise ArgumentError(f"${name}: {error}") from None
    except ToolError as error:
        raise ToolError(f"the body of ${name} cannot be rendered: {error}") from None


def _guess(near: list[str]) -> str:
    return f" Did you mean {' or '.join(near)}?" if near else ""


# --- parameters -----------------------------------------------------------------------------------------------------


def _bind(name: str, snippet: Snippet, values: Mapping[str, Any]) -> dict[str, Any]:
    for key in values:
        if key not in snippet.params:
            word = shortened(key)
            raise _wrong(name, snippet, f"has no parameter {word!r}.{_guess(nearest(word, dict(snippet.params)))}")
    missing = [key for key, param in snippet.params.items() if param.required and key not in values]
    if missing:
        raise _wrong(name, snippet, f"needs {' and '.join(missing)}.")
    bound = {key: param.default for key, param in snippet.params.items()}
    for key, value in values.items():
        # A text beside a default that is something else is meant to be that too: `false` beside `default: true`.
        is_text = not isinstance(value, str) or bound[key] is None or isinstance(bound[key], str)
        bound[key] = value if is_text else exactly(value)
    return bound


def _wrong(name: str, snippet: Snippet, what: str) -> ArgumentError:
    return ArgumentError(f"${name} {what} Call it as: {signature(name, snippet)}", expected=signature(name, snippet))


def _describe_params(snippet: Snippet) -> str:
    lines = ["params:" if snippet.params else "params: {}"]
    for key, param in snippet.params.items():
        facts = [] if param.required else [f"default: {_quote(param.default)}"]
        facts += [f"description: {_quote(param.description)}"] if param.description else []
        lines += [f"  {render({key: None}, 'yml_h').removesuffix(' null')} {{{', '.join(facts)}}}"]
    return "\n".join(lines)


def _quote(value: Any) -> str:
    import yaml

    if not isinstance(value, str):
        return render(value, "yml")
    quoted: str = yaml.dump(value, default_style='"', allow_unicode=True, width=sys.maxsize)
    return quoted.removesuffix("\n")


# --- the command ----------------------------------------------------------------------------------------------------


def _parse(command: str) -> tuple[str, dict[str, str]]:
    head = _NAME.match(command)
    if not head or not head[1] or PLACEHOLDER.search(head[1]):
        raise ToolError("a snippet is called like this: $name key=value other='two words'")
    name, rest = head[1], command[head.end() :]
    pairs = _pairs_in_lines(name, rest) if _STARTS_LINES.match(rest) else _pairs_in_words(name, rest)
    values: dict[str, str] = {}
    for key, value in pairs:
        if key in values:
            raise ArgumentError(f"${name} is given {key!r} twice")
        values[key] = value
    return name, values


def _pairs_in_words(name: str, text: str) -> Iterator[tuple[str, str]]:
    for found in _TOKEN.finditer(text):
        if found["unclosed"]:
            rest = text[found.start("unclosed") :][:20]
            raise ArgumentError(f"${name}: the {rest[0]} in {rest!r} is never closed")
        if found["word"]:
            word = _PIECE.sub(_unquote, found["word"])
            key, equals, value = word.partition("=")
            if not equals:
                raise ArgumentError(f"${name} takes values by name; write key=value for {shortened(word)!r}")
            yield key, value


def _unquote(piece: re.Match[str]) -> str:
    escaped, single, double = piece.groups()
    if double is not None:
        return re.sub(r'\\(["\\])', r"\1", double)
    return escaped if escaped is not None else single


def _pairs_in_lines(name: str, text: str) -> Iterator[tuple[str, str]]:
    pairs: list[tuple[str, list[str]]] = []
    for line in textwrap.dedent(re.sub(r"\r\n?", "\n", text).strip("\n")).split("\n"):
        start = _LINE.match(line)
        if start:
            pairs.append((start[1], [start[2].strip()]))
        elif pairs and line[:1] in {"", " ", "\t"}:
            pairs[-1][1].append(line)
        elif line:
            raise ArgumentError(
                f"${name}: {shortened(line)!r} is no line like `key: value`; indent what goes on with a value"
            )
    return ((key, _joined(lines)) for key, lines in pairs)


def _joined(lines: list[str]) -> str:
    """The value of a key: the rest of its line, quoted or not, or the indented lines below it."""
    first, more = lines[0], textwrap.dedent("\n".join(lines[1:])).rstrip()
    if more:
        return more if first in {"", "|"} else f"{first}\n{more}"
    quoted = first[:1] in {"'", '"'} and re.fullmatch(_WORD, first)
    return _PIECE.sub(_unquote, first) if quoted else first
