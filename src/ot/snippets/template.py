"""Rendering the body of a snippet with Jinja, at a bounded cost, with placeholders where values go.

Every result of an operation is measured and every turn of a loop is counted; what could grow in one step is
foreseen. Texts that the author of a body wrote into `{{ }}` are code like the rest of the body; all else is a value.
Importing this loads Jinja.
"""

import json
import operator
import re
import secrets
from collections.abc import Iterator, Mapping
from functools import partial
from time import thread_time
from typing import Any

from jinja2 import StrictUndefined, TemplateSyntaxError, Undefined, UndefinedError, nodes, pass_context
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from ot.errors import ToolError
from ot.snippets.values import Name, literal, placeholder

MAX_BODY = 100_000
MAX_SIZE = 1_000_000
MAX_SECONDS = 1.0

# The filters whose result is about as large as what they are given.
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
        "join",
        "ljust",
        "replace",
        "rjust",
        "translate",
        "zfill",
    )
)
_OPERATORS = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "//": operator.floordiv, "%": operator.mod,
}  # fmt: skip
_GROWING_NODES = nodes.Concat | nodes.Dict | nodes.List | nodes.Tuple | nodes.Call | nodes.Filter


class _Code(str):
    """A text that the author wrote as part of the code: `{{ ", " if not loop.last }}`."""

    __slots__ = ()


class Rendering:
    """One rendering: the values it has put placeholders for, and what it may still cost."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._key = secrets.token_hex(8)
        self.code_filter = f"_code_{self._key}"  # which no body can name, to make code of a value
        self._left, self._deadline = MAX_SIZE, thread_time() + MAX_SECONDS

    def render(self, body: str, variables: Mapping[str, Any]) -> str:
        if len(body) > MAX_BODY:
            raise ToolError(f"it has {len(body)} characters, the limit is {MAX_BODY}")
        try:
            template = _template(body, self)
            chunks = [self._paid(chunk) for chunk in template.generate(variables)]
        except ToolError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a template does wrong is to be told to its author
            raise ToolError(_reason(error)) from None
        return re.sub(r"\r\n?", "\n", "".join(chunks))  # as Python itself does before it reads code

    @pass_context  # keeps Jinja from working out constant expressions while it compiles, where nothing is counted
    def finalize(self, _context: Context, value: Any) -> str:
        """What Jinja writes for an expression: a placeholder, and the value is remembered."""
        if isinstance(value, _Code | Undefined):
            return str(value)  # raises for a name that is not defined
        kept = list(self.each(value)) if isinstance(value, Iterator | range) else value
        self._spend(self._weight(kept))
        literal(kept)  # raises here, where the body is known, for what cannot be written down
        mark = placeholder(self._key, len(self.values))
        self.values[mark] = kept
        return mark

    # --- operations ---------------------------------------------------------------------------------------------

    def bounded(self, value: Any) -> Any:
        if isinstance(value, Iterator):
            return self.each(value)
        self._weight(value)
        return value

    def each(self, items: Any) -> Iterator[Any]:
        weight = 0
        for item in items:
            weight += self._weight(item)
            self._check(weight)
            yield item

    def operate(self, symbol: str, left: Any, right: Any) -> Any:
        """Arithmetic is for numbers, `+` also for two of a kind: nothing that it makes is larger than both together."""
        is_sum = symbol == "+" and type(left) is type(right)
        if not is_sum and any(isinstance(side, str | list | tuple) for side in (left, right)):
            raise ToolError(f"{symbol} is for numbers; write name|int for one, and ~ to put texts together")
        return self.bounded(_OPERATORS[symbol](left, right))

    def replace(self, text: Any, old: Any, new: Any, count: int = -1) -> str:
        whole, part = str(text), str(new)
        self._check(len(whole) + whole.count(str(old)) * len(part))
        return whole.replace(str(old), part, count)

    def join(self, items: Any, separator: Any = "") -> str:
        texts = [str(item) for item in self.each(items)]
        self._check(sum(map(len, texts)) + len(texts) * len(str(separator)))
        return str(separator).join(texts)

    # --- costs --------------------------------------------------------------------------------------------------

    def _weight(self, value: Any) -> int:
        """How large a value would be, written down. Lists that share their parts count as often as they are shown."""
        if thread_time() > self._deadline:
            raise _too_much()
        weight, unseen = 0, [value]
        while unseen:
            item = unseen.pop()
            weight += 1 + (len(item) if isinstance(item, str) else item.bit_length() if isinstance(item, int) else 0)
            self._check(weight)
            if isinstance(item, dict):
                unseen += [*item, *item.values()]
            elif isinstance(item, list | tuple):
                unseen += item
        return weight

    def _paid(self, chunk: str) -> str:
        self._spend(len(chunk))
        return chunk

    def _spend(self, size: int) -> None:
        self._left -= size
        self._check(MAX_SIZE - self._left)

    @staticmethod
    def _check(size: int) -> None:
        if size > MAX_SIZE:
            raise _too_much()


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(_OPERATORS)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        is_known = isinstance(obj, str | dict | list | tuple | LoopContext | Namespace)
        return is_known and attr not in _GROWING_METHODS and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:  # noqa: ARG002 - overrides; what it wraps would be safe, not small
        return None


def _too_much() -> ToolError:
    return ToolError(f"it makes more than {MAX_SIZE} characters or takes longer than {MAX_SECONDS:g} s")


def _template(body: str, rendering: Rendering) -> Any:
    environment = _environment(rendering)
    tree = environment.parse(body)
    _refuse_unbounded(tree)
    for output in tree.find_all(nodes.Output):
        output.nodes = [_marked(child, rendering.code_filter) for child in output.nodes]
    return environment.from_string(_guarded(tree))


def _environment(rendering: Rendering) -> _Environment:
    environment = _Environment(undefined=StrictUndefined, finalize=rendering.finalize, optimized=False, cache_size=0)
    environment.globals = {name: environment.globals[name] for name in ("range", "dict", "namespace")}
    environment.filters = {name: environment.filters[name] for name in _FILTERS} | {
        "join": rendering.join,
        "replace": rendering.replace,
        "name": Name,
        "tojson": partial(json.dumps, ensure_ascii=False),
        rendering.code_filter: _Code,
        "_each": rendering.each,
        "_bounded": rendering.bounded,
    }
    environment.binop_table = {symbol: partial(rendering.operate, symbol) for symbol in _OPERATORS}
    return environment


def _refuse_unbounded(tree: nodes.Template) -> None:
    """Blocks whose output becomes a value again would show placeholders to the template; powers know no bounds."""
    for node in tree.find_all((nodes.Stmt, nodes.Pow)):
        is_plain = isinstance(node, nodes.Output | nodes.For | nodes.If | nodes.Assign | nodes.With)
        if not is_plain or (isinstance(node, nodes.For) and node.recursive):
            kind = type(node).__name__
            raise TemplateSyntaxError(f"{kind} has no place here; there are for, if, set and with", node.lineno)


def _marked(node: Any, code_filter: str) -> Any:
    if isinstance(node, nodes.CondExpr):
        node.expr1, node.expr2 = _marked(node.expr1, code_filter), _marked(node.expr2, code_filter)
    elif isinstance(node, nodes.Const) and isinstance(node.value, str):
        return _filtered(node, code_filter)
    return node


def _guarded(node: Any) -> Any:
    """The same tree, in which loops count their turns and all that can grow is measured."""
    for name, value in node.iter_fields():
        if isinstance(value, nodes.Node):
            setattr(node, name, _guarded(value))
        elif isinstance(value, list):
            setattr(node, name, [_guarded(item) if isinstance(item, nodes.Node) else item for item in value])
    if isinstance(node, nodes.For):
        node.iter = _filtered(node.iter, "_each")
    is_target = getattr(node, "ctx", "load") != "load"
    return _filtered(_foreseeable(node), "_bounded") if isinstance(node, _GROWING_NODES) and not is_target else node


def _foreseeable(node: Any) -> Any:
    """`a ~ b`, `a.join(b)` and `a.replace(b, c)` as filters, which look at the sizes first."""
    method = node.node if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr) else None
    if method and method.attr == "replace":
        return _filtered(method.node, "replace", node.args)
    if method and method.attr == "join" and len(node.args) == 1:
        return _filtered(node.args[0], "join", [method.node])
    if isinstance(node, nodes.Concat):
        return _filtered(nodes.List(node.nodes, lineno=node.lineno, environment=node.environment), "join")
    return node


def _filtered(node: Any, name: str, arguments: list[nodes.Expr] | None = None) -> nodes.Filter:
    return nodes.Filter(node, name, arguments or [], [], None, None, lineno=node.lineno, environment=node.environment)


def _reason(error: Exception) -> str:
    if isinstance(error, TemplateSyntaxError):
        return f"line {error.lineno}: {error.message}"
    if isinstance(error, UndefinedError) and str(error).endswith("is undefined"):
        return f"{error}; declare what the body uses under params:"
    return "it is nested too deeply" if isinstance(error, RecursionError) else f"{type(error).__name__}: {error}"
