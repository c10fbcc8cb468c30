"""The value in a failed expression such as `issue["body"]` or `sum(issues)`: its keys or its type,
for error messages.

Nothing is evaluated again: variables and parts of plain dicts and lists are read, and tools report
their last value.
"""

import ast
import linecache
from itertools import islice
from types import TracebackType
from typing import Any

from onetool_child.capture import Namespace
from onetool_child.pack_proxy import PackProxy, ToolProxy

MAX_KEYS = 20
MAX_KEY_CHARS = 40
UNKNOWN = object()


def describe_shape(value: Any) -> str:
    """Return the keys of a dict, the length of a list and the keys of its first item, or the type."""
    if type(value) is dict:
        keys = ", ".join(
            str(key)[:MAX_KEY_CHARS] for key in islice(value, MAX_KEYS) if type(key) is str
        )
        more = f" and {len(value) - MAX_KEYS} more" if len(value) > MAX_KEYS else ""
        return f"a dict with keys: {keys}{more}" if keys else ""
    if type(value) is list:
        first = describe_shape(value[0]) if value and type(value[0]) is dict else ""
        length = f"a list of {len(value)} {'item' if len(value) == 1 else 'items'}"
        return f"{length}; the first is {first}" if first else length
    return {str: "a string", int: "an integer", float: "a number", bool: "a boolean"}.get(
        type(value), ""
    )


def describe_failed_value(error: BaseException, file: str, last_shape: str) -> str:
    """Return the shape of the value in a failed expression of this file; `last_shape` is that of
    the last call.
    """
    if type(error) not in {KeyError, TypeError}:
        return ""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_code.co_filename != file:
        return ""
    try:
        node = ast.parse(_get_source(trace, file), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    names = {**trace.tb_frame.f_globals, **trace.tb_frame.f_locals}
    if isinstance(node, ast.Subscript):
        return _describe(node.value, names, last_shape)
    shapes = (_describe(operand, names, last_shape) for operand in _list_operands(node, names))
    return next((shape for shape in shapes if shape.startswith(("a dict", "a list"))), "")


def _describe(node: ast.expr, names: Namespace, last_shape: str) -> str:
    if isinstance(node, ast.Call):
        return last_shape if _is_tool(node.func, names) else ""
    return describe_shape(_read(node, names))


def _list_operands(node: ast.expr, names: Namespace) -> list[ast.expr]:
    """Return the operands of an operator, a built-in function or a method."""
    match node:
        case ast.BinOp(left=left, right=right):
            return [left, right]
        case ast.Compare(left=left, comparators=others):
            return [left, *others]
        case ast.Call(func=ast.Attribute(value=value), args=arguments):
            return [value, *arguments]
        case ast.Call(func=ast.Name(id=name), args=arguments) if name not in names:
            return arguments
    return []


def _is_tool(node: ast.expr, names: Namespace) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    # `isinstance` would inspect the placeholder of a plan.
    return isinstance(node, ast.Name) and issubclass(
        type(names.get(node.id)), PackProxy | ToolProxy
    )


def _get_source(trace: TracebackType, file: str) -> str:
    """Return the source of the expression that failed, if it is on one line."""
    code = trace.tb_frame.f_code
    first, last, start, end = next(islice(code.co_positions(), trace.tb_lasti // 2, None))
    if first is None or first != last:
        return ""
    return linecache.getline(file, first).encode()[start:end].decode()


def _read(node: ast.expr, names: Namespace) -> Any:
    """Return the value of a variable, or of a part of a dict or list in one."""
    match node:
        case ast.Name(id=name):
            return names.get(name, UNKNOWN)
        case ast.Constant(value=value):
            return value
        case ast.Subscript(value=inner, slice=index):
            container = _read(inner, names)
            key = _read(index, names)
            is_plain = type(container) in {dict, list} and type(key) in {str, int}
            try:
                return container[key] if is_plain else UNKNOWN
            except (LookupError, TypeError):
                return UNKNOWN
    return UNKNOWN
