"""Render the body of a snippet with Jinja's sandbox, with placeholders where values go.

Bodies are settings, values come from the model: what is bounded is what a value can make large or slow. Strings that
the author of a body wrote into `{{ }}` are code like the rest of the body; all else is a value. Importing this loads
Jinja.
"""

import json
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from time import thread_time
from typing import Any

from jinja2 import StrictUndefined, TemplateSyntaxError, Undefined, UndefinedError, nodes, pass_context
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from onetool.errors import ToolError
from onetool.snippets.values import Name, literal

MAX_CODE = 100_000  # parsing it holds the interpreter lock for less than a tenth of a second
MAX_SIZE = 1_000_000
MAX_SECONDS = 1.0

# The filters whose result is about as large as what they are given.
_FILTERS = (
    "abs", "capitalize", "count", "d", "default", "dictsort", "first", "float", "int", "items", "last", "length",
    "list", "lower", "map", "max", "min", "reject", "rejectattr", "reverse", "select", "selectattr", "sort", "string",
    "title", "trim", "truncate", "unique", "upper", "urlencode", "wordcount",
)  # fmt: skip
_GROWING_METHODS = frozenset(
    ("center", "encode", "expandtabs", "format", "format_map", "ljust", "rjust", "to_bytes", "translate", "zfill")
)


class AuthoredCode(str):
    """A string that the author wrote as part of the code: `{{ ", " if not loop.last }}`."""

    __slots__ = ()


class Rendering(ImmutableSandboxedEnvironment):
    """One rendering: the values that it has put placeholders for, and what it may still cost."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        super().__init__(undefined=StrictUndefined, finalize=self._replace_value, optimized=False, cache_size=0)
        self.values: dict[str, Any] = {}
        self._key = secrets.token_hex(4)
        self._size, self._deadline = 0, thread_time() + MAX_SECONDS
        self.globals = {name: self.globals[name] for name in ("range", "dict", "namespace")}
        self.filters = {name: self.filters[name] for name in _FILTERS} | {
            "join": self._join,
            "replace": self._replace,
            "name": Name,
            "tojson": lambda value: json.dumps(value, ensure_ascii=False),
            "_each": self._each,
        }

    def render(self, body: str, variables: Mapping[str, Any]) -> str:
        try:
            chunks: list[str] = []
            for chunk in self.from_string(self._prepare(body)).generate(variables):
                chunks.append(chunk)
                self._spend(len(chunk))
        except ToolError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a template does wrong is to be told to its author
            raise ToolError(_reason(error)) from None
        code = re.sub(r"\r\n?", "\n", "".join(chunks))  # as Python itself does before it reads code
        if len(code) > MAX_CODE:
            raise ToolError(f"it becomes {len(code)} characters of code, the limit is {MAX_CODE}")
        return code

    def _prepare(self, body: str) -> nodes.Template:
        """Refuse blocks whose output becomes a value again, mark what is code, and let loops be stopped."""
        tree = self.parse(body)
        for node in tree.find_all(nodes.Stmt):
            is_plain = isinstance(node, nodes.Output | nodes.For | nodes.If | nodes.Assign | nodes.With)
            if not is_plain or (isinstance(node, nodes.For) and node.recursive):
                kind = type(node).__name__
                raise TemplateSyntaxError(f"{kind} has no place here; there are for, if, set and with", node.lineno)
            if isinstance(node, nodes.Output):
                node.nodes = [_mark_code(child) for child in node.nodes]
            if isinstance(node, nodes.For):
                node.iter = nodes.Filter(node.iter, "_each", [], [], None, None)
        tree.set_environment(self)
        return tree

    @pass_context  # keeps Jinja from working out constant expressions while it compiles
    def _replace_value(self, _context: Context, value: Any) -> str:
        if isinstance(value, AuthoredCode | Undefined):
            return str(value)  # raises for a name that is not defined
        kept = list(self._each(value)) if isinstance(value, Iterator | range) else value
        self._spend(len(literal(kept)))  # raises here, where the body is known, for what cannot be written down
        mark = f"ot_{self._key}_{len(self.values)}_"
        self.values[mark] = kept
        return mark

    # --- bounds -------------------------------------------------------------------------------------------------

    def _spend(self, size: int) -> None:
        self._size += size
        if self._size > MAX_SIZE or thread_time() > self._deadline:
            raise ToolError(f"it makes more than {MAX_SIZE} characters or takes longer than {MAX_SECONDS:g} s")

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
        """Arithmetic is for numbers, `+` also for two of a kind: nothing that it makes is larger than both together."""
        is_sum = operator == "+" and type(left) is type(right)
        if operator == "**":
            raise ToolError("** has no place here, because a power can be too large")
        if not is_sum and any(isinstance(side, str | list | tuple) for side in (left, right)):
            raise ToolError(f"{operator} is for numbers; write name|int for one, and ~ to put texts together")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: Any, /, *args: Any, **named: Any) -> Any:
        text, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        if isinstance(text, str) and name == "replace":
            return self._replace(text, *args, **named)
        if isinstance(text, str) and name == "join":
            return self._join(args[0], text)
        return super().call(context, function, *args, **named)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in _GROWING_METHODS and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:  # noqa: ARG002 - overrides; what it wraps would be safe, not small
        return None


def _mark_code(node: nodes.Expr) -> nodes.Expr:
    if isinstance(node, nodes.CondExpr):
        node.expr1, node.expr2 = _mark_code(node.expr1), _mark_code(node.expr2) if node.expr2 else None
    elif isinstance(node, nodes.Const) and isinstance(node.value, str):
        kind = nodes.ImportedName(f"{__name__}.{AuthoredCode.__name__}")
        return nodes.Call(kind, [node], [], None, None, lineno=node.lineno)
    return node


def _reason(error: Exception) -> str:
    if isinstance(error, TemplateSyntaxError):
        return f"line {error.lineno}: {error.message}"
    if isinstance(error, UndefinedError) and str(error).endswith("is undefined"):
        return f"{error}; declare what the body uses under params:"
    return "it is nested too deeply" if isinstance(error, RecursionError) else f"{type(error).__name__}: {error}"
