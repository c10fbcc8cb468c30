"""Execution of code as a module, with or without `return`: values, lines and strings are preserved."""

import importlib.util
import json
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.cells_support import NIGHTLY, ROOT, skip_or_fail

from onetool_child.capture import NO_VALUE, execute
from onetool_child.names import FILENAME

Run = Callable[[str], Any]


@pytest.fixture
def run() -> Iterator[Run]:
    """Return a function that runs code in a new module in sys.modules; `run.module` is the last
    module.
    """
    names: list[str] = []

    def run_in_module(code: str) -> Any:
        module = types.ModuleType(f"run_{len(names)}_{id(names)}")
        names.append(module.__name__)
        sys.modules[module.__name__] = module
        run_in_module.__dict__["module"] = module
        return execute(code, module.__dict__)

    yield run_in_module
    for name in names:
        del sys.modules[name]


def _get_module(run: Run) -> types.ModuleType:
    module: types.ModuleType = run.__dict__["module"]
    return module


# --- the value of code ----------------------------------------------------------------------------

VALUES: dict[str, tuple[str, Any]] = {
    "an expression": ("1 + 1", 2),
    "the last expression": ("x = 1\nx + 1", 2),
    "an expression after a semicolon": ("x = 1; x + 1", 2),
    "an expression over several lines": ("(\n 1 +\n 1\n)", 2),
    "None": ("None", None),
    "a text that looks like documentation": ('"text"', "text"),
    "an expression after documentation": ('"""doc"""\n5', 5),
    "a call that returns None": ("[].clear()", None),
    "a comment after the value": ("5\n# comment\n\n", 5),
    "no value: an assignment": ("x = 5", NO_VALUE),
    "no value: a loop": ("for x in range(3):\n    x", NO_VALUE),
    "no value: a definition": ("def f(): return 5", NO_VALUE),
    "no value: nothing but a comment": ("# nothing", NO_VALUE),
    "no value: nothing": ("", NO_VALUE),
    "no value: a call of print": ("print('', end='')", NO_VALUE),
    "the value of a print of one's own": ("def print(x): return x\nprint(5)", 5),
    "a comparison": ("1 < 2 < 3", True),
    "a lambda, called": ("(lambda x: x * 2)(4)", 8),
    "a walrus": ("(x := 5)", 5),
    "a starred expression": ("*range(3), 5", (0, 1, 2, 5)),
    "a formatted text": ("x = 5\nf'{x!r:>3}{x=}'", "  5x=5"),
    "a conditional": ("1 if True else 2", 1),
    "return": ("return 5", 5),
    "return of nothing": ("return", None),
    "return after code": ("x = 5\nreturn x", 5),
    "return in an if": ("if True:\n    return 5\n6", 5),
    "the value after an if that did not return": ("if False:\n    return 5\n6", 6),
    "no value after a return that was not reached": ("if False:\n    return 5\nx = 6", NO_VALUE),
    "no value after a print": ("if False:\n    return 5\nprint('', end='')", NO_VALUE),
    "return in a loop": ("for x in range(9):\n    if x == 5:\n        return x", 5),
    "return in a while": ("n = 0\nwhile True:\n    n += 1\n    if n == 5:\n        return n", 5),
    "return in the else of a loop": ("for x in []:\n    pass\nelse:\n    return 5", 5),
    "return in a try": ("try:\n    return 5\nfinally:\n    x = 6", 5),
    "return in an except": (
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    return str(e)",
        "division by zero",
    ),
    "return in a finally": ("try:\n    return 5\nfinally:\n    return 6", 6),
    "return in a with": (
        "import contextlib\nwith contextlib.nullcontext(5) as x:\n    return x",
        5,
    ),
    "return in a match": (
        "match [1, 2]:\n    case [a, *rest]:\n        return (a, rest)",
        (1, [2]),
    ),
    "return of a tuple": ("return 1, 2", (1, 2)),
    "the word return in a text": ("x = 'return'\nx", "return"),
    "return in a function only": ("def f():\n    return 5\nf()", 5),
    "return in a lambda's neighbor": ("f = lambda: 5\nreturn f()", 5),
    "a function that stands at the end": ("if False:\n    return 1\ndef f(): pass", NO_VALUE),
    "await": ("import asyncio\nawait asyncio.sleep(0, 5)", 5),
    "await in the middle": ("import asyncio\nx = await asyncio.sleep(0, 5)\nx + 1", 6),
    "await without a value": ("import asyncio\nx = await asyncio.sleep(0, 5)", NO_VALUE),
    "await and return": ("import asyncio\nreturn await asyncio.sleep(0, 5)", 5),
    "return and await apart": ("import asyncio\nx = await asyncio.sleep(0, 5)\nif x: return x", 5),
    "a coroutine left as the value": ("async def f(): return 5\nf()", 5),
    "a coroutine that is returned": ("async def f(): return 5\nreturn f()", 5),
    "async for": (
        "async def g():\n    yield 1\n    yield 2\nx = []\nasync for n in g(): x.append(n)\nx",
        [1, 2],
    ),
    "an asynchronous comprehension": ("async def g():\n    yield 1\n[n async for n in g()]", [1]),
    "an asynchronous comprehension that is returned": (
        "async def g():\n    yield 1\nreturn [n async for n in g()]",
        [1],
    ),
    "await in a comprehension": (
        "import asyncio\nreturn [await asyncio.sleep(0, n) for n in (1, 2)]",
        [1, 2],
    ),
    "async with": (
        (
            "import contextlib\n@contextlib.asynccontextmanager\nasync def c():\n    yield 5\nasync"
            " with c() as x:\n    return x"
        ),
        5,
    ),
    "a generator": ("def g():\n    yield 1\nlist(g())", [1]),
}


@pytest.mark.parametrize("kind", VALUES)
def test_the_value_of_code_is_captured(kind: str, run: Run) -> None:
    code, value = VALUES[kind]
    assert run(code) == value


@pytest.mark.parametrize(
    "code", ["yield 1", "x = yield", "yield from []", "return 1\nyield 2", "lambda: 1\nyield"]
)
def test_yield_at_the_top_level_is_a_syntax_error(code: str, run: Run) -> None:
    with pytest.raises(SyntaxError, match="'yield"):
        run(code)


@pytest.mark.parametrize(
    "code",
    [
        "for",
        "x = = 1",
        "class A:\n    return 5",
        "def f():\n    await x",
        "break",
        "continue",
        "nonlocal x",
        "return 5\nbreak",
        "x = 1\nglobal x",
        "return 1\nnonlocal x",
        "f(**{}, *[])",
        "del f()",
        "1 = x",
        "return = 5",
        "def f(a, a): pass",
        "return 5\ndef f(a, a): pass",
        "import a.b as c.d",
    ],
)
def test_a_syntax_error_of_a_module_is_a_syntax_error(code: str, run: Run) -> None:
    with pytest.raises(SyntaxError) as caught:
        run(code)
    assert caught.value.filename == FILENAME


# --- modules, with and without return -------------------------------------------------------------

AS_A_MODULE: dict[str, tuple[str, Any]] = {
    "names are global": ("x = 5\ndef f(): return x\nf()", 5),
    "functions see later names": ("def f(): return later\nlater = 5\nf()", 5),
    "global in a function": ("def f():\n    global x\n    x = 5\nf()\nx", 5),
    "global at the top": ("global x\nx = 5\nx", 5),
    "nonlocal in a closure": (
        (
            "def f():\n    n = 0\n    def g():\n        nonlocal n\n        n += 1\n        return"
            " n\n    return g\nh = f(); h()\nh()"
        ),
        2,
    ),
    "del of a name": ("x = 5\ndel x\n'x' in globals()", False),
    "del of an item and an attribute": (
        "class C: pass\nc = C(); c.a = 1; d = {1: 2}\ndel c.a, d[1]\n[vars(c), d]",
        [{}, {}],
    ),
    "augmented assignment": ("x = 1\nx += 4\nx", 5),
    "unpacking": ("a, (b, *c), d = 1, (2, 3, 4), 5\n[a, b, c, d]", [1, 2, [3, 4], 5]),
    "an annotated name": ("x: int = 5\nx", 5),
    "an annotated name without a value": ("x: int\n'x' in globals()", False),
    "an annotated attribute": ("class C: pass\nc = C()\nc.x: int = 5\nc.x", 5),
    "an annotated item": ("d = {}\nd['x']: int = 5\nd", {"x": 5}),
    "annotations in a loop": ("for n in range(3):\n    x: int = n\nx", 2),
    "a for target": ("for x in range(3): pass\nx", 2),
    "a with target": ("import contextlib\nwith contextlib.nullcontext(5) as x: pass\nx", 5),
    "an except target is gone afterwards": (
        "try: 1 / 0\nexcept Exception as e: pass\n'e' in globals()",
        False,
    ),
    "an import": ("import os.path\nos.path.sep", "/"),
    "an import by another name": ("import os.path as p\np.sep", "/"),
    "an import from": ("from os.path import sep as s\ns", "/"),
    "an import of everything": ("from string import *\nascii_lowercase[:3] + digits[:2]", "abc01"),
    "an import of everything, used in a function": (
        "from string import *\ndef f(): return digits\nf()[:2]",
        "01",
    ),
    "a walrus in a comprehension": ("[y := x for x in range(3)]\ny", 2),
    "a walrus in a condition": ("if (n := 5) > 3: pass\nn", 5),
    "a comprehension keeps its names": ("x = 'outer'\n[x for x in range(3)]\nx", "outer"),
    "a comprehension sees the names around it": ("x = 5\n[x + y for y in range(2)]", [5, 6]),
    "nested comprehensions": (
        "n = 2\n[[x * y * n for x in range(2)] for y in range(2)]",
        [[0, 0], [0, 2]],
    ),
    "a match binds names": (
        (
            "match {'k': [1, 2, 3], 'z': 9}:\n    case {'k': [first, *rest], **others} if first:"
            " pass\n[first, rest, others]"
        ),
        [1, [2, 3], {"z": 9}],
    ),
    "a match by class": (
        (
            "class P:\n    __match_args__ = ('x',)\n    def __init__(self, x): self.x = x\nmatch"
            " P(5):\n    case P(y) as whole: pass\n[y, whole.x]"
        ),
        [5, 5],
    ),
    "a match of alternatives": ("match 2:\n    case 1 | 2 as n: pass\nn", 2),
    "decorators": ("def d(f): return lambda: f() * 2\n@d\ndef g(): return 4\ng()", 8),
    "a decorator on a class": ("def d(c):\n    c.x = 5\n    return c\n@d\nclass C: pass\nC.x", 5),
    "a name in a class is its own": ("x = 1\nclass C:\n    x = 2\n[x, C.x]", [1, 2]),
    "a class sees the names around it": ("x = 5\nclass C:\n    y = x\nC.y", 5),
    "the qualified name of a class": (
        "class A:\n    class B: pass\n[A.__qualname__, A.B.__qualname__]",
        ["A", "A.B"],
    ),
    "the qualified name of a function": (
        "def f():\n    def g(): pass\n    return g\nf().__qualname__",
        "f.<locals>.g",
    ),
    "the module of a class": ("class C: pass\nC.__module__ == __name__", True),
    "a data class": (
        (
            "from dataclasses import dataclass, asdict\n@dataclass\nclass P:\n    x: int\n    y:"
            " int = 2\nasdict(P(1))"
        ),
        {"x": 1, "y": 2},
    ),
    "a data class with annotations as texts": (
        (
            "from __future__ import annotations\nfrom dataclasses import dataclass,"
            " fields\n@dataclass\nclass P:\n    x: int\n[f.type for f in fields(P)]"
        ),
        ["int"],
    ),
    "an enum": (
        "import enum\nclass C(enum.Enum):\n    A = 1\n    B = enum.auto()\n[c.value for c in C]",
        [1, 2],
    ),
    "a pickle of a class": (
        "import pickle\nclass C:\n    x = 5\npickle.loads(pickle.dumps(C())).x",
        5,
    ),
    "a pickle of a function": (
        "import pickle\ndef f(): return 5\npickle.loads(pickle.dumps(f))()",
        5,
    ),
    "a pickle of an enum": (
        (
            "import enum, pickle\nclass C(enum.Enum):\n    A = 1\npickle.loads(pickle.dumps(C.A))"
            " is C.A"
        ),
        True,
    ),
    "a named tuple": (
        (
            "from typing import NamedTuple\nclass P(NamedTuple):\n    x: int\n    y: int ="
            " 2\ntuple(P(1))"
        ),
        (1, 2),
    ),
    "a typed dictionary": (
        "from typing import TypedDict\nclass T(TypedDict):\n    x: int\nT(x=1)",
        {"x": 1},
    ),
    "a generic class": (
        (
            "from typing import Generic, TypeVar\nT = TypeVar('T')\nclass B(Generic[T]):"
            " pass\nB[int].__args__"
        ),
        (int,),
    ),
    "type hints": (
        "import typing\nclass C: pass\ndef f(x: 'C') -> int: ...\nsorted(typing.get_type_hints(f))",
        ["return", "x"],
    ),
    "a protocol": (
        (
            "from typing import Protocol, runtime_checkable\n@runtime_checkable\nclass"
            " P(Protocol):\n    def f(self): ...\nclass C:\n    def f(self):"
            " ...\nisinstance(C(), P)"
        ),
        True,
    ),
    "super without arguments": (
        (
            "class A:\n    def f(self): return 1\nclass B(A):\n    def f(self): return super().f()"
            " + 1\nB().f()"
        ),
        2,
    ),
    "private names in a class": (
        "class A:\n    __x = 5\n    def f(self): return self.__x\nA().f()",
        5,
    ),
    "globals and locals": ("x = 5\n[globals()['x'], 'x' in dir()]", [5, True]),
    "exec and eval": ("x = 5\nexec('y = x + 1')\neval('x + y')", 11),
    "what exec has bound": ("exec('y = 6')\ny", 6),
    "eval in a comprehension": ("x = 5\n[eval('n + x') for n in range(2)]", [5, 6]),
    "an eval of its own": ("def eval(x): return x\neval('1 + 1')", "1 + 1"),
    "arguments for eval": ("x = 5\neval('x', {'x': 6}) + eval(*['x'])", 11),
    "a lambda's default": ("fs = [lambda n=n: n for n in range(3)]\n[f() for f in fs]", [0, 1, 2]),
    "a single dispatch": (
        (
            "import functools\n@functools.singledispatch\ndef f(x): return 'any'\n@f.register\ndef"
            " _(x: int): return 'int'\n[f(1), f('')]"
        ),
        ["int", "any"],
    ),
    "a cached property": (
        (
            "import functools\nclass C:\n    @functools.cached_property\n    def x(self): return"
            " 5\nC().x"
        ),
        5,
    ),
    "names with odd letters": ("\uff58 = 5\nx", 5),
    "the idiom of a program": ("result = 0\nif __name__ == '__main__': result = 1\nresult", 0),
    "a method that returns": ("class C:\n    def f(self):\n        return 5\nC().f()", 5),
    "a class in a loop": (
        "made = []\nfor n in range(2):\n    class C:\n        x = n\n    made.append(C.x)\nmade",
        [0, 1],
    ),
    "a context manager": (
        (
            "import contextlib\n@contextlib.contextmanager\ndef c():\n    yield 5\nwith c() as x: y"
            " = x\ny"
        ),
        5,
    ),
    "groups of exceptions": (
        (
            "caught = []\ntry: raise ExceptionGroup('g', [ValueError(1), TypeError(2)])\nexcept*"
            " ValueError as e: caught.append(len(e.exceptions))\nexcept* TypeError as e:"
            " caught.append(2)\ncaught"
        ),
        [1, 2],
    ),
    "a text that is inspected": (
        "def f(x, *, y=1): pass\nimport inspect\nstr(inspect.signature(f))",
        "(x, *, y=1)",
    ),
}


def _return_last_expression(code: str) -> str:
    """Return the code with its last expression returned."""
    *before, last = code.split("\n")
    *same_line, expression = last.split("; ") if "; " in last and "'" not in last else [last]
    return "\n".join([*before, *same_line, f"return {expression}"])


@pytest.mark.parametrize("kind", AS_A_MODULE)
def test_code_behaves_like_a_module(kind: str, run: Run) -> None:
    code, value = AS_A_MODULE[kind]
    assert run(code) == value


@pytest.mark.parametrize("kind", AS_A_MODULE)
def test_code_with_return_behaves_like_a_module(kind: str, run: Run) -> None:
    code, value = AS_A_MODULE[kind]
    assert run(_return_last_expression(code)) == value


@pytest.mark.parametrize("kind", AS_A_MODULE)
def test_code_with_return_and_await_behaves_like_a_module(kind: str, run: Run) -> None:
    code, value = AS_A_MODULE[kind]
    future = "from __future__ import annotations\n"
    front = future if code.startswith(future) else ""
    body = code.removeprefix(future)
    assert (
        run(f"{front}import asyncio\nawait asyncio.sleep(0)\n{_return_last_expression(body)}")
        == value
    )


@pytest.mark.parametrize("ending", ["", "\nreturn None"], ids=["as it is", "with return"])
def test_definitions_stay_in_the_module(ending: str, run: Run) -> None:
    run(f"import math\nx = 5\ndef f(): return x\nclass C: pass{ending}")
    module = _get_module(run)
    assert (module.x, module.f(), module.C.__name__, module.math.__name__) == (5, 5, "C", "math")


def test_annotations_of_a_module_are_kept(run: Run) -> None:
    assert run("x: int = 5\n__annotations__") == {"x": int}


def test_future_imports_apply_to_all_code(run: Run) -> None:
    code = "from __future__ import annotations\ndef f(x: undefined) -> also: pass\n"
    assert run(f"{code}f.__annotations__") == {"x": "undefined", "return": "also"}
    assert run(f"{code}return f.__annotations__") == {"x": "undefined", "return": "also"}


def test_future_imports_may_follow_the_docstring(run: Run) -> None:
    code = '"""doc"""\nfrom __future__ import annotations\ndef f(x: undefined): pass\n'
    assert run(f"{code}f.__annotations__") == {"x": "undefined"}
    assert run(f"{code}return f.__annotations__") == {"x": "undefined"}


def test_the_docstring_of_a_module_is_kept(run: Run) -> None:
    assert run('"""doc"""\nx = 1\n__doc__') == "doc"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the syntax requires Python 3.12")
def test_type_statements_and_type_parameters_work(run: Run) -> None:
    code = "type Pair[T] = tuple[T, T]\ndef first[T](x: list[T]) -> T: return x[0]\n"
    assert run(f"{code}[Pair.__name__, first([5])]") == ["Pair", 5]
    assert run(f"{code}return [Pair.__name__, first([5])]") == ["Pair", 5]


# --- indentation ----------------------------------------------------------------------------------

INDENTED: dict[str, tuple[str, Any]] = {
    "all of it": ("    x = 1\n    x + 1", 2),
    "all of it, with tabs": ("\tx = 1\n\tx + 1", 2),
    "all of it, with return": ("    x = 1\n    return x + 1", 2),
    "all of it, with empty lines": ("    x = 1\n\n    \n    x + 1\n", 2),
    "all of it, with a comment at the margin": ("    x = 1\n# comment\n    x + 1", 2),
    "all but the first line": ("x = 1\n    y = 2\n    x + y", 3),
    "all but the first line, with a block": ("if True:\n        x = 1\n    x", 1),
    "blocks inside": ("    if True:\n        x = 1\n    x", 1),
    "a class inside": ("    class C:\n        def f(self):\n            return 5\n    C().f()", 5),
    "tabs where spaces were": ("if True:\n    x = 1\n\ty = 2\nx", 1),
    "spaces where a tab was": ("if True:\n\tx = 1\n        y = 2\nx + y", 3),
    "tabs of eight inside spaces of eight": ("def f():\n        if True:\n\t\treturn 5\nf()", 5),
    "line endings of Windows": ("    x = 1\r\n    x + 1\r\n", 2),
    "an empty first line": ("\n    x = 1\n    x + 1", 2),
    "a decorated function": (
        "    import functools\n    @functools.cache\n    def f():\n        return 5\n    f()",
        5,
    ),
    "a form feed": ("\fx = 1\nx + 1", 2),
}


@pytest.mark.parametrize("kind", INDENTED)
def test_code_that_is_indented_as_a_whole_is_dedented(kind: str, run: Run) -> None:
    code, value = INDENTED[kind]
    assert run(code) == value


TEXTS = {
    "lines of a long text": '    x = """\n  one\n        two\n\tthree\n"""\n    x',
    "lines of a formatted text": '    n = 5\n    x = f"""\n  {n}\n        two\n\tthree\n"""\n    x',
    "lines of a text of bytes": '    x = b"""\n  one\n        two\n\tthree\n"""\n    x.decode()',
    "lines of a raw text": "    x = r'''\n  one\n        two\n\tthree\n'''\n    x",
    "a text that goes on with a backslash": "    x = 'one\\\n   two\\\n\tthree'\n    x",
    "a text with a quote and a hash in it": (
        '    x = """\n  it\'s # no comment\n\tthree\n"""\n    x'
    ),
    "a text in brackets": '    x = [\n"""\n  one\n\ttwo\n""",\n][0]\n    x',
    "a text in code that lost its first indentation": (
        'n = 1\n    x = """\n  one\n\ttwo\n"""\n    x'
    ),
    "a text among tabs and spaces": (
        'if True:\n\ty = 1\n        x = """\n  one\n\ttwo\n        three\n"""\nx'
    ),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_dedenting_does_not_change_strings(kind: str, run: Run) -> None:
    code = TEXTS[kind]
    opened = max(code.find('"""'), code.find("'''"))
    if opened < 0:
        expected = "one   two\tthree"
    else:
        quotes = code[opened : opened + 3]
        expected = code[opened + 3 : code.index(quotes, opened + 3)].replace("{n}", "5")
    assert run(code) == expected


@pytest.mark.parametrize(
    "code",
    [
        "if True:\nx = 1",
        "    x = 1\n  y = 2",
        "if 1:\n    x = 1\n  y = 2\nx",
        "  x\n for",
        "x = 1\n  for\n  y",
    ],
)
def test_invalid_indentation_is_an_error(code: str, run: Run) -> None:
    with pytest.raises(SyntaxError):
        run(code)


def test_valid_code_is_unchanged(run: Run) -> None:
    code = 'x = """\n    kept\n\tas it is\n"""\nif True:\n\ty = 1\nx'
    assert run(code) == "\n    kept\n\tas it is\n"


# --- lines ----------------------------------------------------------------------------------------

FAILING = {
    "a plain line": ("x = 1\n\n1 / 0\ny = 2", 3),
    "the last expression": ("x = 1\n\n1 / 0", 3),
    "after a return": ("x = 1\nif False: return 1\n1 / 0\nx", 3),
    "the return itself": ("x = 1\n\nreturn 1 / 0", 3),
    "inside a function": ("def f():\n    return 1 / 0\n\nf()", 2),
    "indented as a whole": ("    x = 1\n\n    1 / 0\n", 3),
    "all but the first line indented": ("x = 1\n\n    1 / 0\n", 3),
    "behind empty lines": ("\n\n\n1 / 0", 4),
    "with await": ("import asyncio\nawait asyncio.sleep(0)\n1 / 0", 3),
    "with await and return": ("import asyncio\nawait asyncio.sleep(0)\nreturn 1 / 0", 3),
    "behind a long text": ('x = """\n\n\n"""\n1 / 0', 5),
    "line endings of Windows": ("x = 1\r\n\r\n1 / 0\r\n", 3),
    "line endings of old": ("x = 1\r\r1 / 0\r", 3),
    "behind a future import": ("from __future__ import annotations\n\nreturn 1 / 0", 3),
    "behind an annotation that went": ("x: int = 1\ny: int\nreturn 1 / 0", 3),
    "an annotation's value": ("y = 2\nx: int = 1 / 0\nreturn 1", 2),
    "behind a text with odd breaks": ("x = '\x0b\x0c\x1c\x85\u2028'\n\n1 / 0", 3),
}


@pytest.mark.parametrize("kind", FAILING)
def test_an_error_has_the_line_of_the_sent_code(kind: str, run: Run) -> None:
    code, line = FAILING[kind]
    with pytest.raises(ZeroDivisionError) as caught:
        run(code)
    lines = [
        entry.lineno
        for entry in caught.traceback
        if str(entry.frame.code.raw.co_filename) == FILENAME
    ]
    assert lines[-1] + 1 == line


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("x = 1\nfor\n", 2),
        ("x = 1\n\ny = (", 3),
        ("    x = 1\n    for\n", 2),
        ("x = 1\nif True:\ny = 2", 3),
        ("x = 1\nreturn 5\nyield 6", 3),
        ("x = 1\n'unfinished", 2),
        ('x = 1\n"""unfinished\n\n', 2),
    ],
)
def test_a_syntax_error_has_the_line_of_the_sent_code(code: str, line: int, run: Run) -> None:
    with pytest.raises(SyntaxError) as caught:
        run(code)
    assert (caught.value.lineno, caught.value.filename) == (line, FILENAME)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [50, 5_000, 200_000])
@pytest.mark.parametrize(
    "piece", ["(", "[", "-", "not ", "a.", "f(", "x if y else ", "lambda: ", "1+"]
)
def test_code_of_any_depth_is_a_value_or_an_error_and_never_crashes(piece: str, depth: int) -> None:
    closing = {"(": ")", "[": "]", "f(": ")"}.get(piece, "")
    program = f"""
from onetool_child.capture import execute
import sys
for before in ('', 'return '):
    try: execute(before + {piece!r} * {depth} + '1' + {closing!r} * {depth}, {{'__name__': 'x'}})
    except Exception as error: sys.stdout.write(type(error).__name__ + ' ')
sys.stdout.write('alive')
"""
    if depth > 5_000 and not NIGHTLY and piece not in {"(", "-"}:
        pytest.skip("other depths run nightly")
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert done.stdout.endswith("alive"), done.stderr[-500:]


def test_null_bytes_in_code_are_a_clear_error(run: Run) -> None:
    with pytest.raises((SyntaxError, ValueError), match="null bytes"):
        run("x = 1\0")


# --- the test suite of Python, as sent code -------------------------------------------------------

PYTHON_TESTS = (
    "test_grammar",
    "test_scope",
    "test_dataclasses",
    "test_named_expressions",
    "test_patma",
    "test_generators",
    "test_decorators",
    "test_with",
    "test_contextlib",
    "test_unpack_ex",
    "test_enum",
    "test_listcomps",
)
MORE_TESTS = (
    "test_typing",
    "test_funcattrs",
    "test_keywordonlyarg",
    "test_positional_only_arg",
    "test_super",
    "test_descr",
    "test_coroutines",
    "test_asyncgen",
    "test_baseexception",
    "test_raise",
    "test_compare",
    "test_bool",
    "test_augassign",
    "test_fstring",
    "test_global",
    "test_dictcomps",
    "test_setcomps",
    "test_string_literals",
    "test_pickle",
    "test_copy",
    "test_abc",
    "test_inspect",
    "test_functools",
    "test_weakref",
    "test_metaclass",
    "test_subclassinit",
    "test_type_annotations",
    "test_type_comments",
    "test_except_star",
    "test_yield_from",
)
CHOSEN = (*PYTHON_TESTS, *MORE_TESTS) if NIGHTLY else PYTHON_TESTS
DRIVER = """
import importlib.util, io, json, linecache, sys, types, unittest
from onetool_child.capture import execute
name, ending = sys.argv[1:]
where = importlib.util.find_spec(f'test.{name}').origin
with open(where, encoding='utf-8') as file: code = file.read()
linecache.cache['<run>'] = (len(code), None, code.splitlines(keepends=True), '<run>')  # as a cell does
module = types.ModuleType(f'test.{name}')
module.__file__ = where
module.__spec__ = importlib.util.find_spec(f'test.{name}')
sys.modules[f'test.{name}'] = module
if ending: execute(code + ending, module.__dict__)
else: execute(code, module.__dict__)
suite = unittest.defaultTestLoader.loadTestsFromModule(module)
result = unittest.TextTestRunner(stream=io.StringIO(), verbosity=0).run(suite)
bad = [str(case) for case, _ in (*result.failures, *result.errors)]
sys.stdout.write(json.dumps({'run': result.testsRun, 'bad': sorted(bad)}))
"""
PLAINLY = DRIVER.replace(
    "execute(code, module.__dict__)", "exec(compile(code, where, 'exec'), module.__dict__)"
)


def _run_python_tests(program: str, name: str, ending: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, name, ending],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-1500:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("ending", ["", "\nreturn 42\n"], ids=["as it is", "with return"])
@pytest.mark.parametrize("name", CHOSEN)
def test_the_test_suite_of_python_passes_as_sent_code(name: str, ending: str) -> None:
    if importlib.util.find_spec("test") is None or importlib.util.find_spec(f"test.{name}") is None:
        skip_or_fail(f"this Python has no test.{name}")
    sent = _run_python_tests(DRIVER, name, ending)
    plain = _run_python_tests(PLAINLY, name, "") if sent["bad"] else sent
    assert sent["run"] > 0
    assert [case for case in sent["bad"] if case not in plain["bad"] or plain is sent] == []


def test_the_driver_of_the_test_suite_detects_failures() -> None:
    broken = DRIVER.replace(
        "code = file.read()", "code = file.read().replace('assertEqual', 'assertNotEqual')"
    )
    assert _run_python_tests(broken, "test_with", "")["bad"]
