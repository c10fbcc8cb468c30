"""Specification 2, snippets and projects: parameterized code, and paths inside a project."""

import json
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support import App, give, open_app, search

from onetool.runs.run_output import RunOutput

SNIPPETS: dict[str, Any] = {
    "wsq": {
        "description": "Search twice and compare",
        "params": {"q1": {}, "q2": {}, "p": {"default": "Summarise"}},
        "body": (
            "a = ws(query='{{ q1 }}')\nb = ws(query=\"{{ q2 }}\")\n['{{ p }}', a['query'],"
            " b['query']]"
        ),
    },
    "say": {"params": {"text": {}}, "body": "'{{ text }}'"},
    "quotes": {
        "params": {"v": {}},
        "body": (
            "['{{ v }}', \"{{ v }}\", '''{{ v }}''', f'{{ v }}', r'{{ v }}', {{ v }}]  # {{ v }}"
        ),
    },
    "sum": {
        "params": {"items": {}, "start": {"default": 0}},
        "body": "return sum({{ items }}, {{ start }})",
    },
    "outer": {"params": {"text": {}}, "body": "ot.snippet('say', text='{{ text }}') + '!'"},
    "again": {"body": "ot.snippet('again')"},
    "side_by_side": {"body": "ot.parallel([lambda: ot.snippet('side_by_side')])"},
    "broken": {"body": "x = 1\ny = = 2"},
    "divide": {"params": {"by": {}}, "body": "one = 1\none / {{ by }}"},
    "sets": {"body": "x = 'of the snippet'\nprint(x)"},
    "waits": {"body": "import asyncio\nawait asyncio.sleep(0, 5)"},
    "nothing": {"body": "x = 1"},
}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    real = tmp_path_factory.mktemp("real")
    (real / "readme.md").write_text("# é\n", encoding="utf-8")
    settings = {
        "aliases": {"ws": "sample.search"},
        "snippets": SNIPPETS,
        "projects": {
            "onetool": "~/projects/onetool",
            "app": "/home/ada/app",
            "list": "/srv/list",
            "a-b": "/srv/ab",
            "real": str(real),
        },
    }
    with open_app(settings, (give, search)) as app:
        yield app


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.spec("run-tool.snippet.snippet-invocation")
def test_a_snippet_is_expanded_and_run(app: App) -> None:
    output = RunOutput()
    answer = app.run("$wsq q1=AI q2=ML p=Compare", output=output)
    assert answer.blocks == ('["Compare","AI","ML"]',)
    assert output.calls == [("sample.search", "ok")] * 2


@pytest.mark.parametrize(
    "form", ["$say text={}", "```\n$say text={}\n```", "__ot $say text={}", "\n  $say   text={}\n"]
)
def test_a_snippet_may_be_used_wherever_code_may(app: App, form: str) -> None:
    assert app.value(form.format("hello")) == "hello"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("word", "word"),
        ('"two words"', "two words"),
        ("'two words'", "two words"),
        ("'it''s'", "its"),
        ("'it'\"'\"'s'", "it's"),
        ('"it\'s"', "it's"),
        ("two\\ words", "two words"),
        ("a=b=c", "a=b=c"),
        ('"a=b"', "a=b"),
        ('"\\"quoted\\""', '"quoted"'),
        ("''", ""),
        ("'a\nb'", "a\nb"),
        ("$HOME", "$HOME"),
        ("'#no comment'", "#no comment"),
        ('"say \\"hi\\" \\\\ \\n"', 'say "hi" \\ \\n'),
        ("a\\=b", "a=b"),
        ("", ""),
        ("`b`", "`b`"),
        ("été", "été"),
    ],
)
def test_values_are_quoted_like_in_a_shell(app: App, written: str, meant: str) -> None:
    assert app.value(f"$say text={written}") == meant
    assert shlex.split(f"text={written}") == [f"text={meant}"]


def test_values_may_be_on_separate_lines(app: App) -> None:
    assert json.loads(
        app.value("$wsq\nq1: what is new in AI?\nq2: 'ML'\np:\n  two\n    lines")
    ) == [
        "two\n  lines",
        "what is new in AI?",
        "ML",
    ]


@pytest.mark.parametrize(
    "command", ["$say text='never closed", "$say text=a text=b", "$say hello", "$ say text=a"]
)
def test_an_invalid_command_is_an_error_without_traceback(app: App, command: str) -> None:
    assert "$" in app.failure(command)
    assert "Traceback" not in app.failure(command)


@pytest.mark.parametrize(
    "command", ["$wsq q1=AI", "$wsq q1=a q2=b q3=c", "ot.snippet('wsq', q1='AI')"]
)
def test_unknown_and_missing_parameters_show_the_signature(app: App, command: str) -> None:
    assert "Call it as: $wsq q1=… q2=… [p=Summarise]" in app.failure(command)


@pytest.mark.parametrize("command", ["$devide by=1", "ot.snippet('devide', by=1)"])
def test_an_unknown_snippet_suggests_the_nearest(app: App, command: str) -> None:
    assert "Did you mean $divide?" in app.failure(command)


def test_a_long_name_is_not_repeated_in_the_error(app: App) -> None:
    assert len(app.failure("ot.snippet('x' * 3_000_000)")) < 1000


# --- values ---------------------------------------------------------------------------------------

HOSTILE = [
    "'",
    '"',
    "'''",
    '"""',
    "\\",
    "\\'",
    "' + str(1/0) + '",
    "'); import os; ('",
    "{1/0}",
    "{{ 7 * 7 }}",
    "\n1/0\n",
    "\r1/0",
    "\u2028",
    "a\0b",
    "# no comment\n1/0",
    "é😀",
    "\ue000",
]


@pytest.mark.parametrize("value", HOSTILE)
def test_a_value_cannot_escape_its_literal(app: App, value: str) -> None:
    code = f"values = ot.snippet('quotes', v={value!r})\n[each == {value!r} for each in values]"
    assert app.data(code) == [True] * 6


@pytest.mark.parametrize("value", HOSTILE)
def test_a_value_cannot_escape_a_command(app: App, value: str) -> None:
    assert app.value(f"$say text={shlex.quote(value)}") == value


@pytest.mark.parametrize(
    ("values", "total"),
    [("items=[1, 2]", 3), ("items=(1, 2), start=10", 13), ("items='[1,2]', start='5'", 8)],
)
def test_values_passed_by_code_keep_their_type(app: App, values: str, total: int) -> None:
    assert app.data(f"ot.snippet('sum', {values})") == total


# --- from code ------------------------------------------------------------------------------------


def test_a_snippet_may_call_another_snippet(app: App) -> None:
    assert app.value("ot.snippet('outer', text='hello')") == "hello!"
    assert app.value("ot.snippet('$say', text='hello')") == "hello"


def test_a_snippet_without_a_value_returns_none(app: App) -> None:
    assert app.value("ot.snippet('nothing')") == "None"


def test_threads_call_snippets_concurrently(app: App) -> None:
    code = "ot.parallel([lambda n=n: ot.snippet('outer', text=str(n)) for n in range(40)])"
    assert app.data(code) == [f"{n}!" for n in range(40)]


def test_a_snippet_has_its_own_namespace_and_prints_to_the_run(app: App) -> None:
    assert app.run("x = 'mine'\not.snippet('sets')\nx").blocks == ("of the snippet\n", "mine")


@pytest.mark.parametrize(
    "code", ["ot.snippet('waits')", "import asyncio\nawait asyncio.sleep(0)\not.snippet('waits')"]
)
def test_a_snippet_may_await_in_sync_and_async_code(app: App, code: str) -> None:
    assert app.value(code) == "5"


@pytest.mark.parametrize("name", ["again", "side_by_side"])
def test_recursive_snippets_are_stopped(app: App, name: str) -> None:
    assert f"snippets are nested more than 20 levels deep, the last is ${name}" in app.failure(
        f"ot.snippet({name!r})"
    )


def test_an_error_in_a_snippet_names_the_snippet_and_both_lines(app: App) -> None:
    location = "line 2: ot.snippet("
    wrong_syntax = app.failure("x = 1\not.snippet('broken')")
    assert wrong_syntax.startswith("SyntaxError: invalid syntax (<$broken>, line 2)\n")
    assert location in wrong_syntax
    raised = app.failure("x = 1\not.snippet('divide', by=0)")
    assert raised.startswith("ZeroDivisionError: division by zero (<$divide>, line 2)\n")
    assert location in raised


def test_an_error_in_a_command_names_the_line_of_the_snippet(app: App) -> None:
    assert app.failure("$divide by=0").startswith(
        "ZeroDivisionError: division by zero\n  line 2 of $divide: one / 0"
    )
    assert "line 2 of $broken: y = = 2" in app.failure("$broken")


def test_a_caught_error_leaves_no_reference_to_the_snippet(app: App) -> None:
    code = "try:\n    ot.snippet('divide', by=0)\nexcept ZeroDivisionError:\n    pass\n1 / 0"
    assert app.failure(code).startswith("ZeroDivisionError: division by zero\n  line 5: 1 / 0")


# --- projects -------------------------------------------------------------------------------------


@pytest.mark.spec("run-tool.proj.dynamic-attribute-resolution")
def test_a_project_is_an_attribute_and_a_path(app: App) -> None:
    home = app.onetool.directories.home
    assert app.data(
        "[proj.onetool, type(proj.onetool).__name__, isinstance(proj.onetool, str)]"
    ) == [
        str(home / "projects" / "onetool"),
        "ProjectPath",
        True,
    ]
    assert app.value("proj.app") == "/home/ada/app"
    assert app.data("[proj.a_b, proj.path('a-b')]") == ["/srv/ab", "/srv/ab"]


@pytest.mark.spec("run-tool.proj.function-priority")
def test_functions_take_precedence_over_projects(app: App) -> None:
    assert app.data("proj.list()") == ["a-b", "app", "list", "onetool", "real"]
    assert app.data("[proj.path('list'), proj.path(name='app')]") == ["/srv/list", "/home/ada/app"]


@pytest.mark.spec("run-tool.proj.path-operations-in-code")
def test_a_slash_joins_paths(app: App) -> None:
    code = (
        "path = proj.app / 'src' / 'main.py'\n[path, type(path).__name__, path.name, path.suffix,"
        " path.parent.name]"
    )
    assert app.data(code) == ["/home/ada/app/src/main.py", "ProjectPath", "main.py", ".py", "src"]
    assert app.value("proj.app / 'src'") == "/home/ada/app/src"


@pytest.mark.spec("run-tool.proj.error-message-for-unknown-project")
def test_an_unknown_project_lists_functions_and_projects(app: App) -> None:
    text = app.failure("proj.unknown")
    assert text.startswith(
        "AttributeError: proj has no 'unknown'. Functions: path, list. Projects: a-b, app, list, "
    )
    assert app.value("hasattr(proj, 'unknown')") == "False"


def test_without_projects_the_list_is_empty() -> None:
    with open_app() as app:
        assert app.data("proj.list()") == []
        assert "Projects: none." in app.failure("proj.app")


@pytest.mark.parametrize("part", ["..", "../other", "src/../../x", "/etc/passwd"])
def test_joining_cannot_leave_the_project(app: App, part: str) -> None:
    assert "outside the project directory '/home/ada/app'" in app.failure(f"proj.app / {part!r}")


def test_leaving_the_project_must_be_explicit(app: App) -> None:
    assert app.value("proj.app.outside('..', 'other')") == "/home/ada/other"


def test_reading_uses_the_fs_tools(app: App) -> None:
    output = RunOutput()
    assert app.run("(proj.real / 'readme.md').read_text()", output=output).blocks == ("# é\n",)
    assert output.calls == [("fs.read", "ok")]
    assert "File not found" in app.failure("(proj.real / 'missing').read_text()")
    assert app.data("[path.name for path in proj.real.iterdir()]") == ["readme.md"]
    assert app.data("[proj.real.is_dir(), (proj.real / 'x').exists()]") == [True, False]


def test_a_path_is_a_string_argument_for_tools(app: App) -> None:
    assert app.data("sample.give({'path': proj.app / 'x'})") == {"path": "/home/ada/app/x"}


def test_a_name_bound_by_code_hides_proj(app: App) -> None:
    assert app.value("proj = 42\nproj") == "42"
