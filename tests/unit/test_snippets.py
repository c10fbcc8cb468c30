"""Expansion of snippets to code: values stay values, whatever they contain."""

import ast
import json
import random
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st
from tests.cells_support import NIGHTLY
from tests.support import measure_seconds

from onetool.errors import ArgumentError, ToolError, ToolNotFound
from onetool.runs.snippets import describe, expand, expand_call, is_snippet, render_signature
from onetool.runs.snippets.values import insert, parse_exactly
from onetool.settings.model import Param, Snippet
from onetool.util import yaml_loader

no_deadline = settings(deadline=None)  # a slow machine is not a failure

RESEARCH = """\
results = brave.search(query="{{ topic }}", count={{ count }})
llm.transform(input=results, prompt="Extract key findings")
"""


def snippet(body: str, **params: Any) -> Snippet:
    return Snippet(
        body=body, params={key: Param.model_validate(param) for key, param in params.items()}
    )


def make_research_snippet() -> Snippet:
    topic, count = (
        {"description": "Topic to research"},
        {"default": 5, "description": "Number of sources"},
    )
    about = {"description": "Search web and extract structured findings"}
    return snippet(RESEARCH, topic=topic, count=count).model_copy(update=about)


def expand_body(body: str, **values: Any) -> str:
    """Return the expansion of a body with these parameters."""
    return expand_call(
        "s", values, {"s": Snippet(body=body, params={key: Param() for key in values})}
    )


def pass_value(call: str, body: str, **params: Any) -> Any:
    """Return the value of the expanded code."""
    return ast.literal_eval(expand(call, {"s": snippet(body, **params)}))


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("$s", True),
        ("  \n$s a=1", True),
        ("$", True),
        ("x = '$s'", False),
        ("", False),
        ("# $s", False),
    ],
)
def test_a_command_that_starts_with_a_dollar_is_a_snippet(command: str, expected: bool) -> None:
    assert is_snippet(command) is expected


@no_deadline
@given(st.text("ab= \t\r\n'\"\\é\u00a0", max_size=12))
def test_values_are_split_like_shlex_does(text: str) -> None:
    command = f"$s topic={text}"
    known = {"s": snippet("'{{ topic }}'", topic={})}
    try:
        parts = shlex.split(f"topic={text}")
    except ValueError:
        with pytest.raises(ArgumentError, match=r"unclosed|accepts only named values"):
            expand(command, known)
    else:
        if len(parts) == 1:
            assert f"topic={ast.literal_eval(expand(command, known))}" == parts[0]
        else:
            with pytest.raises(
                ArgumentError, match=r"accepts only named values|no parameter|twice"
            ):
                expand(command, known)


@pytest.mark.parametrize(
    ("lines", "topic"),
    [
        ("topic: AI", "AI"),
        ("topic: what is this: a test?", "what is this: a test?"),
        ("  topic: indented\n", "indented"),
        ("topic: 'quoted: text'", "quoted: text"),
        ("""topic: "it's" """, "it's"),
        ("""topic: "a" and "b\"""", '"a" and "b"'),
        ("topic: It's", "It's"),
        ("topic:", ""),
        ("topic: one\n  two\n\n  three", "one\ntwo\n\nthree"),
        ("topic: |\n  a\n    b\n", "a\n  b"),
        ("\n\ntopic : AI\r\n", "AI"),
    ],
)
def test_values_may_be_on_separate_lines(lines: str, topic: str) -> None:
    assert pass_value(f"$s\n{lines}", '"{{ topic }}"', topic={}) == topic


def test_each_line_has_one_parameter() -> None:
    body = '("{{ a }}", "{{ b }}", {{ count }})'

    assert pass_value("$s\na: x y\nb: z\ncount: 3", body, a={}, b={}, count={"default": 5}) == (
        "x y",
        "z",
        3,
    )


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("$", r"\$name key=value"),
        ("$ s", r"\$name key=value"),
        ("$s AI", "accepts only named values: write key=value for 'AI'"),
        ("$" + "x" * 900_000, r"\$name key=value"),
        ("$s " + "x" * 900_000, "accepts only named values"),
        ("$s " + "x" * 900_000 + "=1", "has no parameter 'x{40}…'"),
        ("$s topic=1 " + "'" * 900_001, "unclosed '"),
        ('$s topic="AI', 'unclosed " in '),
        ("$s topic=AI topic=ML", "'topic' twice"),
        ("$s\ntopic: a\ntopic: b", "'topic' twice"),
        ("$s\ntopic: a\nmore", "invalid line 'more': expected `key: value`"),
    ],
    ids=lambda text: text[:20],
)
def test_an_invalid_command_is_a_short_error(command: str, message: str) -> None:
    with pytest.raises(ToolError, match=message) as error:
        expand(command, {"s": snippet("{{ topic }}", topic={})})
    assert len(str(error.value)) < 200


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["$s topic={}", "$s topic='{}'", '$s topic="{}"', "$s\ntopic: {}"]
)
def test_a_megabyte_is_parsed_in_linear_time(command: str) -> None:
    def read(size: int) -> None:
        assert (
            len(expand(command.format("x" * size), {"s": snippet('"{{ topic }}"', topic={})}))
            == size + 2
        )

    assert measure_seconds(partial(read, 800_000), times=5) < 8 * measure_seconds(
        partial(read, 200_000), times=5
    )


# --- parameters -----------------------------------------------------------------------------------


def test_an_unknown_snippet_suggests_the_nearest() -> None:
    with pytest.raises(
        ToolNotFound, match=r"unknown snippet \$reserch. Did you mean \$research\?"
    ) as error:
        expand(
            "$reserch topic=x",
            {"research": make_research_snippet(), "other": make_research_snippet()},
        )
    assert error.value.nearest == ["$research"]


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("$research", r"\$research requires topic\."),
        ("$research topic=x cuont=2", r"\$research has no parameter 'cuont'. Did you mean count\?"),
    ],
)
def test_invalid_parameters_show_the_signature(command: str, problem: str) -> None:
    with pytest.raises(ArgumentError, match=problem) as error:
        expand(command, {"research": make_research_snippet()})
    assert str(error.value).endswith("$research topic=… [count=5]")


def test_a_signature_shows_defaults_as_command_values() -> None:
    params: dict[str, Any] = {
        "a": {},
        "b": {"default": "two words"},
        "c": {"default": None},
        "d": {"default": [1]},
    }

    assert (
        render_signature("s", snippet("", **params)) == "$s a=… [b='two words'] [c=None] [d='[1]']"
    )
    assert len(render_signature("s", snippet("", a={"default": "x" * 1000}))) < 60


@pytest.mark.parametrize(
    ("kind", "text", "code"),
    [
        ("integer", "5", "5"),
        ("number", "5", "5"),
        ("number", "0.5", "0.5"),
        ("boolean", "true", "True"),
        ("string", "5", "'5'"),
        ("string", "true", "'true'"),
        ("array", "[1,2]", "[1, 2]"),
        ("object", "'{\"a\":1}'", "{'a': 1}"),
    ],
)
def test_a_value_has_the_declared_type(kind: str, text: str, code: str) -> None:
    assert expand(f"$s a={text}", {"s": snippet("f({{ a }})", a={"type": kind})}) == f"f({code})"


@pytest.mark.spec("ot-pack.snippets.info-level-full")
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("integer", "many"),
        ("integer", True),
        ("integer", 1.5),
        ("boolean", 1),
        ("array", "[1"),
        ("object", [1]),
    ],
)
def test_a_value_of_another_type_is_rejected(kind: str, value: Any) -> None:
    known = {"s": snippet("f({{ a }})", a={"type": kind})}
    with pytest.raises(
        ArgumentError, match=rf"\$s requires a of type {kind}, not .* Call it as: \$s a={kind}"
    ):
        expand_call("s", {"a": value}, known)


def test_the_default_must_have_the_declared_type() -> None:
    with pytest.raises(ValueError, match="the default 'x' does not have the type integer"):
        Param.model_validate({"type": "integer", "default": "x"})
    optional = Param.model_validate({"type": "integer", "default": None})
    assert (optional.accepts(None), optional.accepts(3)) == (True, True)


def test_a_definition_shows_types_and_an_example_of_them() -> None:
    text = describe(
        "s",
        snippet("f({{ a }}, {{ b }})", a={"type": "boolean"}, b={"type": "integer", "default": 2}),
    )
    assert "  a: {type: boolean}\n  b: {type: integer, default: 2}\n" in text
    assert text.endswith("# $s a=true\n# Expands to:\nf(True, 2)")


def test_a_string_is_converted_to_the_type_of_the_default() -> None:
    body = (
        "({% if flag %}1{% else %}2{% endif %}, {{ count > 3 }}, '{{ text }}', {{ items|length }})"
    )
    params: dict[str, Any] = {
        "flag": {"default": True},
        "count": {"default": 5},
        "text": {"default": "x"},
        "items": {"default": []},
    }

    assert pass_value("$s flag=false count=4 text=007 items='[1, 2]'", body, **params) == (
        2,
        True,
        "007",
        2,
    )


# --- templates ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "values", "code"),
    [
        (
            RESEARCH,
            {"topic": "AI", "count": "3"},
            RESEARCH.replace("{{ topic }}", "AI").replace("{{ count }}", "3"),
        ),
        ("f({{ count|int * 2 }})", {"count": "5"}, "f(10)"),
        (
            "f({{ count + 1 }}, {{ count - 1 }}, {{ 7 // count }}, {{ 7 % count }})",
            {"count": 2},
            "f(3, 1, 3, 1)",
        ),
        ("f({{ a + b }}, {{ a ~ 1 }})", {"a": "x", "b": "y"}, "f('xy', 'x1')"),
        ("f({{ xs + [a] }})", {"xs": ["x"], "a": "y"}, "f(['x', 'y'])"),
        ("f('{{ topic|upper }}', '{{ topic.title() }}')", {"topic": "it's"}, 'f("IT\'S", "It\'S")'),
        ("f({{ queries.split(',') }})", {"queries": "a,b"}, "f(['a', 'b'])"),
        (
            (
                "[{% for q in qs.split(',') %}f('{{ q|trim }}'){{ ', ' if not loop.last }}{%"
                " endfor %}]"
            ),
            {"qs": "a, b"},
            "[f('a'), f('b')]",
        ),
        (
            "{% for q in qs.split(',') %}f('{{ q }}', {{ loop.index }})\n{% endfor %}0",
            {"qs": "a"},
            "f('a', 1)\n0",
        ),
        ("{% if a %}f('{{ a }}'){% else %}g(){% endif %}", {"a": ""}, "g()"),
        ("{{ 'f' if a == 'x' else 'g' }}('{{ a }}')", {"a": "x"}, "f('x')"),
        ("{% set b = a|replace(' ', '_') %}f('{{ b }}')", {"a": "x y"}, "f('x_y')"),
        (
            "f('{{ a.replace(' ', '_') }}', '{{ '-'.join(a.split()) }}')",
            {"a": "x y"},
            "f('x_y', 'x-y')",
        ),
        ("f('{{ xs|map('trim')|join('+') }}')", {"xs": ["a ", " b"]}, "f('a+b')"),
        ("f({{ a|tojson }})", {"a": "x"}, "f('x')"),
        ("f('{{ a|default('none') }}')", {"a": "x"}, "f('x')"),
        ("{% raw %}f('{{ a }}'){% endraw %}", {}, "f('{{ a }}')"),
        (
            "f({{ xs[0] }}, {{ d.key }}, {{ d['key'] }})",
            {"xs": [1], "d": {"key": "v"}},
            "f(1, 'v', 'v')",
        ),
    ],
)
def test_jinja_works_on_values(body: str, values: dict[str, Any], code: str) -> None:
    assert expand_body(body, **values) == code.removesuffix("\n")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("{{ a ", "line 1: unexpected end of template"),
        ("x\n{% for %}", "line 2: "),
        ("{{ b }}", "'b' is undefined; declare it under params:"),
        ("{{ b + 1 }}", "'b' is undefined"),
        ("f({{ [b] }})", "'b' is undefined; declare it under params:"),
        (
            "{{ a * 2 }}",
            r"\* requires numbers; write name\|int to convert, and ~ to concatenate strings",
        ),
        ("{{ 2 ** 3 }}", r"\*\* is not supported"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{% macro m() %}{% endmacro %}", "Macro is not supported"),
        ("{% set b %}{{ a }}{% endset %}", "AssignBlock is not supported"),
        ("{% filter upper %}{{ a }}{% endfilter %}", "FilterBlock is not supported"),
        ("{% include 'x' %}", "Include is not supported"),
        ("{% for x in [a] recursive %}{{ loop(a) }}{% endfor %}", "For is not supported"),
        ("{{ ''.__class__ }}", "is unsafe"),
        ("{{ range.__globals__ }}", "is unsafe"),
        ("{{ a|attr('x') }}", "No filter named 'attr'"),
        ("{{ [].append(1) }}", "is unsafe"),
        ("f({{ a }}", r"the result is not valid Python, line 1: '\(' was never closed"),
        ("{{ " + "(" * 2000 + "1" + ")" * 2000 + " }}", "nested too deeply"),
        ("x" * 100_001, "the result has 100001 characters, the limit is 100000"),
    ],
)
def test_an_invalid_body_is_an_error_with_the_reason(body: str, problem: str) -> None:
    with pytest.raises(ToolError, match=problem) as error:
        expand_body(body, a="x")
    assert str(error.value).startswith("cannot render the body of $s: ")


BIG = "x" * 500_000
# Bodies that a user could write, with values that a hostile model could choose.
BOMBS: list[tuple[str, dict[str, Any]]] = [
    ("{{ a * n }}", {"a": "x", "n": 10**9}),
    ("{{ xs * n }}", {"xs": [1], "n": 10**9}),
    ("{{ n ** n }}", {"n": 10**9}),
    ("{{ a % n }}", {"a": "%999999999d", "n": 1}),
    ("{{ a.format(n) }}", {"a": "{:999999999}", "n": 1}),
    ("{{ a.ljust(n) }}", {"a": "x", "n": 10**9}),
    ("{{ a['ljust'](n) }}", {"a": "x", "n": 10**9}),
    ("{{ a|center(n) }}", {"a": "x", "n": 10**9}),
    ("{{ n.to_bytes(n) }}", {"n": 10**9}),
    ("{{ range(n)|list }}", {"n": 10**9}),
    ("{{ a|replace(b, c) }}", {"a": BIG, "b": "", "c": BIG}),
    ("{{ a.replace(b, c) }}", {"a": BIG, "b": "", "c": BIG}),
    ("{{ a.join(b) }}", {"a": BIG, "b": BIG}),
    ("{{ xs|join(a) }}", {"xs": [1] * 1000, "a": BIG}),
    ("{{ xs|map('replace', a, b)|list }}", {"xs": ["x"] * 1000, "a": "x", "b": BIG}),
    ("{{ a }}{{ a }}{{ a }}", {"a": BIG}),
    ("{% for x in xs %}{{ a }}{% endfor %}", {"xs": [1] * 1000, "a": BIG}),
    ("{% for x in xs %}" + "y" * 100 + "{% endfor %}", {"xs": [1] * 99_999}),
    ("{% for x in xs %}{% for y in xs %}{% endfor %}{% endfor %}", {"xs": [1] * 99_999}),
    ("{% for x in xs %}{% set y = a|upper %}{% endfor %}", {"xs": [1] * 99_999, "a": BIG}),
]


def expect_render_error(body: str, values: dict[str, Any]) -> None:
    with pytest.raises(ToolError, match="cannot render"):
        expand_body(body, **values)


@pytest.fixture(scope="module")
def longest() -> float:
    """Return the duration of a rendering that reaches its limit in small steps."""
    return measure_seconds(partial(expect_render_error, *BOMBS[-1]), times=1)


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize(("body", "values"), BOMBS, ids=[body for body, _ in BOMBS])
def test_values_that_need_too_much_time_or_memory_are_rejected(
    body: str, values: dict[str, Any], longest: float
) -> None:
    assert (
        measure_seconds(partial(expect_render_error, body, values), enough=3 * longest)
        < 3 * longest
    )


@pytest.mark.slow
def test_rejecting_expensive_values_takes_little_memory() -> None:
    code = """
import json, sys
from onetool.settings.model import Snippet
from onetool.errors import ToolError
from onetool.runs.snippets import expand_call
for body, values in json.load(sys.stdin):
    try:
        expand_call("s", values, {"s": Snippet(body=body, params=dict.fromkeys(values, {}))})
    except ToolError:
        pass
status = open("/proc/self/status").read()  # not ru_maxrss, which begins with that of the parent
print(int(status.partition("VmHWM:")[2].split()[0]) // 1024)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(BOMBS[:-3]),
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) < 300


def test_jinja_is_loaded_at_the_first_expansion() -> None:
    code = "import sys, onetool.runs.snippets; sys.exit('jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- values in code -------------------------------------------------------------------------------

FRAGMENTS = [
    "'", '"', "'''", '"""', "\\", "\\\\", "\\'", '\\"', "\n", "\r", "\r\n", "\t", "\0", "\x0c", "\x1b", "\x7f", "\x85",
    "\u2028", "\ufeff", "\ud800", "\U0001f600", "é", "\uff02", "{", "}", "{{", "}}", "{0}", "{evil()}", "{{ evil() }}",
    "{% if x %}", "#", "# x", "evil()", "' + evil() + '", '" + evil() + "', "'); evil(); ('", "''' + evil() + '''",
    '""" + evil() + """', ")", "]", ",", ";", ":", "=", "$s", "${x}", "%s", "!r", "\\N{EM DASH}", "\\x41", "\\u0022",
    "\\\n", "\nevil()\n", "\revil()", "0", "-5", "1e5", "1e999", "NaN", "true", "None", "null", "[1, 2]", '{"a": [1]}',
    "007", "3.10", " ", "f", "rb", "if", "lambda: evil()", "a", "", "\ue000", "\ue001", "\ue000ab-0\ue001",
]  # fmt: skip

# Every type of literal, with the value alone, at its ends, next to quotes and after a backslash.
EVERYWHERE = r"""
seen(1, "{{ v }}", '{{ v }}', u"{{ v }}")
seen(2, "<{{ v }}>", '"{{ v }}"', "\\{{ v }}", "\{{ v }}", '{{ v }}''{{ v }}')
seen(3, '''{{ v }}''', '''"{{ v }}"''', '''
{{ v }}''', '''''{{ v }}x''', '''{{ v }}\'''')
seen(4, f"{{ v }}", f'{1}{{ v }}{2}', f'''{1!r:>{2}}{{ v }}''', F"\N{EM DASH}{{ v }}", f"\{1}{{ v }}")
seen(5, r"{{ v }}", r'\d\'{{ v }}', r"\{{ v }}", rf"\d{1}{{ v }}\{1}", R'''\
{{ v }}''')
seen(6, b"{{ v }}", b'{{ v }}', rb"\x{{ v }}", Rb'''{{ v }}''', b"<{{ v }}>")
seen(7, {{ v }}, [{{ v }}], x={{ v }})  # a comment: {{ v }}
seen(8, "{{ v }}" "" '{{ v }}', ("{{ v }}"
     '{{ v }}'), f"{{ v }}{1}" '{{ v }}')
"""


class Recorder:
    """A function that records the values that the expanded code passes."""

    def __init__(self) -> None:
        self.calls: dict[int, list[Any]] = {}

    def __call__(self, key: int, *values: Any, **named: Any) -> None:
        self.calls[key] = [*values, *named.values()]


def check_everywhere(values: list[str]) -> None:
    code = expand_body("{% for v in vs %}" + EVERYWHERE + "{% endfor %}", vs=["harmless", *values])
    trees = ast.parse(code).body
    length = len(trees) // (len(values) + 1)
    shape = [ast.dump(without_literals(statement)) for statement in trees[:length]]
    for index, value in enumerate(values, 1):
        part = trees[index * length : (index + 1) * length]
        seen = Recorder()
        exec(compile(ast.Module(part, []), "expansion", "exec"), {"seen": seen})
        assert seen.calls == expected_calls(value)
        assert [ast.dump(without_literals(statement)) for statement in part] == shape


def expected_calls(v: str) -> dict[int, list[Any]]:
    data = v.encode("utf-8", "surrogatepass")
    bare = parse_exactly(v)
    return {
        1: [v, v, v],
        2: [f"<{v}>", f'"{v}"', f"\\{v}", f"\\{v}", v + v],
        3: [v, f'"{v}"', f"\n{v}", f"''{v}x", f"{v}'"],
        4: [v, f"1{v}2", f" 1{v}", f"\N{EM DASH}{v}", f"\\1{v}"],
        5: [v, rf"\d\'{v}", f"\\{v}", rf"\d1{v}\1", f"\\\n{v}"],
        6: [data, data, b"\\x" + data, data, b"<" + data + b">"],
        7: [bare, [bare], bare],
        8: [v + v, v + v, f"{v}1{v}"],
    }


class _WithoutLiterals(ast.NodeTransformer):
    def visit(self, node: ast.AST) -> Any:
        return (
            ast.Constant(0)
            if isinstance(node, ast.expr) and is_literal(node)
            else super().visit(node)
        )

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        node.values = [part for part in node.values if not isinstance(part, ast.Constant)]
        return self.generic_visit(node) if node.values else ast.Constant(0)


def without_literals(tree: ast.AST) -> ast.AST:
    result: ast.AST = _WithoutLiterals().visit(tree)
    return result


def is_literal(node: ast.expr) -> bool:
    if isinstance(node, ast.List | ast.Dict | ast.UnaryOp):
        return all(
            is_literal(inner) for inner in ast.iter_child_nodes(node) if isinstance(inner, ast.expr)
        )
    return isinstance(node, ast.Constant)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")
def test_hostile_strings_stay_values_in_every_literal() -> None:
    chance, count = random.Random(5), 5_000 if NIGHTLY else 1_000
    hostile = FRAGMENTS + [
        "".join(chance.choices(FRAGMENTS, k=chance.randint(1, 4))) for _ in range(count)
    ]
    for start in range(0, len(hostile), 50):
        check_everywhere(hostile[start : start + 50])


@pytest.mark.slow
@settings(deadline=None, max_examples=50)
@given(st.lists(st.text(st.characters(exclude_categories=())), max_size=10))
@example(["\ue000", "\ue001"])
@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")
def test_any_string_stays_a_value_in_every_literal(values: list[str]) -> None:
    check_everywhere(values)


MARK = "ot_0123abcd_0_"
PIECES = [
    "'", '"', "'''", '"""', "\\", "{", "}", "{{", "}}", ":", "!", "r", "f", "rf", "b", "t", "#", "\n", " ", "x", "(",
    ")", "[", "]", ",", "=", ".", "1", "-", "**", "\\N{EM DASH}", "\\\n", "\t", "é", "if", "f'", 'f"', "f'''", "{x",
    "x}",
]  # fmt: skip


@st.composite
def codes(draw: st.DrawFn) -> str:
    """Draw pieces of Python in any order, with placeholders, often inside a string."""
    code = "".join(draw(st.lists(st.sampled_from([*PIECES, *[MARK] * 8]), min_size=1, max_size=12)))
    quote = draw(st.sampled_from(["'", '"', "'''", '"""']))
    return draw(
        st.sampled_from(
            [code, f"f{quote}{code}{quote}", f"rf{quote}{code}{quote}", f"[r{quote}{code}{quote}]"]
        )
    )


@pytest.mark.slow
@settings(deadline=None, max_examples=400)
@given(codes(), st.sampled_from(FRAGMENTS))
@example(f"'{MARK}''x'", "")
@example(f"''' '{MARK}'''", "")
@example(f"{MARK} ** 2", "-5")
@example(f'f"{{x["{MARK}"]}}"', 'a"]+evil()+x["b')
@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")
def test_no_value_changes_the_structure_of_the_code(code: str, value: str) -> None:
    harmless = {tree_shape(result) for result in with_value(code, "harmless", 1)} - {None}
    if harmless:
        assert {tree_shape(result) for result in with_value(code, value)} <= {*harmless, None}


def with_value(code: str, *values: Any) -> Iterator[str]:
    for value in values:
        try:
            yield insert(code, {MARK: value})
        except ToolError:
            continue


def tree_shape(code: str) -> str | None:
    """Return the tree without constants and names, or None if the code is not valid Python."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        for field in {"id", "attr", "arg", "name"} & set(node._fields):
            setattr(node, field, "name" if getattr(node, field) is not None else None)
    return ast.dump(without_literals(tree))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("5", "5"),
        ("-5", "-5"),
        ("3.5", "3.5"),
        ("true", "True"),
        ("False", "False"),
        ("null", "None"),
        ("None", "None"),
        ('[1, true, "a\'b"]', '[1, True, "a\'b"]'),
        ('{"a": null}', "{'a': None}"),
        ('"text"', "'text'"),
        ("text", "'text'"),
        ("007", "'007'"),
        (" 5", "' 5'"),
        ("1_000", "'1_000'"),
        ("inf", "'inf'"),
        ("NaN", "'NaN'"),
        ("1e999", "'1e999'"),
        ("[" * 60 + "]" * 60, repr("[" * 60 + "]" * 60)),
        ("[" * 100_000, repr("[" * 100_000)),
        ("9" * 5_000, repr("9" * 5_000)),
        ("", "''"),
        ("open('x')", "\"open('x')\""),
    ],
    ids=lambda text: text[:20],
)
def test_a_bare_value_is_its_literal_or_a_string(text: str, code: str) -> None:
    assert expand_body("f({{ a }})", a=text) == f"f({code})"


@pytest.mark.parametrize(
    "body", ["'abc' {{ a }}", "{{ a }} {{ a }}", "1{{ a }}", "i{{ a }} x: pass", "r{{ a }}'text'"]
)
def test_a_value_where_python_allows_none_is_rejected(body: str) -> None:
    with pytest.raises(
        ToolError, match=r"cannot render the body of \$s: the result is not valid Python, line 1"
    ):
        expand_body(body, a="f")


def test_a_body_may_be_indented_as_a_whole() -> None:
    body = "{% for q in qs %}\n    f('{{ q }}')\n{% endfor %}"

    assert expand_body(body, qs=["it's", "x"]) == "\n    f(\"it's\")\n\n    f('x')\n"


@pytest.mark.parametrize("line", ["f('{{ q }}') + ", "f('{{ q }}')\n"])
def test_the_length_of_expanded_code_is_limited(line: str) -> None:
    body = f"{{% for q in qs %}}{line}{{% endfor %}}0"

    assert expand_body(body, qs=["x"] * 500).count("x") == 500
    with pytest.raises(ToolError, match="characters, the limit is 100000"):
        expand_body(body, qs=["x"] * 10_000)


def test_expansion_keeps_the_quotes_of_the_body() -> None:
    assert (
        expand_body("f(\"{{ a }}\", '{{ a }}', f'<{{ a }}>')", a="é x")
        == "f(\"é x\", 'é x', f'<é x>')"
    )


def test_a_number_stays_one_number() -> None:
    assert eval(expand_body("{{ a }} ** 2", a="-5")) == 25
    assert eval(expand_body("{{ a }}.real", a="5")) == 5


@pytest.mark.parametrize(
    ("body", "value", "code"),
    [
        ("brave.{{ a }}(1)", "search", "brave.search(1)"),
        ("(brave.  # which\n{{ a }})", "search", "(brave.  # which\nsearch)"),
        ("get_{{ a }}_now()", "time", "get_time_now()"),
        ("{{ a|name }}(1)", "brave.search", "brave.search(1)"),
        ("import {{ a|name }}\n'text'", "json", "import json\n'text'"),
    ],
)
def test_a_value_may_be_part_of_a_name(body: str, value: str, code: str) -> None:
    assert expand_body(body, a=value) == code


@pytest.mark.parametrize("value", ["a b", "x()", "a\n", "a'", "\ud800", "-", "a=b"])
@pytest.mark.parametrize(
    "body", ["x.{{ a }}", "{{ a }}_", "_{{ a }}", "{{ a|name }}", "f({{ a }}=1)"]
)
def test_a_value_that_is_not_an_identifier_cannot_be_part_of_a_name(body: str, value: str) -> None:
    with pytest.raises(ArgumentError, match="is not a valid name"):
        expand_body(body, a=value)


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("{{ a|name }}", "None"),
        ("x.{{ a }}", "b.c"),
        ("x.{{ a }}", ""),
        ("x.i{{ a }}", "f"),
    ],
)
def test_a_value_cannot_become_a_keyword_or_a_longer_path(body: str, value: str) -> None:
    with pytest.raises(ArgumentError, match="is not a valid name"):
        expand_body(body, a=value)


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("f\"{d['{{ a }}']}\"", "key 1"),
        ("f'{x:{{ a }}}'", ">10"),
        ("f'{ {{ a }} + 1 }'", "5"),
        ("f'{x.{{ a }}}'", "name"),
    ],
)
def test_simple_values_are_allowed_in_the_braces_of_an_f_string(body: str, value: str) -> None:
    assert expand_body(body, a=value) == body.replace("{{ a }}", value)


@pytest.mark.parametrize("value", ["it's", '"', "\\", "{x}", "'] + evil() + d['"])
@pytest.mark.parametrize("body", ["f\"{d['{{ a }}']}\"", "f'{x:{{ a }}}'", "f'{ {{ a }} }'"])
def test_other_values_are_rejected_in_the_braces_of_an_f_string(body: str, value: str) -> None:
    with pytest.raises(ArgumentError, match="inside the braces of an f-string"):
        expand_body(body, a=value)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (5, "f(5, '5')"),
        (None, "f(None, 'None')"),
        (True, "f(True, 'True')"),
        (["a", 1], "f(['a', 1], \"['a', 1]\")"),
        (float("inf"), "f(float('inf'), 'inf')"),
        ({"a": (1,)}, "f({'a': [1]}, \"{'a': (1,)}\")"),
    ],
)
def test_values_from_code_keep_their_type(value: Any, code: str) -> None:
    assert expand_body("f({{ a }}, '{{ a }}')", a=value) == code


def make_nested(levels: int) -> list[Any]:
    return [make_nested(levels - 1)] if levels else []


@pytest.mark.parametrize(
    "body", ["f({{ a }})", "f('{{ a }}')", "$other x={{ a }}", "$other x='<{{ a }}>'"]
)
@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (make_nested(60), "nested more than 50 levels deep"),
        (10**5_000, r"Exceeds the limit \(4300 digits\)"),
    ],
    ids=["deep", "long"],
)
def test_a_value_without_a_literal_is_rejected(body: str, value: Any, problem: str) -> None:
    known = {"s": snippet(body, a={}), "other": snippet("{{ x }}", x={})}

    with pytest.raises(ToolError, match=rf"cannot render the body of \$s: .*{problem}"):
        expand_call("s", {"a": value}, known)


# --- snippets in snippets -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "topic", ["AI", "two words", 'it\'s "x"', "a=b", "a\nb: c", "\\", "$x", ""]
)
@pytest.mark.parametrize(
    "body",
    [
        "$inner topic={{ t }} n={{ n }}",
        "$inner topic='{{ t }}' n={{ n }}",
        "$inner\ntopic: {{ t }}\nn: {{ n }}",
    ],
)
def test_a_body_may_call_another_snippet_with_its_own_values(body: str, topic: str) -> None:
    inner = snippet("('{{ topic }}', {{ n }})", topic={}, n={})
    known = {"outer": snippet(body, t={}, n={"default": 3}), "inner": inner}

    assert ast.literal_eval(expand_call("outer", {"t": topic}, known)) == (topic, 3)


def test_circular_snippets_are_an_error() -> None:
    with pytest.raises(ToolError, match=r"are circular: \$a → \$b → \$a"):
        expand("$a", {"a": snippet("$b"), "b": snippet("  $a")})


def test_a_long_chain_of_snippets_is_an_error() -> None:
    with pytest.raises(ToolError, match="nested more than 10 levels deep"):
        expand("$s0", {f"s{index}": snippet(f"$s{index + 1}") for index in range(50)})


def test_a_parameter_name_from_a_value_is_validated() -> None:
    known = {"a": snippet("$b {{ key }}=1", key={}), "b": snippet("{{ x }}", x={})}

    assert expand("$a key=x", known) == "1"
    with pytest.raises(ArgumentError, match=r"\$b has no parameter 'y'"):
        expand("$a key=y", known)


def test_a_value_cannot_select_the_snippet() -> None:
    with pytest.raises(ToolError, match="invalid snippet call: expected"):
        expand("$a x=b", {"a": snippet("${{ x }}", x={}), "b": snippet("1")})


def test_a_value_that_looks_like_a_snippet_is_a_string() -> None:
    assert expand_body("{{ a }}", a="$s") == "'$s'"


# --- descriptions ---------------------------------------------------------------------------------


def test_a_description_has_definition_example_and_expansion() -> None:
    assert (
        describe("brv_research", make_research_snippet())
        == """\
name: brv_research
description: Search web and extract structured findings
params:
  topic: {description: "Topic to research"}
  count: {default: 5, description: "Number of sources"}
body: |
  results = brave.search(query="{{ topic }}", count={{ count }})
  llm.transform(input=results, prompt="Extract key findings")

# Example with defaults:
# $brv_research topic=Python
# Expands to:
results = brave.search(query="Python", count=5)
llm.transform(input=results, prompt="Extract key findings")"""
    )


def test_an_example_that_cannot_be_expanded_shows_the_reason() -> None:
    last = describe("s", snippet("{{ a // 2 }}", a={})).splitlines()[-1]

    assert last.startswith(
        "# cannot expand with this value: cannot render the body of $s: // requires numbers"
    )


def test_an_example_expands_nested_snippets() -> None:
    known = {"outer": snippet("$inner x={{ a }}", a={}), "inner": snippet("f('{{ x }}')", x={})}

    assert describe("outer", known["outer"], known).endswith("\nf('Python')")


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
definitions = st.fixed_dictionaries(
    {
        "description": texts,
        "body": texts | st.just("f('{{ a }}')\n"),
        "params": st.dictionaries(
            st.from_regex(r"[a-z_]+", fullmatch=True),
            st.fixed_dictionaries(
                {"description": texts.filter(bool)},
                optional={
                    "default": st.none() | st.booleans() | st.integers() | texts | st.lists(texts)
                },
            ),
            max_size=3,
        ),
    }
)


@pytest.mark.slow
@no_deadline
@given(definitions)
def test_the_head_of_a_description_is_valid_yaml(definition: dict[str, Any]) -> None:
    head = describe("a_name", Snippet.model_validate(definition)).split(
        "\n\n# Example with defaults:\n"
    )[0]

    assert yaml_loader.read(f"{head}\n", "head").data == {"name": "a_name", **definition}
