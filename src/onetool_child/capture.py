"""Execution of code, the value of a run, and the value in a failed expression.

The syntax tree determines the value. The code is parsed as it was sent, so that line numbers and
strings stay the same; indentation is fixed only if parsing fails. Code with a top-level `return` is
wrapped in a function whose names are all global, so that its definitions still belong to a module.
"""

import ast
import linecache
import re
from collections.abc import Callable, Coroutine, Iterator
from itertools import islice
from types import AsyncGeneratorType, CodeType, CoroutineType, TracebackType
from typing import Any

from onetool_child.names import FILENAME, find_unbound_names, find_used_names, is_reserved
from onetool_child.pack_proxy import PackProxy, ToolProxy

CO_COROUTINE = 0x80  # as in `inspect`, which is too slow to load
RUN = "__run__"
NESTED_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
STRINGS_AND_COMMENTS = re.compile(
    r"'''(?:[^\\]|\\.)*?'''|\"\"\"(?:[^\\]|\\.)*?\"\"\"|'(?:[^\\'\n]|\\.)*'|\"(?:[^\\\"\n]|\\.)*\"|#[^\n]*",
    re.DOTALL,
)
INDENTATION = re.compile(r"^[ \t]+", re.MULTILINE)
MAX_INDENTATIONS_TRIED = 8
IN_MODULES = {"locals": "globals()", "vars": "globals()", "dir": "sorted(globals())"}
Namespace = dict[str, Any]
Find = Callable[
    [list[str], list[str]], Namespace
]  # resolves unbound names; also gets all names that the code uses
MAX_KEYS = 20
MAX_KEY_CHARS = 40
UNKNOWN = object()


class NoValue:
    """The value of code that neither returns nor ends in an expression."""


NO_VALUE = NoValue()


def execute(
    code: str, namespace: Namespace, filename: str = FILENAME, find: Find | None = None
) -> Any:
    """Run the code in the namespace and return its value.

    A coroutine or an async generator is awaited.

    `find` is called once, before the code starts, for the unbound names that the code reads.
    """
    body, tail = compile_run(code, filename)
    if find is not None:
        modules = [body] if tail is None else [body, tail]
        unbound = (name for name in find_unbound_names(*modules) if name not in namespace)
        if unknown := sorted(name for name in unbound if not is_reserved(name)):
            namespace.update(find(unknown, sorted(find_used_names(*modules))))
    if _is_async(body) or (tail is not None and _is_async(tail)):
        value = _wait_for(_execute_async(body, tail, namespace))
    else:
        exec(body, namespace)  # noqa: S102 - this process exists to run this code; nothing else is in it
        value = NO_VALUE if tail is None else eval(tail, namespace)  # noqa: S307 - see above
    if type(value) is AsyncGeneratorType:
        value = _collect(value)
    if type(value) is CoroutineType:  # `isinstance` would inspect a placeholder
        value = _wait_for(value)
    return NO_VALUE if value is namespace.get(RUN, NO_VALUE) else value


async def _execute_async(body: CodeType, tail: CodeType | None, namespace: Namespace) -> Any:
    outcome = eval(body, namespace)  # noqa: S307 - see above
    if _is_async(body):
        await outcome
    if tail is None:
        return NO_VALUE
    value = eval(tail, namespace)  # noqa: S307 - see above
    return await value if _is_async(tail) else value


async def _collect(items: AsyncGeneratorType[Any, None]) -> list[Any]:
    return [item async for item in items]


def _is_async(code: CodeType) -> bool:
    return bool(code.co_flags & CO_COROUTINE)


def _wait_for(coroutine: Coroutine[Any, Any, Any]) -> Any:
    import asyncio

    if asyncio._get_running_loop() is None:  # noqa: SLF001 - public in asyncio
        return asyncio.run(coroutine)
    # A snippet that awaits was called by code that awaits, so this thread already has a loop.
    from concurrent.futures import ThreadPoolExecutor
    from contextvars import copy_context

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(copy_context().run, asyncio.run, coroutine).result()


# --- statements and the expression of the value ---------------------------------------------------


def compile_run(code: str, filename: str = FILENAME) -> tuple[CodeType, CodeType | None]:
    """Return the compiled statements and the expression of the value, if any."""
    tree = parse(code, filename)
    if "return" in code and _find_top_level(
        tree, ast.Return
    ):  # checking the text first avoids the walk
        body, tail = _wrap_in_function(tree, filename)
    else:
        body = tree
        tail = _find_final_value(tree)
        if tail is not None:
            tree.body.pop()
    value = None if tail is None else _compile(ast.Expression(tail), filename, "eval")
    return _compile(body, filename, "exec"), value


def _compile(tree: ast.Module | ast.Expression, filename: str, mode: str) -> CodeType:
    code: CodeType = compile(
        tree, filename, mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
    )
    return code


def _find_final_value(tree: ast.Module) -> ast.expr | None:
    """Return the expression that the code ends in, except calls such as print, which return None."""
    if not tree.body or not isinstance(last := tree.body[-1], ast.Expr):
        return None
    match last.value:
        case ast.Call(func=ast.Name(id="pprint")):
            return None
        case ast.Call(func=ast.Name(id="print" | "help" as name)) if name not in _find_bound_names(
            tree
        ):
            return None
    return last.value


def find_value_line(code: str) -> int | None:
    """Return the line of the value: of the last statement, unless another one may have returned it."""
    tree = parse(code)
    last = tree.body[-1]
    is_only_return = len(_find_top_level(tree, ast.Return)) == isinstance(last, ast.Return)
    return last.lineno if is_only_return else None


def _wrap_in_function(tree: ast.Module, filename: str) -> tuple[ast.Module, ast.expr | None]:
    """Wrap the code in `def __run__()`.

    Its end returns the function itself, which means "no value".
    """
    for node in _find_top_level(tree, ast.Yield, ast.YieldFrom):
        raise SyntaxError(
            "'yield' outside function", (filename, node.lineno, node.col_offset + 1, None)
        )
    is_async = any(part.is_async for part in _find_top_level(tree, ast.comprehension))
    is_awaited = is_async or bool(_find_top_level(tree, ast.Await, ast.AsyncFor, ast.AsyncWith))
    future = [statement for statement in tree.body if _is_future(statement)]
    source = (
        f"async def {RUN}(): ...\nawait {RUN}()" if is_awaited else f"def {RUN}(): ...\n{RUN}()"
    )
    module: Any = ast.parse(source)
    function, call = module.body
    function.body = _build_function_body(tree)
    module.body = [*future, function]
    return ast.fix_missing_locations(module), ast.increment_lineno(call, -1).value


def _build_function_body(tree: ast.Module) -> list[ast.stmt]:
    names = sorted(_find_bound_names(tree))
    value = _find_final_value(tree)
    adapter = _FunctionAdapter(frozenset(names))
    body = [adapter.visit(statement) for statement in tree.body if not _is_future(statement)]
    if value is not None:
        body[-1] = ast.copy_location(ast.Return(value), value)
    return [*([ast.Global(names)] if names else []), *body, ast.Return(ast.Name(RUN, ast.Load()))]


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


class _FunctionAdapter(ast.NodeTransformer):
    """Adapts statements that are only valid in a module to a function with global names."""

    def __init__(self, not_builtin: frozenset[str]) -> None:
        self._not_builtin = not_builtin

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        """Remove the annotation and keep the assignment."""
        if not isinstance(node.target, ast.Name):
            return node
        bare: ast.stmt = ast.Pass() if node.value is None else ast.Assign([node.target], node.value)
        return ast.copy_location(bare, node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Make `locals()`, `vars()`, `dir()` and `eval` use the globals, as at the top of a module."""
        match node:
            case ast.Call(func=ast.Name(id=name), args=[], keywords=[]) if name in IN_MODULES:
                return ast.copy_location(ast.parse(IN_MODULES[name], mode="eval").body, node)
            case ast.Call(
                func=ast.Name(id="exec" | "eval" as name), args=[code], keywords=[]
            ) if not (name in self._not_builtin or isinstance(code, ast.Starred)):
                node.args.append(ast.parse("globals()", mode="eval").body)
        return self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt:
        """Execute `from x import *` in the namespace of the module."""
        if node.names[0].name != "*":
            return node
        call = ast.parse(f"exec({ast.unparse(node)!r}, globals())").body[0]
        for part in ast.walk(call):
            ast.copy_location(part, node)
        return call

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Leave comprehensions unchanged: evaluated code in them may use their variables."""
        if isinstance(node, NESTED_SCOPES):
            return node
        if isinstance(node, COMPREHENSIONS):
            return ast.NodeTransformer.generic_visit(
                _FunctionAdapter(self._not_builtin | {"exec", "eval"}), node
            )
        return super().generic_visit(node)


def _find_bound_names(tree: ast.AST) -> set[str]:
    return {name for node in _walk_scope(tree) for name in _list_bound_names(node)} - {"*"}


def _walk_scope(tree: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(tree):
        yield child
        if not isinstance(child, NESTED_SCOPES):
            yield from _walk_scope(child)


def _find_top_level(tree: ast.AST, *kinds: type[ast.AST]) -> list[Any]:
    return [node for node in _walk_scope(tree) if isinstance(node, kinds)]


def _list_bound_names(node: ast.AST) -> list[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return [(alias.asname or alias.name).partition(".")[0] for alias in names]
        case (
            ast.ExceptHandler(name=str(name))
            | ast.MatchAs(name=str(name))
            | ast.MatchStar(name=str(name))
        ):
            return [name]
        case ast.MatchMapping(rest=str(name)):
            return [name]
    return []


# --- indentation ----------------------------------------------------------------------------------


def parse(code: str, filename: str = FILENAME) -> ast.Module:
    """Return the syntax tree of the code, with fixed indentation if it is wrong."""
    try:
        return ast.parse(code, filename)
    except IndentationError as error:
        mistake: SyntaxError = error
    for fixed in _fix_indentation(code):
        try:
            return _parse_block(fixed, filename)
        except IndentationError:
            continue
        except SyntaxError as inside:  # the indentation is right now; report this error
            if isinstance(mistake, IndentationError):
                mistake = inside
    raise mistake from None


def _fix_indentation(code: str) -> Iterator[str]:
    """Yield variants with fixed indentation, which the first line may have lost."""
    for text in (code, _expand_tabs(code, 4), _expand_tabs(code, 8)):
        yield text
        first, _, rest = text.partition("\n")
        for indent in list(dict.fromkeys(INDENTATION.findall(rest)))[:MAX_INDENTATIONS_TRIED]:
            yield f"{indent}{first}\n{rest}"


def _parse_block(code: str, filename: str) -> ast.Module:
    """Parse code that is indented as a whole as a block, so that its strings do not change."""
    try:
        return ast.parse(code, filename)
    except IndentationError:
        pass
    try:
        block, *more = ast.parse("if 1:\n" + code, filename).body
    except SyntaxError as error:
        error.lineno = (error.lineno or 2) - 1
        raise
    assert isinstance(block, ast.If)
    if more or block.orelse:  # only part of it is indented
        raise IndentationError("unexpected indent", (filename, 1, 1, None))
    return ast.Module(
        [ast.increment_lineno(statement, -1) for statement in block.body], type_ignores=[]
    )


def _expand_tabs(code: str, width: int) -> str:
    strings = [
        match.span() for match in STRINGS_AND_COMMENTS.finditer(code) if "\n" in match.group()
    ]

    def expand(match: re.Match[str]) -> str:
        is_in_string = any(start < match.start() < end for start, end in strings)
        return match.group() if is_in_string else match.group().expandtabs(width)

    return INDENTATION.sub(expand, code)


# --- subscripts -----------------------------------------------------------------------------------


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
    """Return the shape of the failed expression's value; `last_shape` is the last call's."""
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


def split_lines(code: str) -> list[str]:
    """Return the lines as Python counts them; `splitlines` also splits at form feeds."""
    return code.replace("\r\n", "\n").replace("\r", "\n").split("\n")
