"""Removal of prefixes and fences: the code is unchanged and keeps its line numbers."""

import ast
from contextlib import suppress

import pytest
from hypothesis import assume, given, settings, strategies as st
from tests.support import measure_seconds

from onetool.errors import ToolError
from onetool.runs.fence_processor import strip

no_deadline = settings(deadline=None)  # a slow machine is not a failure

PREFIXES = ["__ot", "__ot__run", "__onetool", "__onetool__run", "mcp__onetool__run"]
FENCES = ["```", "````", "``````````", "~~~", "~~~~~"]
INFO_STRINGS = [
    "",
    "python",
    "py",
    "python3",
    " python",
    "Python",
    'python title="a.py" {1,3}',
    "{.python}",
    "12:15:a.py",
]
LINE_BREAKS = ["\n", "\r\n", "\r"]


@pytest.mark.parametrize("info", INFO_STRINGS)
@pytest.mark.parametrize("fence", FENCES)
@pytest.mark.parametrize("line_break", LINE_BREAKS)
def test_a_fence_around_the_code_is_removed(fence: str, info: str, line_break: str) -> None:
    code = f"x = 1{line_break}x + 1"

    assert strip(line_break.join([fence + info, code, fence])) == line_break + code


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ("`foo()`", "foo()"),
        ("``foo()``", "foo()"),
        ("``print('`')``", "print('`')"),
        ("`` foo() ``", "foo()"),
        ("  `foo()`\n", "foo()"),
        ("`x = 1\nx + 1`", "x = 1\nx + 1"),
        ("``\nfoo()\n``", "\nfoo()"),
        ("``python\nfoo()\n``", "\nfoo()"),
        ("```foo()```", "foo()"),
        ("```python foo()```", "foo()"),
        ("```py = 3```", "py = 3"),
        ("```python foo()", "foo()"),
    ],
)
def test_backticks_around_the_code_are_removed(sent: str, code: str) -> None:
    assert strip(sent) == code


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(
    ("after_prefix", "code"),
    [
        (" foo()", "foo()"),
        ("\tfoo()", "foo()"),
        (" x = 1\nx + 1\n", "x = 1\nx + 1\n"),
        ("\nfoo()", "\nfoo()"),
        ("\r\nfoo()", "\r\nfoo()"),
        ("`foo()`", "foo()"),
        (" `foo()`", "foo()"),
        ("~~~\nfoo()\n~~~", "\nfoo()"),
        ("```python\nfoo()\n```", "\nfoo()"),
        (" ```python\nfoo()\n```", "\nfoo()"),
        ("\n```python\nfoo()\n```", "\n\nfoo()"),
        ("\n\n```\nfoo()\n```\n", "\n\n\nfoo()"),
        (' print("```")', 'print("```")'),
    ],
)
def test_a_prefix_is_removed_before_the_fence(prefix: str, after_prefix: str, code: str) -> None:
    assert strip(prefix + after_prefix) == code


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ("\n\n__ot foo()", "\n\nfoo()"),
        ("\ufefffoo()", "foo()"),
        ("\ufeff```python\nfoo()\n```", "\nfoo()"),
        ("  \n\t\n```python\nfoo()\n```\n \n", "\n\n\nfoo()"),
        ("  ```python\n  foo()\n  ```", "\n  foo()"),
        ("```\n__ot foo()\n```", "\nfoo()"),
    ],
)
def test_removed_lines_become_empty_lines(sent: str, code: str) -> None:
    assert strip(sent) == code


@pytest.mark.parametrize(
    "code",
    [
        "foo()",
        "\n\n  foo()  \n\n",
        "x = '```python\\n1\\n```'",
        's = """\n```\ndata\n```\n"""\n',
        "# ```\nfoo()\n# ```",
        "foo()\n```",
        "`a` + `b`",
        "`foo()",
        "__ot_x = 1",
        "__ot = 1",
        "__ot(1)",
        "__other()",
        "mcp__ot__run_x = 1",
        "~~~x",
        "~x",
        "$snippet a=`b`",
        "x = 'tab\there \r\n\x0c \u2028'",
    ],
)
def test_code_without_fences_is_unchanged(code: str) -> None:
    assert strip(code) == code


@pytest.mark.parametrize(
    "code",
    [
        's = """\n```\ndata\n```\n"""',
        "s = '''\n~~~\n'''",
        "x = 'ends in spaces   '   ",
        "x = 1\n\n\n",
        "    indented()",
        "print('`', '``', '````')",
    ],
)
def test_fences_inside_the_code_are_preserved(code: str) -> None:
    assert strip(f"```python\n{code}\n```") == "\n" + code


def test_a_longer_fence_preserves_a_shorter_one() -> None:
    assert strip("````\n```\nfoo()\n```\n````") == "\n```\nfoo()\n```"


def test_a_shorter_fence_does_not_close_a_longer_one() -> None:
    assert strip("````\nfoo()\n```") == "\nfoo()\n```"


def test_a_closing_fence_may_be_longer() -> None:
    assert strip("```\nfoo()\n`````") == "\nfoo()"


def test_a_closing_fence_may_follow_the_code_directly() -> None:
    assert strip("```python\nfoo()```") == "\nfoo()"


def test_a_truncated_block_keeps_its_code() -> None:
    assert strip("```python\nx = 1\nprint('''\n```\n") == "\nx = 1\nprint('''"
    assert strip("```python\nx = 1\nfoo(x)\n") == "\nx = 1\nfoo(x)\n"


@pytest.mark.parametrize("language", ["", "python "])
def test_a_call_on_the_fence_line_is_code(language: str) -> None:
    assert strip(f"```{language}print(1)\nprint(2)\n```") == "print(1)\nprint(2)"


@pytest.mark.parametrize(
    "command", ["!onetool upper(text='x')", " !onetool", "mcp__ot__run foo()", "mcp__ot__run\n`x`"]
)
def test_old_prefixes_are_rejected_with_a_hint(command: str) -> None:
    with pytest.raises(
        ToolError, match=r"(?s)invalid syntax.*(!onetool|mcp__ot__run).*__ot ot\.tools\(\)"
    ):
        strip(command)


def test_an_old_prefix_inside_a_fence_is_rejected() -> None:
    with pytest.raises(ToolError, match="invalid syntax"):
        strip("```\n!onetool foo()\n```")


@pytest.mark.parametrize(
    "command",
    [
        "",
        " \n\t",
        "\ufeff",
        "```",
        "```python",
        "```python\n```",
        "```\n\n```\n",
        "``",
        "``````",
        "~~~",
        "~~~\n~~~",
        "__ot",
        "__ot ```python```",
        "__onetool\n```\n```",
        "\xa0",
    ],
)
def test_an_empty_command_is_rejected_with_a_hint(command: str) -> None:
    with pytest.raises(
        ToolError, match=r"empty\nHint: send Python code, for example ot\.tools\(\)"
    ):
        strip(command)


MILLION = 1_000_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "`" * MILLION,
        "` " * MILLION,
        "```\n" + "`" * MILLION,
        "```" + " " * MILLION + "x",
        "```" + "a " * MILLION + "(",
        "```python" * MILLION,
        "``" + "`\n" * MILLION,
        "~" * MILLION,
        "\n" * MILLION + "```",
        "__ot" + " " * MILLION + "=",
        "```\n" + " \n" * MILLION + "x",
    ],
    ids=lambda command: repr(command[:8]),
)
def test_hostile_input_takes_linear_time(command: str) -> None:
    def strip_or_reject() -> None:
        with suppress(ToolError):
            strip(command)

    assert measure_seconds(strip_or_reject, enough=5) < 5


CODE = st.text(st.sampled_from(list("ab=1 \t\n\"'#:()[]{}\\~$_é😀")), min_size=1).filter(
    lambda code: code.strip() and not code.lstrip().startswith("~")
)
CODE_WITH_FENCES = st.lists(CODE | st.sampled_from(["`", "``", "```", "~~~", "```python\n"])).map(
    "".join
)


@no_deadline
@given(CODE)
def test_random_code_without_fences_is_unchanged(code: str) -> None:
    assert strip(code) == code


@no_deadline
@given(
    CODE_WITH_FENCES,
    st.sampled_from(FENCES),
    st.sampled_from(INFO_STRINGS),
    st.sampled_from(["", "__ot ", "__ot\n"]),
)
def test_fenced_code_keeps_its_lines(code: str, fence: str, info: str, prefix: str) -> None:
    assume(code.strip(" \t\n`~"))
    head = f"{prefix}{fence}{info}\n"

    assert strip(f"{head}{code}\n{fence}\n") == "\n" * head.count("\n") + code


@no_deadline
@given(CODE, st.sampled_from(["`", "``"]))
def test_inline_code_keeps_its_lines(code: str, ticks: str) -> None:
    code = code.strip()

    assert strip(f"\n {ticks}{code}{ticks} ") == "\n" + code


@no_deadline
@given(st.integers(0, 5), st.sampled_from(["", *PREFIXES]), st.sampled_from(FENCES))
def test_a_syntax_error_names_the_line_of_the_sent_code(
    blank_lines: int, prefix: str, fence: str
) -> None:
    sent = "\n" * blank_lines + f"{prefix}\n{fence}python\nx = 1\nx = = 2\n{fence}"

    with pytest.raises(SyntaxError) as caught:
        ast.parse(strip(sent))

    assert caught.value.lineno is not None
    assert sent.split("\n")[caught.value.lineno - 1] == "x = = 2"
