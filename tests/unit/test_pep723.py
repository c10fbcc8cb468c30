"""The header of a script as PEP 723 defines it, and what people write instead."""

import pytest

from onetool.extensions.pep723 import Header, blocks, find_mistake, parse_header

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


def script(*lines: str) -> str:
    return "".join(f"{line}\n" for line in ("# /// script", *lines, "# ///", "x = 1"))


def data_of(source: str) -> dict[str, object]:
    header = parse_header(source)
    assert header is not None
    return header.data


def test_the_example_of_the_pep_is_read() -> None:
    assert data_of(REFERENCE) == {"requires-python": ">=3.11", "dependencies": ["requests<3", "rich"]}


def test_line_ends_of_windows_make_no_difference() -> None:
    assert data_of(REFERENCE.replace("\n", "\r\n")) == data_of(REFERENCE)


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
def test_all_of_toml_may_stand_in_a_header(lines: list[str], data: dict[str, object] | None) -> None:
    if not lines:  # the PEP wants a line between the two
        assert parse_header(script()) is None
        return
    assert data is None or data_of(script(*lines)) == data
    assert find_mistake(script(*lines)) is None


def test_the_last_closing_line_in_a_row_of_comments_counts() -> None:
    """As the PEP wants it: the block may hold lines that look like its end."""
    source = script('# a = """', "# ///", '# """')
    assert data_of(source) == {"a": "///\n"}


def test_other_blocks_are_not_ours() -> None:
    other = "# /// pyproject\n# x = [\n# ///\n"
    assert parse_header(other) is None
    assert find_mistake(other) is None
    assert data_of(f"{other}\n{script('# a = 1')}") == {"a": 1}


def test_two_headers_are_none() -> None:
    source = f"{script('# a = 1')}\n{script('# a = 2')}"
    assert len(blocks(source)) == 2
    assert parse_header(source) is None
    assert find_mistake(source) == "invalid header: more than one header in the file"


@pytest.mark.parametrize("line", ["# dependencies = [", "# a = 1\n# a = 2", "# = 1", "# a = é"])
def test_a_header_that_is_no_toml_is_none_and_says_why(line: str) -> None:
    assert parse_header(script(line)) is None
    assert str(find_mistake(script(line))).startswith("invalid header: not valid TOML: ")


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
def test_what_looks_like_a_header_and_is_none_says_how_one_looks(source: str) -> None:
    assert parse_header(source) is None
    assert "`# /// script`" in str(find_mistake(source))


@pytest.mark.parametrize("source", ["", "x = 1\n", "  # /// script\n  # a = 1\n  # ///\n", "# script\n# ///\n"])
def test_what_is_no_header_is_no_mistake(source: str) -> None:
    assert parse_header(source) is None
    assert find_mistake(source) is None


def test_a_header_can_be_written_again() -> None:
    header = parse_header(REFERENCE)
    assert header is not None
    again = parse_header(header.as_script)
    assert again == header
    assert again.digest == header.digest
    assert Header("a = 2\n").digest != Header("a = 1\n").digest


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
def test_a_header_knows_whether_it_means_the_same_in_another_folder(text: str, is_local: bool) -> None:
    assert Header(text).names_local_files is is_local
