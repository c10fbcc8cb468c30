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

from ot.config.model import Param, Snippet
from ot.errors import ArgumentError, ToolError, ToolNotFound
from ot.registry import nearest, shown
from ot.render import render
from ot.snippets import values as literals
from ot.snippets.values import restored, shortened

MAX_CHAIN = 10
EXAMPLE_VALUE = "Python"

_NAME = re.compile(r"\s*\$(\S{0,200})(?!\S)")
_STARTS_LINES = re.compile(r"""[ \t]*+\r?\n\s*+[^\s=:"']++[ \t]*+:""")
_LINE = re.compile(r"""([^\s=:"']++)[ \t]*+:(.*)""")
# The rules of `shlex`, which takes quadratic time for a long word.
_WORD = re.compile(r"""(?:[^ \t\r\n\\'"]++|\\[\s\S]|'[^']*+'|"(?:[^"\\]++|\\[\s\S])*+")++""")
_PIECE = re.compile(r"""\\([\s\S])|'([^']*+)'|"((?:[^"\\]++|\\[\s\S])*+)\"""")
_SPACE = re.compile(r"[ \t\r\n]*+")


def is_snippet(command: str) -> bool:
    """No Python code starts with a dollar."""
    return command.lstrip().startswith("$")


def expand(command: str, snippets: Mapping[str, Snippet]) -> str:
    """The code that `$name key=value …`, or `$name` over lines of `key: value`, stands for."""
    name, values = _parsed(command)
    return _expanded(name, values, snippets, ())


def expand_call(name: str, values: Mapping[str, Any], snippets: Mapping[str, Snippet]) -> str:
    """The code of a snippet that code calls, with values of any kind."""
    return _expanded(name.removeprefix("$"), values, snippets, ())


def signature(name: str, snippet: Snippet) -> str:
    return " ".join([f"${name}", *(_as_called(key, param) for key, param in snippet.params.items())])


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
    return f"{head}\n{_params(snippet)}\n{body}\n\n# Example with defaults:\n# {call}\n# Expands to:\n{code}"


def _expanded(name: str, values: Mapping[str, Any], snippets: Mapping[str, Snippet], outer: tuple[str, ...]) -> str:
    chain = (*outer, name)
    if name in outer or len(chain) > MAX_CHAIN:
        reason = "go round in a circle" if name in outer else f"are nested more than {MAX_CHAIN} deep"
        raise ToolError(f"snippets {reason}: {' → '.join(f'${link}' for link in chain)}")
    snippet = _found(name, snippets)
    code, placed = _rendered(name, snippet.body, _bound(name, snippet, values))
    if not is_snippet(code):
        return _inserted(name, code, placed)
    inner, given = _parsed(code)
    passed = {str(restored(key, placed)): restored(value, placed) for key, value in given.items()}
    return _expanded(inner, passed, snippets, chain)


def _rendered(name: str, body: str, variables: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    from ot.snippets.template import Rendering

    rendering = Rendering()
    try:
        return rendering.render(body, variables), rendering.values
    except ToolError as error:
        raise ToolError(f"the body of ${name} cannot be rendered: {error}") from None


def _inserted(name: str, code: str, values: Mapping[str, Any]) -> str:
    try:
        return literals.insert(code, values)
    except ArgumentError as error:
        raise ArgumentError(f"${name}: {error}") from None


def _found(name: str, snippets: Mapping[str, Snippet]) -> Snippet:
    if name in snippets:
        return snippets[name]
    word = shortened(name)
    near = [f"${match}" for match in nearest(word, dict(snippets))]
    known = shown([f"${known}" for known in snippets])
    raise ToolNotFound(f"there is no snippet ${word}.{_guess(near)} Snippets: {known}.", nearest=near)


def _guess(near: list[str]) -> str:
    return f" Did you mean {' or '.join(near)}?" if near else ""


# --- parameters -----------------------------------------------------------------------------------------------------


def _bound(name: str, snippet: Snippet, values: Mapping[str, Any]) -> dict[str, Any]:
    for key in values:
        if key not in snippet.params:
            word = shortened(key)
            raise _wrong(name, snippet, f"has no parameter {word!r}.{_guess(nearest(word, dict(snippet.params)))}")
    missing = [key for key, param in snippet.params.items() if param.required and key not in values]
    if missing:
        raise _wrong(name, snippet, f"needs {' and '.join(missing)}.")
    given = {key: _typed(value, snippet.params[key].default) for key, value in values.items()}
    return {key: param.default for key, param in snippet.params.items()} | given


def _wrong(name: str, snippet: Snippet, what: str) -> ArgumentError:
    return ArgumentError(f"${name} {what} Call it as: {signature(name, snippet)}", expected=signature(name, snippet))


def _typed(value: Any, default: Any) -> Any:
    """A text where the default shows that something else is meant: `false` is a switch beside `default: true`."""
    if default is None or isinstance(default, str) or not isinstance(value, str):
        return value
    return literals.exactly(value)


def _as_called(key: str, param: Param) -> str:
    if param.required:
        return f"{key}=…"
    return f"[{key}={shortened(_one_line(param.default))}]"


def _one_line(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, dict | list) else str(value)
    return shlex.quote(" ".join(text.split()))


def _params(snippet: Snippet) -> str:
    if not snippet.params:
        return "params: {}"
    lines = (f"  {_key(key)} {{{', '.join(_facts(param))}}}" for key, param in snippet.params.items())
    return "\n".join(["params:", *lines])


def _facts(param: Param) -> Iterator[str]:
    if not param.required:
        yield f"default: {_flow(param.default)}"
    if param.description:
        yield f"description: {_flow(param.description)}"


def _key(key: str) -> str:
    return render({key: None}, "yml_h").removesuffix(" null")


def _flow(value: Any) -> str:
    import yaml

    if not isinstance(value, str):
        return render(value, "yml")
    quoted: str = yaml.dump(value, default_style='"', allow_unicode=True, width=sys.maxsize)
    return quoted.removesuffix("\n")


# --- the command ----------------------------------------------------------------------------------------------------


def _parsed(command: str) -> tuple[str, dict[str, str]]:
    head = _NAME.match(command)
    if not head or not head[1] or literals.PLACEHOLDER.search(head[1]):
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
    for word in _words(name, text):
        key, equals, value = word.partition("=")
        if not equals:
            raise ArgumentError(f"${name} takes values by name; write key=value for {shortened(word)!r}")
        yield key, value


def _words(name: str, text: str) -> Iterator[str]:
    position = _end(_SPACE, text, 0)
    while position < len(text):
        end = _end(_WORD, text, position)
        after = _end(_SPACE, text, end)
        if after == end < len(text):  # a quote without its partner, or a backslash with nothing behind it
            raise ArgumentError(f"${name}: the {text[end]} in {text[end : end + 20]!r} is never closed")
        yield _PIECE.sub(_unquoted, text[position:end])
        position = after


def _end(pattern: re.Pattern[str], text: str, position: int) -> int:
    found = pattern.match(text, position)
    return found.end() if found else position


def _unquoted(piece: re.Match[str]) -> str:
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
    quoted = first[:1] in {"'", '"'} and _end(_WORD, first, 0) == len(first)
    return _PIECE.sub(_unquoted, first) if quoted else first
