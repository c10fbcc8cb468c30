"""Render the body of a snippet with Jinja's sandbox, with placeholders where values go.

Bodies come from the settings, values from the model: size and time are limited because of the
values. String literals inside `{{ }}` are code like the rest of the body; everything else is a
value. Importing this module loads Jinja.
"""

import json
import re
import secrets
from collections.abc import Iterable, Iterator
from time import thread_time
from typing import Any

from jinja2 import (
    StrictUndefined,
    TemplateSyntaxError,
    Undefined,
    UndefinedError,
    nodes,
    pass_context,
)
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from onetool.errors import ToolError
from onetool.runs.snippets.values import Name, literal
from onetool_child.json_types import JsonMapping, JsonObject

MAX_CODE_CHARS = 100_000  # parsing takes less than 0.1 s, with the interpreter lock held
MAX_RENDERED_CHARS = 1_000_000
MAX_SECONDS = 1.0

# Filters whose output is about as large as their input.
_FILTERS = (
    "abs", "capitalize", "count", "d", "default", "dictsort", "first", "float", "int", "items", "last", "length",
    "list", "lower", "map", "max", "min", "reject", "rejectattr", "reverse", "select", "selectattr", "sort", "string",
    "title", "trim", "truncate", "unique", "upper", "urlencode", "wordcount",
)  # fmt: skip
_GROWING_METHODS = frozenset(
    (
        "center",
        "encode",
        "expandtabs",
        "format",
        "format_map",
        "ljust",
        "rjust",
        "to_bytes",
        "translate",
        "zfill",
    )
)


class AuthoredCode(str):
    """A string literal in a body, which is code: `{{ ", " if not loop.last }}`."""

    __slots__ = ()


class Rendering(ImmutableSandboxedEnvironment):
    """A rendering of one body, with the values of its placeholders and its remaining limits."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        super().__init__(
            undefined=StrictUndefined, finalize=self._replace_value, optimized=False, cache_size=0
        )
        self.values: JsonObject = {}
        self._key = secrets.token_hex(4)
        self._size = 0
        self._deadline = thread_time() + MAX_SECONDS
        self.globals = {name: self.globals[name] for name in ("range", "dict", "namespace")}
        self.filters = {name: self.filters[name] for name in _FILTERS} | {
            "join": self._join,
            "replace": self._replace,
            "name": Name,
            "tojson": lambda value: json.dumps(value, ensure_ascii=False),
            "_each": self._each,
        }

    def render(self, body: str, variables: JsonMapping) -> str:
        try:
            chunks: list[str] = []
            for chunk in self.from_string(self._prepare(body)).generate(variables):
                chunks.append(chunk)
                self._spend(len(chunk))
        except ToolError:
            raise
        except Exception as error:  # noqa: BLE001 - report every error to the author of the template
            raise ToolError(_describe_error(error)) from None
        code = re.sub(r"\r\n?", "\n", "".join(chunks))  # as Python does
        if len(code) > MAX_CODE_CHARS:
            raise ToolError(f"the result has {len(code)} characters, the limit is {MAX_CODE_CHARS}")
        return code

    def _prepare(self, body: str) -> nodes.Template:
        """Reject blocks that output values, mark literals as code, and let loops be interrupted."""
        tree = self.parse(body)
        for node in tree.find_all(nodes.Stmt):
            is_plain = isinstance(
                node, nodes.Output | nodes.For | nodes.If | nodes.Assign | nodes.With
            )
            if not is_plain or (isinstance(node, nodes.For) and node.recursive):
                kind = type(node).__name__
                raise TemplateSyntaxError(
                    f"{kind} is not supported (supported: for, if, set, with)", node.lineno
                )
            if isinstance(node, nodes.Output):
                node.nodes = [_mark_code(child) for child in node.nodes]
            if isinstance(node, nodes.For):
                node.iter = nodes.Filter(node.iter, "_each", [], [], None, None)
        tree.set_environment(self)
        return tree

    @pass_context  # prevents constant folding in Jinja
    def _replace_value(self, _context: Context, value: Any) -> str:
        if isinstance(value, AuthoredCode | Undefined):
            return str(value)  # raises for undefined names
        stored = list(self._each(value)) if isinstance(value, Iterator | range) else value
        self._spend(len(literal(stored)))  # raises if the value has no literal
        mark = f"ot_{self._key}_{len(self.values)}_"
        self.values[mark] = stored
        return mark

    # --- limits -----------------------------------------------------------------------------------

    def _spend(self, size: int) -> None:
        self._size += size
        if self._size > MAX_RENDERED_CHARS or thread_time() > self._deadline:
            raise ToolError(
                f"rendering produced more than {MAX_RENDERED_CHARS} characters or took longer than"
                f" {MAX_SECONDS:g} s"
            )

    def _each(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._spend(0)
            yield item

    def _replace(self, text: Any, old: Any, new: Any, count: int = -1) -> str:
        self._spend(len(str(text)) + str(text).count(str(old)) * len(str(new)))
        return str(text).replace(str(old), str(new), count)

    def _join(self, items: Iterable[Any], separator: Any = "") -> str:
        texts = []
        for item in items:
            texts.append(str(item))
            self._spend(len(texts[-1]) + len(str(separator)))
        return str(separator).join(texts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Allow arithmetic on numbers and `+` on equal types, so that results stay small."""
        is_sum = operator == "+" and type(left) is type(right)
        if operator == "**":
            raise ToolError("** is not supported, because the result can be too large")
        if not is_sum and any(isinstance(side, str | list | tuple) for side in (left, right)):
            raise ToolError(
                f"{operator} requires numbers; write name|int to convert, and ~ to concatenate"
                " strings"
            )
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: Any, /, *args: Any, **named: Any) -> Any:
        text = getattr(function, "__self__", None)
        name = getattr(function, "__name__", "")
        if isinstance(text, str) and name == "replace":
            return self._replace(text, *args, **named)
        if isinstance(text, str) and name == "join":
            return self._join(args[0], text)
        return super().call(context, function, *args, **named)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in _GROWING_METHODS and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:  # noqa: ARG002 - overrides; the wrapped result would be safe, but not small
        return None


def _mark_code(node: nodes.Expr) -> nodes.Expr:
    if isinstance(node, nodes.CondExpr):
        node.expr1, node.expr2 = (
            _mark_code(node.expr1),
            _mark_code(node.expr2) if node.expr2 else None,
        )
    elif isinstance(node, nodes.Const) and isinstance(node.value, str):
        kind = nodes.ImportedName(f"{__name__}.{AuthoredCode.__name__}")
        return nodes.Call(kind, [node], [], None, None, lineno=node.lineno)
    return node


def _describe_error(error: Exception) -> str:
    if isinstance(error, TemplateSyntaxError):
        return f"line {error.lineno}: {error.message}"
    if isinstance(error, UndefinedError) and str(error).endswith("is undefined"):
        return f"{error}; declare it under params:"
    return (
        "the body is nested too deeply"
        if isinstance(error, RecursionError)
        else f"{type(error).__name__}: {error}"
    )
