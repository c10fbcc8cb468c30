"""Put values into Python code in place of placeholders, so that no value ever becomes code.

The code comes from the settings. It is parsed with placeholders, which are names, and values are
never parsed. The syntax tree tells whether a placeholder is a value, part of a name or part of a
string; all others are in comments.
"""

import ast
import json
import math
import re
from collections.abc import Iterator, Mapping
from keyword import iskeyword
from typing import Any

from onetool.errors import ArgumentError, ToolError
from onetool_child.json_types import JsonMapping

MAX_DEPTH = 50
_MAX_QUOTED_CHARS = 40
_BLOCK = "if 1:\n"  # turns indented code into a block

PLACEHOLDER = re.compile(r"ot_[0-9a-f]{8}_[0-9]+_")
_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_ESCAPED_CHARS = frozenset("\\'\"{}")


class DeclaredText(str):
    """The value of a parameter with `type: string`, even if it looks like a number."""

    __slots__ = ()


class Name(str):
    """A string to insert as a name, such as `brave.search`."""

    __slots__ = ()


def insert(code: str, values: JsonMapping) -> str:
    """Replace every placeholder in the code, which must be valid Python if it has any."""
    if not values:
        return code
    prefix, tree = _parse(code)
    names = _find_replacements(tree, values)
    in_code = {
        mark: repr(str(value)) for mark, value in values.items()
    } | names  # all others are in comments
    in_strings = {mark: str(value) for mark, value in values.items()} | names
    source = f"{prefix}{code}".encode()
    starts = [0, *(end.end() for end in re.finditer(b"\n", source))]
    parts = []
    position = 0
    for node in sorted(_find_literals(tree), key=lambda node: (node.lineno, node.col_offset)):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        parts += [restore(source[position:start].decode(), in_code)]
        parts += [_replace_in_literal(node, source[start:end].decode(), in_strings)]
        position = end
    return "".join([*parts, restore(source[position:].decode(), in_code)]).removeprefix(prefix)


def restore(text: str, values: JsonMapping) -> Any:
    """Return the value of a placeholder, or the text with its placeholders replaced."""
    if text in values:
        return values[text]
    return PLACEHOLDER.sub(lambda match: str(values.get(match[0], match[0])), text)


def parse_exactly(text: str) -> Any:
    """Return the number, boolean, None or JSON that the text denotes, else the text."""
    if text in _WORDS:
        return _WORDS[text]
    if text != text.strip():
        return text
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)
        literal(value)
    except (ValueError, RecursionError, ToolError):
        return text
    return value


def literal(value: Any, depth: int = 0) -> str:
    """Write a value as a Python literal."""
    if depth > MAX_DEPTH:
        raise ToolError(f"a value is nested more than {MAX_DEPTH} levels deep")
    match value:
        case None | bool() | int():
            return repr(value)
        case float():
            return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
        case list() | tuple():
            return f"[{', '.join(literal(item, depth + 1) for item in value)}]"
        case dict():
            pairs = (
                f"{literal(key, depth + 1)}: {literal(item, depth + 1)}"
                for key, item in value.items()
            )
            return f"{{{', '.join(pairs)}}}"
    return repr(str(value))


def truncate(text: str) -> str:
    return text if len(text) <= _MAX_QUOTED_CHARS else f"{text[:_MAX_QUOTED_CHARS]}…"


def _parse(code: str) -> tuple[str, ast.Module]:
    for prefix in ("", _BLOCK):
        try:
            return prefix, ast.parse(prefix + code)
        except IndentationError:
            continue
        except SyntaxError as error:
            line = (error.lineno or 1) - prefix.count("\n")
            raise ToolError(f"the result is not valid Python, line {line}: {error.msg}") from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise ToolError(f"the result is not valid Python: {error}") from None
    raise ToolError("the result is not valid Python: invalid indentation")


def _find_literals(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield strings and f-strings, whose parts Python 3.11 does not locate."""
    unseen = [tree]
    while unseen:
        node = unseen.pop()
        if isinstance(node, ast.JoinedStr) or (
            isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
        ):
            yield node
        elif type(node).__name__ == "TemplateStr" and PLACEHOLDER.search(ast.dump(node)):
            raise ToolError("values in t-strings are not supported")
        else:
            unseen += ast.iter_child_nodes(node)


def _find_replacements(tree: ast.AST, values: JsonMapping) -> dict[str, str]:
    """Return the replacements of placeholders that are a value or part of a name."""
    replacements: dict[str, str] = {}
    operands: set[str] = set()
    for node in ast.walk(tree):  # parents come before their children
        match node:
            case (
                ast.Attribute(value=ast.Name(id=name))
                | ast.Subscript(value=ast.Name(id=name))
                | ast.Call(func=ast.Name(id=name))
                | ast.BinOp(op=ast.Pow(), left=ast.Name(id=name))
            ):
                operands.add(name)
            case ast.Constant():
                continue
        for _, content in ast.iter_fields(node):
            for word in content if isinstance(content, list) else [content]:
                marks = (
                    [mark for mark in PLACEHOLDER.findall(word) if mark in values]
                    if isinstance(word, str)
                    else []
                )
                if (
                    marks == [word]
                    and isinstance(node, ast.Name)
                    and not isinstance(values[word], Name)
                ):
                    text = literal(
                        parse_exactly(values[word]) if type(values[word]) is str else values[word]
                    )
                    # -5 ** 2 and 5.real mean something else than (-5) ** 2 and (5).real.
                    replacements[word] = (
                        f"({text})" if word in operands and text[-1].isdigit() else text
                    )
                elif marks:
                    name = str(restore(word, values))
                    has_dots = all(isinstance(values[mark], Name) for mark in marks)
                    if any(
                        not p.isidentifier() or iskeyword(p)
                        for p in (name.split(".") if has_dots else [name])
                    ):
                        raise ArgumentError(f"the value {truncate(name)!r} is not a valid name")
                    replacements |= {mark: str(values[mark]) for mark in marks}
    return replacements


def _replace_in_literal(node: ast.expr, source: str, texts: Mapping[str, str]) -> str:
    """Return the literal unchanged except for plain values, or rewrite the whole string."""
    marks = [mark for mark in PLACEHOLDER.findall(source) if mark in texts]
    if not marks:
        return source
    if isinstance(node, ast.Constant) and isinstance(node.value, bytes):
        encoded = {
            mark: texts[mark].encode("utf-8", "surrogatepass").decode("latin-1") for mark in marks
        }
        return repr(restore(node.value.decode("latin-1"), encoded).encode("latin-1"))
    if "\\" not in source and all(texts[mark] and _is_plain(texts[mark]) for mark in marks):
        return str(restore(source, texts))
    return " ".join(_replace_in_part(part, texts) for part in getattr(node, "values", [node]))


def _replace_in_part(part: ast.expr, texts: Mapping[str, str]) -> str:
    """Write a part of an f-string as a separate string; Python joins adjacent strings."""
    if isinstance(part, ast.Constant):
        return repr(restore(str(part.value), texts))
    field = ast.unparse(ast.JoinedStr([part]))
    for mark in PLACEHOLDER.findall(field):
        if not _is_plain(text := texts.get(mark, "")):
            raise ArgumentError(
                f"the value {truncate(text)!r} cannot be used inside the braces of an f-string; "
                "assign it first: value = {{ … }}"
            )
    return str(restore(field, texts))


def _is_plain(text: str) -> bool:
    """Return whether a text needs no escaping in any string."""
    return text.isprintable() and _ESCAPED_CHARS.isdisjoint(text)
