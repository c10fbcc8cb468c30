"""Script headers of PEP 723, valid and invalid."""

import pytest

from onetool.sources.extensions.script_header import (
    ScriptHeader,
    extract_blocks,
    find_problem,
    parse_header,
)

# The example of the PEP, with code around it.
REFERENCE = """\
#!/usr/bin/env python
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "requests<3",
#   "rich",
# ]
# ///

import requests
"""


def make_script(*lines: str) -> str:
    return "".join(f"{line}\n" for line in ("# /// script", *lines, "# ///", "x = 1"))


def parse_data(source: str) -> dict[str, object]:
    header = parse_header(source)
    assert header is not None
    return header.data


def test_the_example_of_the_pep_is_read() -> None:
    assert parse_data(REFERENCE) == {
        "requires-python": ">=3.11",
        "dependencies": ["requests<3", "rich"],
    }


def test_line_ends_of_windows_make_no_difference() -> None:
    assert parse_data(REFERENCE.replace("\n", "\r\n")) == parse_data(REFERENCE)


@pytest.mark.parametrize(
    ("lines", "data"),
    [
        ([], {}),
        (["#"], {}),
        (["# # only a comment"], {}),
        (["#", '# a = "x"', "#", "# [tool.b]", "# c = 1"], {"a": "x", "tool": {"b": {"c": 1}}}),
        (['# a = """', "#   indented", '# """'], {"a": "  indented\n"}),
        (["# a = 2024-02-29", "# b = 0xff", "# c = [1, 2,]"], None),
    ],
)
def test_a_header_may_contain_any_toml(lines: list[str], data: dict[str, object] | None) -> None:
    if not lines:  # the PEP requires a line between the two
        assert parse_header(make_script()) is None
        return
    assert data is None or parse_data(make_script(*lines)) == data
    assert find_problem(make_script(*lines)) is None


def test_the_last_closing_line_in_a_row_of_comments_counts() -> None:
    """The PEP requires that the block may contain lines that look like its end."""
    source = make_script('# a = """', "# ///", '# """')
    assert parse_data(source) == {"a": "///\n"}


def test_other_blocks_are_ignored() -> None:
    other = "# /// pyproject\n# x = [\n# ///\n"
    assert parse_header(other) is None
    assert find_problem(other) is None
    assert parse_data(f"{other}\n{make_script('# a = 1')}") == {"a": 1}


def test_two_headers_are_rejected() -> None:
    source = f"{make_script('# a = 1')}\n{make_script('# a = 2')}"
    assert len(extract_blocks(source)) == 2
    assert parse_header(source) is None
    assert find_problem(source) == "invalid header: more than one header in the file"


@pytest.mark.parametrize("line", ["# dependencies = [", "# a = 1\n# a = 2", "# = 1", "# a = é"])
def test_a_header_that_is_not_toml_is_reported(line: str) -> None:
    assert parse_header(make_script(line)) is None
    assert str(find_problem(make_script(line))).startswith("invalid header: not valid TOML: ")


@pytest.mark.parametrize(
    "source",
    [
        "# /// script\n# a = 1\nx = 1\n",
        "# /// script\n# a = 1\n\n# ///\n",
        "# /// script\n#a = 1\n# ///\n",
        "# /// script \n# a = 1\n# ///\n",
        "#/// script\n# a = 1\n#///\n",
        "# /// script\n# a = 1",
        "# /// script",
    ],
)
def test_an_almost_valid_header_is_reported_with_the_expected_form(source: str) -> None:
    assert parse_header(source) is None
    assert "`# /// script`" in str(find_problem(source))


@pytest.mark.parametrize(
    "source", ["", "x = 1\n", "  # /// script\n  # a = 1\n  # ///\n", "# script\n# ///\n"]
)
def test_a_file_without_a_header_has_no_problem(source: str) -> None:
    assert parse_header(source) is None
    assert find_problem(source) is None


def test_a_header_can_be_written_again() -> None:
    header = parse_header(REFERENCE)
    assert header is not None
    again = parse_header(header.as_script)
    assert again == header
    assert again.digest == header.digest
    assert ScriptHeader("a = 2\n").digest != ScriptHeader("a = 1\n").digest


@pytest.mark.parametrize(
    ("text", "is_local"),
    [
        ('[tool.uv.sources]\nx = {path = "../x", editable = true}', True),
        ('[[tool.uv.sources.x]]\npath = "../x"\nmarker = "os_name == \'nt\'"', True),
        ("[tool.uv.sources]\nx = {workspace = true}", True),
        ('[tool.uv]\nfind-links = ["./wheels"]', True),
        ('[[tool.uv.index]]\nurl = "../index"', True),
        ('[[tool.uv.index]]\nname = "a"\nurl = "https://example.com/simple"', False),
        ('[tool.uv.sources]\npathlib2 = {git = "https://example.com/path"}', False),
        ('[tool.uv]\nexclude-newer = "2024-01-01T00:00:00Z"', False),
        ('dependencies = ["path"]', False),
        ("tool = 1", False),
        ("[tool]\nuv = 1", False),
        ("[tool.uv]\nsources = 1\nindex = 1", False),
        ("", False),
    ],
)
def test_a_header_with_local_files_is_detected(text: str, is_local: bool) -> None:
    assert ScriptHeader(text).uses_local_files is is_local
