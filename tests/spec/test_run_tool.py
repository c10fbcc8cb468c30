"""Specification 2, `run`: from the command that a client sends to the output that it receives."""

import ast
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from tests.extensions_support import open_app_in, write_pack
from tests.support import App, give, make_tool, open_app, search

from onetool import tool
from onetool.runs import fence_processor, runner, tool_loader
from onetool.runs.run_output import RunOutput
from onetool_child import pack_proxy


@tool("upper")
def upper(text: str) -> str:
    """A tool with a bare name."""
    return text.upper()


@tool("sample.pick")
def pick(query_info: str = "", query: str = "", quality: str = "") -> dict[str, str]:
    """Take three parameters with a common prefix."""
    given = {"query_info": query_info, "query": query, "quality": quality}
    return {name: value for name, value in given.items() if value}


@tool("other.search")
def other_search(query: str) -> str:
    """Search in another pack."""
    return f"the other one: {query}"


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    tools = (upper, give, search, pick, other_search)
    with open_app({"aliases": {"ws": "sample.search"}}, tools) as app:
        yield app


# --- fences ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(
            "```python\nx = 20\nx + 1\n```",
            marks=pytest.mark.spec("run-tool.fence.triple-backtick-with-language"),
        ),
        pytest.param(
            "```\nx = 20\nx + 1\n```",
            marks=pytest.mark.spec("run-tool.fence.triple-backtick-without-language"),
        ),
        pytest.param("`20 + 1`", marks=pytest.mark.spec("run-tool.fence.inline-backticks")),
        pytest.param("x = 20\nx + 1", marks=pytest.mark.spec("run-tool.fence.no-fences")),
    ],
)
def test_only_the_code_between_fences_is_run(app: App, command: str) -> None:
    assert app.value(command) == "21"


@pytest.mark.spec("run-tool.fence.nested-fences-preserved")
@pytest.mark.parametrize("outer", ["{}", "````python\n{}\n````", "~~~\n{}\n~~~"])
def test_fences_inside_strings_are_preserved(app: App, outer: str) -> None:
    code = 'text = """\n```python\ncode\n```\n"""\ntext'
    assert app.value(outer.format(code)) == "\n```python\ncode\n```\n"


@pytest.mark.spec("run-tool.fence.legacy-prefix-rejected")
def test_the_old_prefix_is_rejected_with_a_hint(app: App) -> None:
    text = app.failure('!onetool upper(text="hello")')
    assert "invalid syntax" in text
    assert "!onetool" in text
    assert "ot.tools()" in text


# --- one path for all code ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(
            'upper(text="hello")',
            marks=pytest.mark.spec("run-tool.execution-path.simple-function-call"),
        ),
        pytest.param(
            'word = "hel"\nfor letter in "lo":\n    word += letter\nupper(text=word)',
            marks=pytest.mark.spec("run-tool.execution-path.python-code-block"),
        ),
    ],
)
def test_a_call_and_a_block_are_executed_the_same(app: App, command: str) -> None:
    output = RunOutput()
    assert app.run(command, output=output).blocks == ("HELLO",)
    assert output.calls == [("upper", "ok")]


# --- the value ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "output"),
    [
        pytest.param(
            'sample.search(query="test")["query"]',
            "test",
            marks=pytest.mark.spec("run-tool.capture.expression-result"),
        ),
        pytest.param(
            "a = 2\nb = 3\na * b",
            "6",
            marks=pytest.mark.spec("run-tool.capture.last-expression-in-block"),
        ),
        pytest.param(
            "a = 2\nreturn a * 3\na",
            "6",
            marks=pytest.mark.spec("run-tool.capture.explicit-return"),
        ),
        pytest.param("return None", "None", marks=pytest.mark.spec("run-tool.capture.none-return")),
        pytest.param(
            "sample.give()", "None", marks=pytest.mark.spec("run-tool.capture.none-return")
        ),
        pytest.param(
            "sample.give({'a': 1, 'b': [True, None, 'é \"x\"']})",
            '{"a":1,"b":[true,null,"é \\"x\\""]}',
            marks=pytest.mark.spec("run-tool.capture.native-dict-serialization"),
        ),
        pytest.param(
            "sample.give([1, 'two', {'three': 3.0}])",
            '[1,"two",{"three":3.0}]',
            marks=pytest.mark.spec("run-tool.capture.native-list-serialization"),
        ),
        pytest.param(
            "sample.give('{\"a\": 1}\\n')",
            '{"a": 1}\n',
            marks=pytest.mark.spec("run-tool.capture.string-passthrough"),
        ),
    ],
)
def test_the_value_of_code_is_shown(app: App, code: str, output: str) -> None:
    assert app.run(code).blocks == (output,)


@pytest.mark.spec("run-tool.capture.no-return-value")
@pytest.mark.parametrize("code", ["x = 1", "def f():\n    return 1", "for x in []:\n    x"])
def test_code_without_a_value_is_reported(app: App, code: str) -> None:
    text = app.value(code)
    assert "no value" in text
    assert "None" not in text


@pytest.mark.spec("run-tool.capture.composed-tool-results")
def test_composed_results_are_one_json_object(app: App) -> None:
    output = app.value('{"health": ot.health(), "tools": ot.tools(pattern="machine", info="list")}')
    value = json.loads(output)
    assert value["health"]["registry"]["status"] == "ok"
    assert "machine.disk" in value["tools"]
    assert "\n" not in output
    assert "\\" not in output


# --- indentation ----------------------------------------------------------------------------------


@pytest.mark.spec("run-tool.indentation.already-indented-code")
@pytest.mark.parametrize("indent", ["  ", "        ", "\t"])
def test_code_that_is_indented_as_a_whole_runs(app: App, indent: str) -> None:
    code = "total = 0\nfor n in range(4):\n    total += n\ntotal"
    assert app.value("".join(f"{indent}{line}\n" for line in code.splitlines())) == "6"


@pytest.mark.spec("run-tool.indentation.mixed-indentation")
@pytest.mark.parametrize(
    "code",
    [
        "if True:\n\ta = 1\n        b = 2\na + b",
        "if True:\n    a = 1\n\tb = 2\na + b",
        "\ta = 1\n        b = 2\n\ta + b",
        "for n in range(2):\n\tif n:\n\t    a = n\n\t    b = 2\na + b",
    ],
)
def test_code_with_tabs_and_spaces_runs(app: App, code: str) -> None:
    assert app.value(code) == "3"


@pytest.mark.spec("run-tool.indentation.empty-lines")
@pytest.mark.parametrize("empty", ["\n\n", "\n   \n", "\n\t\n"])
@pytest.mark.parametrize("indent", ["", "    "])
def test_empty_lines_are_allowed(app: App, empty: str, indent: str) -> None:
    lines = ["def double(x):", "    y = x * 2", "    return y", "double(4)"]
    assert app.value(empty.join(f"{indent}{line}" for line in lines)) == "8"


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.spec("run-tool.errors.syntax-error-location")
@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("a = 1\nb = = 2", 2),
        ("```python\na = 1\n\nb = = 2\n```", 4),
        ("a = 1\nb = = 2\nreturn a", 2),
        ("    a = 1\n    b = = 2", 2),
    ],
)
def test_a_syntax_error_names_the_line_of_the_sent_code(app: App, command: str, line: int) -> None:
    text = app.failure(command)
    assert text.startswith("SyntaxError: ")
    assert f"line {line}: b = = 2" in text


@pytest.mark.spec("run-tool.errors.runtime-error-context")
def test_an_exception_is_shown_with_type_and_message(app: App) -> None:
    text = app.failure("prices = {}\nprices['tea']")
    assert text == "KeyError: 'tea'\n  line 2: prices['tea']"


@pytest.mark.spec("run-tool.errors.tool-not-found")
@pytest.mark.parametrize("command", ["serch(query='x')", "sampel.search(query='x')"])
def test_an_unknown_tool_lists_the_available_tools(app: App, command: str) -> None:
    text = app.failure(command)
    tools = [name for name in app.onetool.bus.list_tools() if not name.startswith("ot.")]
    assert not [name for name in tools if name not in text]
    assert "ot.help()" in text


@pytest.mark.spec("run-tool.errors.argument-error")
@pytest.mark.parametrize(
    "call", ["search()", "search(query='x', limit=3)", "search(query=3)", "search('x', 1, 2)"]
)
def test_invalid_arguments_show_the_signature(app: App, call: str) -> None:
    assert "sample.search(query: str, count: int = 5) -> dict[str, Any]" in app.failure(
        f"sample.{call}"
    )


# --- packs and aliases ----------------------------------------------------------------------------


@pytest.mark.spec("run-tool.pack.simple-pack-call")
def test_a_tool_is_called_through_its_pack(app: App) -> None:
    assert app.value('sample.search(query="test")') == '{"query":"test","count":5}'


@pytest.mark.spec("run-tool.pack.unknown-pack")
def test_an_unknown_pack_lists_the_packs(app: App) -> None:
    text = app.failure("unknown.func()")
    assert "'unknown'" in text
    assert "Packs: fs, http, json, llm, machine, ot, other, sample, test, yaml." in text


@pytest.mark.spec("run-tool.pack.function-not-in-pack")
def test_an_unknown_function_lists_its_pack(app: App) -> None:
    text = app.failure("sample.nonexistent()")
    assert "'sample.nonexistent'" in text
    assert "sample has: give, pick, search." in text


@pytest.mark.spec("run-tool.pack.function-not-in-pack")
def test_an_unknown_function_lists_all_functions_of_its_pack() -> None:
    names = [f"big.tool_{number}" for number in range(60)]
    with open_app({}, map(make_tool, names)) as app:
        for text in (app.failure("big.tol_59()"), str(app.call("big.tol_59").error)):
            assert text.index("Did you mean big.tool_59") < text.index("big has: tool_0, tool_1, ")
            assert not [name for name in names if f" {name.removeprefix('big.')}" not in text]


@pytest.mark.spec("run-tool.pack.same-function-name-in-different-packs")
def test_tools_with_the_same_name_in_two_packs_are_distinct(app: App) -> None:
    assert app.value("other.search(query='a')") == "the other one: a"
    assert app.data("sample.search(query='a')") == {"query": "a", "count": 5}


@pytest.mark.spec("run-tool.alias.simple-alias")
def test_an_alias_calls_its_target(app: App) -> None:
    output = RunOutput()
    assert app.run('ws(query="test")', output=output).blocks == ('{"query":"test","count":5}',)
    assert output.calls == [("sample.search", "ok")]


@pytest.mark.spec("run-tool.alias.unknown-alias-passthrough")
def test_a_name_that_is_not_an_alias_is_called_unchanged(app: App) -> None:
    assert app.failure("unknown(arg=1)").startswith("NameError: name 'unknown' is not defined")
    assert app.value("def unknown(arg):\n    return arg + 1\nunknown(arg=1)") == "2"


# --- modules --------------------------------------------------------------------------------------


@pytest.mark.spec("run-tool.modules.fence-processing-isolation")
def test_fences_are_removed_in_one_module(app: App) -> None:
    command = "__ot\n```python\n6 * 7\n```"
    assert app.value(command) == app.value(fence_processor.strip(command)) == "42"
    assert not [text for text in _list_strings(runner) if "```" in text or "~~~" in text]


@pytest.mark.spec("run-tool.modules.tool-loading-isolation")
def test_tools_are_loaded_and_cached_in_one_module() -> None:
    with open_app() as app:
        assert app.onetool.bus.list_tools() == sorted(
            tool.name for tool in tool_loader.load_builtin_tools()
        )
    once, again = (
        {tool.name: tool.backend for tool in tool_loader.load_builtin_tools()} for _ in range(2)
    )
    assert all(vars(once[name])["function"] is vars(again[name])["function"] for name in once)


@pytest.mark.spec("run-tool.modules.pack-proxy-isolation")
def test_dotted_names_are_resolved_in_one_module(app: App) -> None:
    modules = app.data(
        "[type(sample).__module__, type(sample.search).__module__, type(ws).__module__]"
    )
    assert modules == [pack_proxy.__name__] * 3


@pytest.mark.spec("run-tool.modules.runner-focused-on-orchestration")
def test_the_runner_imports_the_parts_that_it_orchestrates() -> None:
    tree = ast.parse(inspect.getsource(runner))
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert {"explain", "fence_processor", "tool_loader", "Presenter", "CellSource"} <= imported
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    assert defined == {"Runner", "_Host"}
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert not called & {"exec", "eval", "compile", "ast.parse"}


def _list_strings(module: ModuleType) -> Iterator[str]:
    tree = ast.parse(inspect.getsource(module))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


# --- abbreviated parameters -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "value"),
    [
        pytest.param(
            "sample.search(query='t')",
            {"query": "t", "count": 5},
            marks=pytest.mark.spec("run-tool.prefix.exact-parameter-match"),
        ),
        pytest.param(
            "sample.pick(query='t')",
            {"query": "t"},
            marks=pytest.mark.spec("run-tool.prefix.exact-parameter-match"),
        ),
        pytest.param(
            "sample.search(q='t')",
            {"query": "t", "count": 5},
            marks=pytest.mark.spec("run-tool.prefix.single-prefix-match"),
        ),
        pytest.param(
            "sample.pick(q='t')",
            {"query_info": "t"},
            marks=pytest.mark.spec("run-tool.prefix.multiple-prefix-matches-with-first-wins"),
        ),
        pytest.param(
            "sample.pick(qual='t')",
            {"quality": "t"},
            marks=pytest.mark.spec("run-tool.prefix.partial-prefix-match"),
        ),
        pytest.param(
            "sample.search(query='t', c=7)",
            {"query": "t", "count": 7},
            marks=pytest.mark.spec("run-tool.prefix.mixed-exact-and-prefix-parameters"),
        ),
    ],
)
def test_an_abbreviated_parameter_matches_the_first_prefix(
    app: App, call: str, value: object
) -> None:
    assert app.data(call) == value


@pytest.mark.spec("run-tool.prefix.no-match-passthrough")
def test_a_name_without_a_matching_parameter_is_an_error(app: App) -> None:
    caught = (
        "try:\n    sample.search(query='t', xyz='t')\nexcept TypeError as error:\n    text ="
        " str(error)\ntext"
    )
    assert "'xyz'" in app.value(caught)


@pytest.mark.spec("run-tool.prefix-scope.internal-tool-prefix-matching")
def test_abbreviations_work_for_built_in_tools(app: App) -> None:
    assert app.data("machine.memory(u='GiB')")["unit"] == "GiB"


@pytest.mark.spec("run-tool.prefix-scope.ot-pack-tool-prefix-matching")
def test_abbreviations_work_for_the_ot_pack(app: App) -> None:
    assert app.data("ot.tools(p='machine.d', i='list')") == ["machine.disk"]
    assert app.value("ot.help(q='machine.disk')").startswith("# machine.disk")


@pytest.mark.slow
@pytest.mark.spec("run-tool.prefix-scope.extension-tool-prefix-matching")
def test_abbreviations_work_for_extension_tools(tmp_path: Path) -> None:
    write_pack(
        tmp_path / ".onetool" / "tools",
        "notes",
        "def find(query, query_info='', /, *, limit=5): return locals()",
    )
    with open_app_in(tmp_path) as app:
        assert app.data("notes.find(q='a', l=2)") == {"query": "a", "query_info": "", "limit": 2}
        assert app.data("notes.find(query_i='b', query='a')") == {
            "query": "a",
            "query_info": "b",
            "limit": 5,
        }
        assert "got multiple values for 'query'" in app.failure("notes.find('a', q='b')")
        assert "'xyz'" in app.failure("notes.find(q='a', xyz=1)")


# --- formats --------------------------------------------------------------------------------------

VALUE = {"a": [1, {"b": None}], "c": "x y", "d": {}}


@pytest.mark.parametrize(
    ("chosen", "output"),
    [
        pytest.param(
            "",
            '{"a":[1,{"b":null}],"c":"x y","d":{}}',
            marks=pytest.mark.spec("run-tool.format.default-format-compact-json"),
        ),
        pytest.param(
            "__format__ = 'json'",
            '{"a":[1,{"b":null}],"c":"x y","d":{}}',
            marks=pytest.mark.spec("run-tool.format.explicit-json-format"),
        ),
        pytest.param(
            "__format__ = 'json_h'",
            json.dumps(VALUE, indent=2),
            marks=pytest.mark.spec("run-tool.format.human-readable-json-format"),
        ),
        pytest.param(
            "__format__ = 'yml'",
            "{a: [1, {b: null}], c: x y, d: {}}",
            marks=pytest.mark.spec("run-tool.format.yaml-flow-format"),
        ),
        pytest.param(
            "__format__ = 'yml_h'",
            "a:\n  - 1\n  - b: null\nc: x y\nd: {}",
            marks=pytest.mark.spec("run-tool.format.human-readable-yaml-format"),
        ),
        pytest.param(
            "__format__ = 'raw'", str(VALUE), marks=pytest.mark.spec("run-tool.format.raw-format")
        ),
        pytest.param(
            "__format__ = 'xml'",
            '{"a":[1,{"b":null}],"c":"x y","d":{}}',
            marks=pytest.mark.spec("run-tool.format.invalid-format-ignored"),
        ),
        pytest.param(
            "__format__ = ['json_h']",
            '{"a":[1,{"b":null}],"c":"x y","d":{}}',
            marks=pytest.mark.spec("run-tool.format.invalid-format-ignored"),
        ),
    ],
)
def test_the_format_determines_the_output(app: App, chosen: str, output: str) -> None:
    assert app.value(f"{chosen}\n{VALUE!r}") == output


@pytest.mark.spec("run-tool.format.yaml-flow-format", "run-tool.format.human-readable-yaml-format")
@pytest.mark.parametrize("chosen", ["yml", "yml_h"])
def test_yaml_loads_back_to_the_same_data(app: App, chosen: str) -> None:
    assert yaml.safe_load(app.value(f"__format__ = {chosen!r}\n{VALUE!r}")) == VALUE


@pytest.mark.spec("run-tool.format.raw-format")
def test_raw_is_the_str_of_any_object(app: App) -> None:
    assert app.value("__format__ = 'raw'\n({1}, 2.0, b'x')") == "({1}, 2.0, b'x')"


@pytest.mark.spec("run-tool.format.string-passthrough-unchanged")
@pytest.mark.parametrize("chosen", ["json", "json_h", "yml", "yml_h", "raw", "xml"])
def test_strings_are_returned_unchanged(app: App, chosen: str) -> None:
    assert app.value(f"__format__ = {chosen!r}\n'true: \"é\"\\n'") == 'true: "é"\n'
