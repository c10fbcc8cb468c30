"""Put values into Python code in place of placeholders, so that no value ever becomes code.

The code comes from the settings: it is parsed while placeholders, which are names, stand for the values, and no value
is ever parsed. The syntax tree says what each placeholder is: a value alone, a part of a name, or a part of a string.
All others stand in comments.
"""

import ast
import json
import math
import re
from collections.abc import Iterator, Mapping
from keyword import iskeyword
from typing import Any

from onetool.errors import ArgumentError, ToolError

MAX_DEPTH = 50
_MAX_SHOWN = 40
_BLOCK = "if 1:\n"  # makes code that is indented as a whole a block

PLACEHOLDER = re.compile(r"ot_[0-9a-f]{8}_[0-9]+_")
_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_NEVER_PLAIN = frozenset("\\'\"{}")


class Name(str):
    """A text that is wanted as a name, such as `brave.search`."""

    __slots__ = ()


def insert(code: str, values: Mapping[str, Any]) -> str:
    """Replace every placeholder in the code, which must be valid Python unless it has none."""
    if not values:
        return code
    prefix, tree = _parse(code)
    names = _replacements(tree, values)
    in_code = {mark: repr(str(value)) for mark, value in values.items()} | names  # those that are no names: comments
    in_strings = {mark: str(value) for mark, value in values.items()} | names
    source = f"{prefix}{code}".encode()
    starts = [0, *(end.end() for end in re.finditer(b"\n", source))]
    parts, position = [], 0
    for node in sorted(_literals(tree), key=lambda node: (node.lineno, node.col_offset)):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        parts += [restored(source[position:start].decode(), in_code)]
        parts += [_replace_in_literal(node, source[start:end].decode(), in_strings)]
        position = end
    return "".join([*parts, restored(source[position:].decode(), in_code)]).removeprefix(prefix)


def restored(text: str, values: Mapping[str, Any]) -> Any:
    """The value itself if the text is one placeholder, else the text with texts put in. The text is not code."""
    if text in values:
        return values[text]
    return PLACEHOLDER.sub(lambda found: str(values.get(found[0], found[0])), text)


def exactly(text: str) -> Any:
    """The number, boolean, None or JSON that a text is exactly; else the text itself."""
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
        raise ToolError(f"a value is nested more than {MAX_DEPTH} deep")
    match value:
        case None | bool() | int():
            return repr(value)
        case float():
            return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
        case list() | tuple():
            return f"[{', '.join(literal(item, depth + 1) for item in value)}]"
        case dict():
            pairs = (f"{literal(key, depth + 1)}: {literal(item, depth + 1)}" for key, item in value.items())
            return f"{{{', '.join(pairs)}}}"
    return repr(str(value))


def shortened(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _parse(code: str) -> tuple[str, ast.Module]:
    for prefix in ("", _BLOCK):
        try:
            return prefix, ast.parse(prefix + code)
        except IndentationError:
            continue
        except SyntaxError as error:
            line = (error.lineno or 1) - prefix.count("\n")
            raise ToolError(f"it does not become valid Python, line {line}: {error.msg}") from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise ToolError(f"it does not become valid Python: {error}") from None
    raise ToolError("it does not become valid Python: its indentation is wrong")


def _literals(tree: ast.AST) -> Iterator[ast.expr]:
    """Strings, of which f-strings are one each: Python 3.11 does not know where their parts are."""
    unseen = [tree]
    while unseen:
        node = unseen.pop()
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)):
            yield node
        elif type(node).__name__ == "TemplateStr" and PLACEHOLDER.search(ast.dump(node)):
            raise ToolError("values cannot stand in t-strings")
        else:
            unseen += ast.iter_child_nodes(node)


def _replacements(tree: ast.AST, values: Mapping[str, Any]) -> dict[str, str]:
    """What takes the place of the placeholders that are a value alone, or a part of a name."""
    found: dict[str, str] = {}
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
                marks = [mark for mark in PLACEHOLDER.findall(word) if mark in values] if isinstance(word, str) else []
                if marks == [word] and isinstance(node, ast.Name) and not isinstance(values[word], Name):
                    text = literal(exactly(values[word]) if isinstance(values[word], str) else values[word])
                    # -5 ** 2 and 5.real mean something else than (-5) ** 2 and (5).real.
                    found[word] = f"({text})" if word in operands and text[-1].isdigit() else text
                elif marks:
                    name = str(restored(word, values))
                    has_dots = all(isinstance(values[mark], Name) for mark in marks)
                    if any(not p.isidentifier() or iskeyword(p) for p in (name.split(".") if has_dots else [name])):
                        raise ArgumentError(f"the value {shortened(name)!r} stands where only a name can stand")
                    found |= {mark: str(values[mark]) for mark in marks}
    return found


def _replace_in_literal(node: ast.expr, source: str, texts: Mapping[str, str]) -> str:
    """Keep the literal as it is written if all values are plain, else write the whole string again."""
    marks = [mark for mark in PLACEHOLDER.findall(source) if mark in texts]
    if not marks:
        return source
    if isinstance(node, ast.Constant) and isinstance(node.value, bytes):
        encoded = {mark: texts[mark].encode("utf-8", "surrogatepass").decode("latin-1") for mark in marks}
        return repr(restored(node.value.decode("latin-1"), encoded).encode("latin-1"))
    if "\\" not in source and all(texts[mark] and _is_plain(texts[mark]) for mark in marks):
        return str(restored(source, texts))
    return " ".join(_replace_in_part(part, texts) for part in getattr(node, "values", [node]))


def _replace_in_part(part: ast.expr, texts: Mapping[str, str]) -> str:
    """Write a part of an f-string as a string of its own: strings side by side are one string."""
    if isinstance(part, ast.Constant):
        return repr(restored(str(part.value), texts))
    field = ast.unparse(ast.JoinedStr([part]))
    for mark in PLACEHOLDER.findall(field):
        if not _is_plain(text := texts.get(mark, "")):
            where = "between the braces of an f-string; assign it before: value = {{ … }}"
            raise ArgumentError(f"the value {shortened(text)!r} stands {where}")
    return str(restored(field, texts))


def _is_plain(text: str) -> bool:
    """Whether a text stands for itself in every string, unless a backslash is before it."""
    return text.isprintable() and _NEVER_PLAIN.isdisjoint(text)
