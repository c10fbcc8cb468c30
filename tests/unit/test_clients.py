"""Client configurations: found, read and extended while preserving every other byte."""

import errno
import json
import os
import stat
import tomllib
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tests.support import measure_seconds

from onetool.errors import ConfigError, StorageError, ToolError
from onetool.server.http.errors import ApiError
from onetool.settings.clients import client_servers, json_edit, text_files, toml_edit, yaml_edit
from onetool.settings.clients.catalog import CLIENTS, Machine, OneToolCommand, find_start_command
from onetool.settings.clients.client_servers import ClientServers, is_ours
from onetool.settings.clients.server_import import ImportTarget, ServerImport, import_servers
from onetool.settings.clients.text_files import Edit, apply_edits
from onetool.util import yaml_loader
from onetool.util.secret_finder import SECRET_VALUE, find_secrets, looks_secret

PATH = ("mcpServers", "onetool")
ENTRY = {"command": "C:\\Program Files\\onetool.exe", "args": ["a b", "ü"], "env": {"OT_CWD": "/x"}}
CURRENT = ("command", "args")


def merge_json(text: str, entry: Mapping[str, Any] = ENTRY) -> str:
    return apply_edits(text, json_edit.edits_for(text, "mcp.json", PATH, entry, CURRENT))


def parse_json(text: str) -> Any:
    return json_edit.parse(text, "mcp.json")


def expected_data(old: Any, entry: Mapping[str, Any] = ENTRY) -> Any:
    return {**(old or {}), "mcpServers": {**(old or {}).get("mcpServers", {}), "onetool": entry}}


def remove_edits(text: str, edits: list[Edit]) -> str:
    """Return the edited text without the inserted text."""
    kept, at, shift = [], 0, 0
    for edit in sorted(edits, key=lambda edit: edit.start):
        assert edit.start == edit.end
        kept.append(text[at : edit.start + shift])
        at = edit.start + shift + len(edit.text)
        shift += len(edit.text)
    return "".join([*kept, text[at:]])


# --- JSON with comments ---------------------------------------------------------------------------

TRIVIA = st.sampled_from(
    [
        "",
        "",
        " ",
        "\n",
        "\t",
        "\r\n",
        "\n    ",
        "// c, }\n",
        '/* "a": { */',
        " /* é\n*/ ",
        "//\n//\n",
        "\r",
    ]
)
KEYS = st.sampled_from(["a", "mcpServers", "é", "//", 'with \\" quote'])


@st.composite
def json_texts(draw: st.DrawFn, depth: int = 0) -> str:
    """Draw a JSON value with comments in every gap."""
    kind = draw(st.sampled_from(["{", "[", ""])) if 0 < depth < 4 else "{" if depth == 0 else ""
    if not kind:
        return draw(
            st.sampled_from(['"x, // }"', "1", "-0.5e3", "true", "null", '""', '"\\u00e9\\n"'])
        )

    def gap() -> str:
        return draw(TRIVIA)

    parts = [draw(json_texts(depth + 1)) for _ in range(draw(st.integers(0, 3)))]
    if kind == "{":
        keys = draw(st.lists(KEYS, min_size=len(parts), max_size=len(parts), unique=True))
        values = [
            "{}" if key == "mcpServers" and part[0] != "{" else part
            for key, part in zip(keys, parts, strict=True)
        ]
        parts = [f'"{key}"{gap()}:{gap()}{value}' for key, value in zip(keys, values, strict=True)]
    inner = ",".join(f"{gap()}{part}{gap()}" for part in parts)
    comma = draw(st.sampled_from(["", ","])) if parts else ""
    return f"{kind}{inner}{comma}{gap()}{'}' if kind == '{' else ']'}"


@pytest.mark.slow
@settings(max_examples=300)
@given(text=json_texts(), before=TRIVIA, after=TRIVIA, mark=st.sampled_from(["", "\ufeff"]))
def test_an_entry_is_added_to_any_json_and_nothing_else_changes(
    text: str, before: str, after: str, mark: str
) -> None:
    whole = mark + before + text + after
    old = parse_json(whole)
    edits = json_edit.edits_for(whole, "mcp.json", PATH, ENTRY, CURRENT)
    new = apply_edits(whole, edits)
    assert parse_json(new) == expected_data(old)
    assert remove_edits(new, edits) == whole
    assert merge_json(new) == new


@pytest.mark.slow
@given(text=json_texts())
def test_strict_json_is_parsed_like_in_python(text: str) -> None:
    strict = json.dumps(parse_json(text))
    assert parse_json(strict) == json.loads(strict)


@pytest.mark.slow
@given(
    text=json_texts(),
    entry=st.fixed_dictionaries({"command": st.text(), "args": st.lists(st.text())}),
)
def test_a_stale_entry_is_updated_and_keeps_its_other_keys(
    text: str, entry: dict[str, Any]
) -> None:
    old = merge_json(text)
    new = merge_json(old, entry)
    assert parse_json(new) == expected_data(parse_json(text), {**ENTRY, **entry})
    assert merge_json(new, entry) == new


@pytest.mark.parametrize("text", ["", "\ufeff", " \n", "// only a comment", "/* one */\r\n"])
def test_an_empty_file_gets_an_object(text: str) -> None:
    assert merge_json(text).startswith(text)
    assert parse_json(merge_json(text)) == expected_data(None)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "{}",
            (
                '{\n  "mcpServers": {\n    "onetool": {\n      "command": "x",\n      "args": []\n '
                "   }\n  }\n}"
            ),
        ),
        ('{"a":1}', '{"a":1,"mcpServers":{"onetool":{"command":"x","args":[]}}}'),
        (
            '{\r\n\t"mcpServers": {\r\n\t\t"a": {} // about a\r\n\t}\r\n}\r\n',
            (
                '{\r\n\t"mcpServers": {\r\n\t\t"a": {}, // about a\r\n\t\t"onetool":'
                ' {\r\n\t\t\t"command": "x",\r\n\t\t\t"args": []\r\n\t\t}\r\n\t}\r\n}\r\n'
            ),
        ),
        (
            (
                '{\n    "mcpServers": {\n        "a": {}, /* a */ // b\n        // "old": {},\n   '
                " },\n}\n"
            ),
            (
                '{\n    "mcpServers": {\n        "a": {}, /* a */ // b\n        "onetool": {\n     '
                '       "command": "x",\n            "args": []\n        },\n        // "old":'
                " {},\n    },\n}\n"
            ),
        ),
        (
            '{ "mcpServers": { // none yet\n  } }',
            (
                '{ "mcpServers": { // none yet\n  "onetool": {\n    "command": "x",\n    "args":'
                " []\n  }\n  } }"
            ),
        ),
    ],
)
def test_the_entry_follows_the_formatting_of_the_file(old: str, new: str) -> None:
    assert merge_json(old, {"command": "x", "args": []}) == new


def test_lists_of_arguments_are_written_on_one_line() -> None:
    assert '"args": ["a b", "ü"]' in merge_json("{}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{\n"a": 1\n"b": 2}', "mcp.json:3: is not valid JSON: Expecting ',' delimiter"),
        (
            "{\n\n'a': 1}",
            "mcp.json:3: is not valid JSON: Expecting property name enclosed in double quotes",
        ),
        ('{"a" 1}', "Expecting ':' delimiter"),
        ('{"a": }', "Expecting value"),
        ('{"a": 1', "Expecting ',' delimiter"),
        ('{"a": 1} x', "Extra data"),
        ("{\n/* never closed", "mcp.json:2: is not valid JSON: unterminated comment"),
        ('{"a": "tab\there"}', "Invalid control character"),
        ('{"a": "\\x"}', "Invalid"),
        ('{"a": 012}', "Expecting ',' delimiter"),
        ('{"a": 1.}', "Expecting ',' delimiter"),
        ('{"a": +1}', "Expecting value"),
        ('{"a": NaN}', "mcp.json: is not valid JSON"),
        ("[" * 300 + "]" * 300, "nested too deep"),
        ("[" * 3000 + "]" * 3000, "nested too deep"),
        ("[,]", "Expecting value"),
        ("/*/", "unterminated comment"),
        ("[1]", "must be an object"),
        ('{"mcpServers": []}', "mcp.json:1: mcpServers must be an object"),
        ('{"mcpServers": null}', "must be an object"),
        ('{"mcpServers": {"onetool": 3}}', "mcpServers.onetool must be an object"),
        ('{"mcpServers": {},\n"mcpServers": {}}', "lines 1 and 2"),
        ('{"mcpServers": {"onetool": {},\n\n"onetool": {}}}', "lines 1 and 3"),
    ],
)
def test_json_that_cannot_be_extended_is_rejected_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        merge_json(text)
    assert message in str(caught.value)


@pytest.mark.slow
def test_a_huge_file_is_edited_in_seconds() -> None:
    history = [{"display": f'{number} \\ " é' * 5, "at": number} for number in range(20_000)]
    text = json.dumps({"history": history, "mcpServers": {"a": {}}}, indent=1)
    texts: list[str] = []
    assert measure_seconds(lambda: texts.append(merge_json(text)), enough=20) < 20
    assert '"onetool"' in texts[0]


# --- TOML -----------------------------------------------------------------------------------------

TOML_PATH = ("mcp_servers", "onetool")
TOML_LINES = st.lists(
    st.sampled_from([
        "# [mcp_servers.onetool]", "", "model = 'x' # why", '[mcp_servers."a b"]\ncommand = "c"',
        "[mcp_servers.a.env]\nX = '''\n[mcp_servers.onetool]\ncommand = 1\n'''", "[[lists]]\na = [\n  1, # one\n]",
        "[tools]\n\tweb = true", "[ mcp_servers . é ]".replace("é", '"é"'),
    ]),
    unique=True,
)  # fmt: skip


def merge_toml(text: str, entry: Mapping[str, Any] = ENTRY) -> str:
    return toml_edit.update(text, "config.toml", TOML_PATH, entry, CURRENT)


@given(
    lines=TOML_LINES,
    ends=st.sampled_from(["\n", "\r\n"]),
    last=st.booleans(),
    mark=st.sampled_from(["", "\ufeff"]),
)
def test_a_table_is_added_to_any_toml_and_nothing_else_changes(
    lines: list[str], ends: str, last: bool, mark: str
) -> None:
    ordered = sorted(lines, key=lambda line: line.startswith("["))
    text = mark + ("\n".join(ordered) + "\n" * last).replace("\n", ends)
    old = toml_edit.parse(text, "config.toml")
    new = merge_toml(text)
    assert new.startswith(text)
    servers = {**old.get("mcp_servers", {}), "onetool": ENTRY}
    assert toml_edit.parse(new, "config.toml") == {**old, "mcp_servers": servers}
    assert merge_toml(new) == new
    assert "\n" not in new.replace(ends, "") or ends not in text


@pytest.mark.parametrize(
    "old",
    [
        '[mcp_servers.onetool]\ncommand = "old" # why\nargs = ["x"]\nenabled = true\n',
        '[mcp_servers.onetool]\r\nargs = [\r\n  "x", # one\r\n  "y",\r\n]\r\ncommand = "old"\r\n',
        (
            "a = '''\n[mcp_servers.onetool]\ncommand = 'old'\n'''\n[mcp_servers.'onetool'] #"
            " ours\ncommand = 'old'"
        ),
        '[mcp_servers.onetool]\n[mcp_servers.onetool.env]\ncommand = "not this"\n',
        "[mcp_servers]\nonetool = {command = 'x', url = 'y'} # why\n",
        "\ufeffmcp_servers.onetool.command = 'x'\n\n[mcp_servers.onetool.env]\nA = '1'\n",
    ],
)
def test_a_stale_table_is_updated(old: str) -> None:
    before = toml_edit.parse(old, "c")
    new = merge_toml(old)
    entry = {**before["mcp_servers"]["onetool"], "command": ENTRY["command"], "args": ENTRY["args"]}
    assert toml_edit.parse(new, "c") == {**before, "mcp_servers": {"onetool": entry}}
    assert merge_toml(new) == new
    for comment in ("# why", "# ours"):
        assert (comment in old) == (comment in new)


def test_only_the_stale_line_of_a_file_changes() -> None:
    before = (
        "x = 0x1F # hex\r\n'odd key'=1\r\n\r\n[mcp_servers . onetool]  # ours\r\n\tcommand='old'\t#"
        " why\r\n"
    )
    after = "\r\n# about z\r\n[z]\r\na=[ 1,2 , ]\r\n[[l]]\r\n[mcp_servers.b]\r\nc='''\r\nd\r\n'''"
    new = toml_edit.update(
        before + after, "config.toml", TOML_PATH, {"command": "new", "args": []}, CURRENT
    )
    assert new == before.replace("'old'", '"new"') + after


@pytest.mark.nightly
@pytest.mark.slow
def test_a_huge_toml_file_is_edited_in_seconds() -> None:
    text = "".join(
        f'[projects."/home/ada/{number}"]\ntrust_level = "trusted"\n' for number in range(60_000)
    )
    texts: list[str] = []
    assert measure_seconds(lambda: texts.append(merge_toml(text)), enough=20) < 20
    assert texts[0].startswith(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = 1\nb = \n", "config.toml:2: is not valid TOML"),
        ("a = '''\n", "config.toml:2: is not valid TOML"),
        ("mcp_servers = {a = {command = 'x'}}", "edit it manually"),
        ("mcp_servers = 3", "edit it manually"),
        ("[[mcp_servers]]", "edit it manually"),
        (
            "[mcp_servers.onetool]\ncommand = 'x'\n" + "#" * toml_edit.MAX_EDITED_CHARACTERS,
            "edit it manually",
        ),
        ("a = 1\na = 2\n", "config.toml:2: is not valid TOML"),
        ("a = " + "[" * 3000 + "]" * 3000, "nested too deep"),
    ],
)
def test_toml_that_cannot_be_extended_is_rejected(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        merge_toml(text)
    assert message in str(caught.value)


# --- YAML -----------------------------------------------------------------------------------------

SERVERS = {
    "git hub": {
        "command": "npx",
        "args": ["-y", "a: b", "#no", "", "true", "1"],
        "env": {"X": "\x7f\u2028😀'\""},
    }
}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


def add_servers(text: str, servers: Mapping[str, Any]) -> str:
    old = yaml_edit.parse_mapping(text, "onetool.yaml")
    return yaml_edit.update(
        text, "onetool.yaml", {**old, "servers": {**(old.get("servers") or {}), **servers}}
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing yet\n",
        "aliases: {}\n",
        "aliases: {}",
        "servers:\naliases: {a: b.c}\n",
        "servers:  # ours\n  # none\naliases: {}\n",
        "servers: {}   # none\n\n# next\naliases: {}\n",
        "servers: ~\n",
        "servers: {a: {command: x}}\nb: 1\n".replace("b: 1\n", "aliases: {}\n"),
        "servers: {a: {command: x},}\n",
        "servers:\n  a:\n    command: x  # why\n\n  # the end\naliases: {}\n",
        "servers:\n    a:\n        command: x\n        args:\n        - one\n        - two # last",
        "servers:\r\n  a:\r\n    command: |\r\n      x\r\n      y\r\naliases: {}\r\n",
        "servers:\n  a: {command: x}\n",
        "\ufeffservers:\n  a: {command: 'x'}\n",
        "servers:\n  a:\n    command:\n",
        "servers:\n  a: &a {command: x}\n  b: *a\n",
        "---\nservers:\n  a: {command: x}\n",
    ],
)
def test_servers_are_added_to_yaml_and_everything_else_is_kept(text: str) -> None:
    old = yaml_edit.parse_mapping(text, "onetool.yaml")
    new = add_servers(text, SERVERS)
    assert yaml_loader.read(new, "x").data == {
        **old,
        "servers": {**(old.get("servers") or {}), **SERVERS},
    }
    comments = [line[line.index("#") :] for line in text.splitlines() if "#" in line]
    assert all(comment in new for comment in comments)
    lines = iter(new.splitlines())
    assert all(
        line in lines for line in text.splitlines() if "servers" not in line
    )  # in the same order
    assert ("\r\n" in text) == ("\r\n" in new)
    more = add_servers(new, {"second": {"url": "https://x/?a=b#c"}})
    assert yaml_loader.read(more, "x").data["servers"]["second"] == {"url": "https://x/?a=b#c"}


@pytest.mark.slow
@given(secrets=st.dictionaries(st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True), TEXTS))
def test_any_string_survives_yaml(secrets: dict[str, str]) -> None:
    text = yaml_edit.update("# mine\nold: x\n", "secrets.yaml", {"old": "x", **secrets})
    assert yaml_loader.read(text, "x").data == {"old": "x", **secrets}
    assert text.startswith("# mine\n")


@pytest.mark.parametrize(
    "text", ["{servers: {}, aliases: {}}\n", "{aliases: {}}\n", "a: 1\n...\n", "- 1\n", "a: [\n"]
)
def test_yaml_that_cannot_be_extended_is_rejected_or_extended_correctly(text: str) -> None:
    try:
        new = add_servers(text, SERVERS)
    except ConfigError as error:
        assert "onetool.yaml" in str(error)  # noqa: PT017 - both outcomes are valid and checked
    else:
        assert yaml_loader.read(new, "x").data["servers"] == SERVERS


# --- files ----------------------------------------------------------------------------------------


def test_a_changed_file_keeps_its_mode_and_gets_numbered_backups(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_bytes(b"one\r\n")
    file.chmod(0o640)
    backups = [
        text_files.write(text_files.read(file), text) for text in ("two\r\n", "three", "four")
    ]
    assert [backup and backup.name for backup in backups] == [
        "mcp.json.bak",
        "mcp.json.bak.1",
        "mcp.json.bak.2",
    ]
    assert [backup and backup.read_bytes() for backup in backups] == [
        b"one\r\n",
        b"two\r\n",
        b"three",
    ]
    assert file.read_bytes() == b"four"
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o640}


def test_a_new_file_is_created_with_its_directories(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b" / "mcp.json"
    assert text_files.write(text_files.read(file), "x") is None
    assert [path.name for path in file.parent.iterdir()] == ["mcp.json"]


def test_a_link_is_kept_and_its_target_is_written(tmp_path: Path) -> None:
    real, link = tmp_path / "dotfiles" / "mcp.json", tmp_path / "mcp.json"
    real.parent.mkdir()
    real.write_text("old")
    link.symlink_to(real)
    backup = text_files.write(text_files.read(link), "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert backup == tmp_path / "mcp.json.bak"
    assert backup.read_text() == "old"
    assert not backup.is_symlink()


def test_the_missing_target_of_a_link_is_created(tmp_path: Path) -> None:
    link = tmp_path / "mcp.json"
    link.symlink_to(tmp_path / "later" / "real.json")
    text_files.write(text_files.read(link), "new")
    assert (tmp_path / "later" / "real.json").read_text() == "new"
    assert link.is_symlink()


def test_a_file_changed_by_another_program_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text("read")
    before = text_files.read(file)
    file.write_text("written by the client")
    with pytest.raises(ToolError, match="changed by another program"):
        text_files.write(before, "ours")
    assert file.read_text() == "written by the client"
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_created_by_another_program_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    before = text_files.read(file)
    file.write_text("")
    with pytest.raises(ToolError, match="changed by another program"):
        text_files.write(before, "ours")
    assert file.read_text() == ""


def test_a_read_only_file_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text("x")
    file.chmod(0o444)
    with pytest.raises(ToolError, match="is read-only"):
        text_files.write(text_files.read(file), "ours")
    assert list(tmp_path.iterdir()) == [file]


def test_secrets_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "secrets.yaml"
    file.write_text("A: b\n")
    file.chmod(0o644)
    assert (
        text_files.write(text_files.read(file), "A: c\n", mode=text_files.OWNER_ONLY, keep=False)
        is None
    )
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("keep", [True, False])
def test_a_full_disk_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    def fail(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    file = tmp_path / "secrets.yaml"
    file.write_text("A: b\n", encoding="utf-8")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match="nothing was changed") as caught:
        text_files.write(text_files.read(file), "A: c\n", keep=keep)
    assert [each.read_text(encoding="utf-8") for each in tmp_path.iterdir()] == ["A: b\n"]
    assert ApiError.from_error(caught.value).status == HTTPStatus.INSUFFICIENT_STORAGE


def test_a_file_that_is_not_text_is_rejected(tmp_path: Path) -> None:
    latin = tmp_path / "latin.json"
    latin.write_bytes('{\n"a": "é"}'.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"latin\.json:2: not valid UTF-8"):
        text_files.read(latin)
    with pytest.raises(ConfigError, match="not a file"):
        text_files.read(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="not a file"):
        text_files.read(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ConfigError, match="cannot read"):
        text_files.read(tmp_path / "loop")


def test_a_diff_hides_secrets_and_truncates_long_lines(tmp_path: Path) -> None:
    before = text_files.TextFile(tmp_path / "x.json", b"", 'a\n"KEY": "hidden value"\nb\n')
    output = text_files.diff(
        before, before.text + "c\n" + "d" * 5000, lambda text: text.replace("hidden value", "***")
    )
    assert "hidden" not in output
    assert "+c\n+... a line of 5,000 characters" in output


@pytest.mark.slow
@given(old=st.lists(st.sampled_from("abc")), new=st.lists(st.sampled_from("abc")))
def test_a_diff_is_a_valid_unified_diff(old: list[str], new: list[str]) -> None:
    output = text_files.diff(
        text_files.TextFile(Path("x"), b"", "\n".join(old)), "\n".join(new)
    ).splitlines()
    assert [line[1:] for line in output[2:] if line[0] == "+"].count("a") >= new.count(
        "a"
    ) - old.count("a")
    for hunk in (line.split() for line in output if line.startswith("@@")):
        start, size = (int(number) for number in (hunk[2][1:] + ",1").split(",")[:2])
        at = output.index(" ".join(hunk)) + 1
        body = [line[1:] for line in output[at:] if line[0] in "+ "]
        assert body[:size] == new[start - 1 : start - 1 + size] if size else True


def test_a_diff_of_huge_files_is_fast(tmp_path: Path) -> None:
    text = "\n".join(["{", "}"] * 300_000)
    outputs: list[str] = []

    def compare() -> None:
        before = text_files.TextFile(tmp_path / "x", b"", text)
        outputs.append(text_files.diff(before, text.replace("}\n{", "}\nnew\n{", 1)))

    assert measure_seconds(compare, enough=5) < 5
    assert "\n+new\n" in outputs[0]
    assert len(outputs[0].splitlines()) < 20


# --- locations, and the command that starts OneTool -----------------------------------------------


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        ("linux", ".config/Code/User/mcp.json"),
        ("darwin", "Library/Application Support/Code/User/mcp.json"),
        ("win32", "AppData/Roaming/Code/User/mcp.json"),
    ],
)
def test_the_file_of_vs_code_depends_on_the_system(system: str, expected: str) -> None:
    machine = Machine(system, {}, Path("/home/ada"), Path("/place"))
    assert CLIENTS["vscode"].locate_file(machine, project=False) == Path("/home/ada") / expected
    assert CLIENTS["vscode"].locate_file(machine, project=True) == Path("/place/.vscode/mcp.json")


@pytest.mark.parametrize(
    ("client", "env", "expected"),
    [
        ("claude-code", {"CLAUDE_CONFIG_DIR": "/c"}, "/c/.claude.json"),
        ("codex", {"CODEX_HOME": "/c"}, "/c/config.toml"),
        ("zed", {"XDG_CONFIG_HOME": "/c"}, "/c/zed/settings.json"),
        (
            "claude-desktop",
            {"XDG_CONFIG_HOME": ""},
            "/home/ada/.config/Claude/claude_desktop_config.json",
        ),
    ],
)
def test_environment_variables_change_the_files_of_clients(
    client: str, env: dict[str, str], expected: str
) -> None:
    machine = Machine("linux", env, Path("/home/ada"), Path("/place"))
    assert CLIENTS[client].locate_file(machine, project=False) == Path(expected)


def test_a_client_without_project_files_is_an_error() -> None:
    with pytest.raises(ToolError, match="Windsurf has no project configuration"):
        CLIENTS["windsurf"].locate_file(Machine("linux", {}, Path("/h"), Path("/w")), project=True)


def install_executable(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "onetool").touch()
    return directory / "python"


def test_onetool_is_started_by_the_executable_next_to_its_python(tmp_path: Path) -> None:
    python = install_executable(tmp_path / "bin")
    assert find_start_command(python, None, lambda _: None) == OneToolCommand(
        str(tmp_path / "bin" / "onetool")
    )


def test_onetool_in_the_uv_cache_is_started_by_uvx(tmp_path: Path) -> None:
    python = install_executable(tmp_path / "archive-v0" / "x" / "bin")
    programs = {"uvx": "/usr/bin/uvx"}
    assert find_start_command(python, None, programs.get) == OneToolCommand(
        "/usr/bin/uvx", ("onetool-run",)
    )
    git = json.dumps({"url": "https://x/y.git", "vcs_info": {"vcs": "git"}})
    assert find_start_command(python, git, programs.get).args == (
        "--from",
        "git+https://x/y.git",
        "onetool",
    )
    assert find_start_command(python, None, lambda _: None).note


def test_without_an_executable_python_is_used_and_nothing_is_downloaded(tmp_path: Path) -> None:
    start = find_start_command(tmp_path / "python", None, {"uvx": "/usr/bin/uvx"}.get)
    assert start.command == str(tmp_path / "python")


# --- servers of clients ---------------------------------------------------------------------------


def read_client_servers(
    text: str, name: str = "mcp.json", directory: Path = Path("/place")
) -> ClientServers:
    return client_servers.read_servers(
        text_files.TextFile(Path("/place") / name, text.encode(), text), directory
    )


def import_from(
    *found: ClientServers,
    servers: Mapping[str, Any] | None = None,
    secrets: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    inline_secrets: bool = True,
) -> ServerImport:
    target = ImportTarget(
        servers or {},
        secrets or {},
        frozenset({"machine"}),
        env or {},
        Path("/place"),
        Path("/home/ada"),
    )
    return import_servers(found, target, inline_secrets=inline_secrets)


def import_server(server: Mapping[str, Any], **env: str) -> Any:
    return import_from(ClientServers(Path("/place/mcp.json"), {"a": server}), env=env).servers.get(
        "a"
    )


@pytest.mark.parametrize(
    "text",
    [
        '{"mcpServers": {"a": {"command": "x"}}}',
        '\ufeff// VS Code\n{"servers": {"a": {"type": "stdio", "command": "x"},}}',
        '{"mcp": {"servers": {"a": {"command": "x"}}}}',
        '{"context_servers": {"a": {"source": "custom", "command": "x", "args": []}}}',
        '{"context_servers": {"a": {"command": {"path": "x", "args": []}}}}',
        '{"a": {"command": "x"}}',
        '[mcp_servers.a]\ncommand = "x"',
        (
            '{"projects": {"/place": {"mcpServers": {"a": {"command": "x"}}}, "/b": {"mcpServers":'
            ' {"b": {}}}}}'
        ),
    ],
)
def test_the_format_is_detected_from_the_content(text: str) -> None:
    assert import_from(read_client_servers(text)).servers == {"a": {"command": "x"}}


def test_servers_of_other_directories_are_skipped_and_named() -> None:
    text = (
        '{"mcpServers": {}, "projects": {"/other": {"mcpServers": {"b": {"command": "y"}}}, "/c":'
        " {}}}"
    )
    assert read_client_servers(text).notes == ("skipped servers of /other: b",)


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("", "x.json", "is empty"),
        ("{}", "x.json", "no servers in"),
        ('{"theme": "dark"}', "x.json", "no servers in"),
        ("hello", "x.txt", "(JSON or TOML)"),
        ("a = ", "x.toml", r"x\.toml:1: is not valid TOML"),
        ("{\n'", "x.json", r"x\.json:2: is not valid JSON"),
    ],
)
def test_a_file_that_cannot_be_imported_is_an_error_with_the_reason(
    text: str, name: str, message: str
) -> None:
    with pytest.raises(ToolError, match=message):
        read_client_servers(text, name)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"command": "C:\\x.exe", "args": ["-y", 5, True], "env": {"N": 1, "B": False}, "cwd": "/d"},
            {"command": "C:\\x.exe", "args": ["-y", "5", "true"], "env": {"N": "1", "B": "false"}, "cwd": "/d"},
        ),
        ({"url": "https://x/mcp", "type": "http"}, {"url": "https://x/mcp"}),
        ({"url": "https://x/mcp", "type": "streamable-http"}, {"url": "https://x/mcp"}),
        ({"url": "https://x/mcp", "transport": "sse"}, {"url": "https://x/mcp", "transport": "sse"}),
        ({"serverUrl": "https://x/sse"}, {"url": "https://x/sse", "transport": "sse"}),
        ({"httpUrl": "https://x/", "timeout": 5000}, {"url": "https://x/", "timeout": 5}),
        ({"command": "x", "disabled": True}, {"command": "x", "enabled": False}),
        ({"command": "x", "disabled": False, "enabled": True}, {"command": "x"}),
        ({"command": "x", "enabled": False}, {"command": "x", "enabled": False}),
        (
            {"command": "x", "includeTools": ["a"], "excludeTools": ["b"], "tool_timeout_sec": 9},
            {"command": "x", "timeout": 9, "tools": {"include": ["a"], "exclude": ["b"]}},
        ),
        (
            {"url": "https://x", "bearer_token_env_var": "T", "env_http_headers": {"X": "K"}, "headers": {"A": "b"}},
            {"url": "https://x", "headers": {"A": "b", "X": "${K:-}", "Authorization": "Bearer ${T:-}"}},
        ),
        (
            {"command": "x", "env_vars": ["A", {"name": "B", "source": "local"}]},
            {"command": "x", "env": {"A": "${A:-}", "B": "${B:-}"}},
        ),
    ],
)  # fmt: skip
def test_keys_of_clients_are_translated(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert import_server(given) == expected


def test_a_url_without_a_type_is_sse_for_gemini_only() -> None:
    servers = {"a": {"url": "https://x/mcp"}}
    assert (
        import_from(ClientServers(Path("/w/.gemini/settings.json"), servers)).servers["a"][
            "transport"
        ]
        == "sse"
    )
    assert (
        "transport"
        not in import_from(ClientServers(Path("/w/.cursor/mcp.json"), servers)).servers["a"]
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${env:SET}", "${SET}"),
        ("${env:UNSET}", "${UNSET:-}"),
        ("${SET}/${UNSET:-d}", "${SET}/${UNSET:-d}"),
        ("${workspaceFolder}/x", "/place/x"),
        ("${workspaceFolderBasename}", "place"),
        ("${userHome}${/}x", "/home/ada/x"),
        ("${command:pick}", "$${command:pick}"),
        ("${file:/etc/x}", "$${file:/etc/x}"),
        ("${", "$${"),
        ("${a b}", "$${a b}"),
        ("${a{b}", "$${a{b}"),
        ("$HOME", "$HOME"),
    ],
)
def test_variables_of_clients_are_translated_or_kept(text: str, expected: str) -> None:
    assert import_server({"command": "x", "args": [text]}, SET="1")["args"] == [expected]


def test_unsupported_keys_and_variables_are_reported() -> None:
    servers = {
        "a": {"command": "x", "args": ["${command:pick}"], "envFile": ".env", "autoApprove": []}
    }
    notes = " ".join(import_from(ClientServers(Path("/w/mcp.json"), servers)).notes)
    assert "${command:pick}" in notes
    assert "envFile, autoApprove" in notes


def test_inputs_become_variables() -> None:
    text = """{"inputs": [{"id": "api-key", "description": "The key", "password": true},
        {"id": "region", "default": "eu"}],
        "servers": {"a": {"command": "x", "env":
        {"K": "${input:api-key}", "R": "${input:region}", "U": "${input:1}"}}}}"""
    result = import_from(read_client_servers(text))
    assert result.servers["a"]["env"] == {
        "K": "${API_KEY:-}",
        "R": "${REGION:-eu}",
        "U": "${INPUT_1:-}",
    }
    assert result.missing == {"API_KEY": "The key", "INPUT_1": ""}


def test_gemini_variables_need_no_braces() -> None:
    found = ClientServers(
        Path("/w/.gemini/settings.json"), {"a": {"command": "x", "env": {"K": "$KEY"}}}
    )
    assert import_from(found, env={"KEY": "1"}).servers["a"]["env"] == {"K": "${KEY}"}


@pytest.mark.parametrize(
    ("name", "server"),
    [
        ("OneTool", {"command": "x"}),
        ("ot", {"command": "/opt/bin/onetool"}),
        ("ot", {"command": "C:\\Tools\\OneTool.exe", "args": []}),
        ("ot", {"command": "uvx", "args": ["onetool@latest"]}),
        ("ot", {"command": "/usr/bin/uv", "args": ["run", "onetool"]}),
    ],
)
def test_our_own_entry_is_recognized_and_skipped(name: str, server: dict[str, Any]) -> None:
    assert is_ours(name, server)
    assert import_from(ClientServers(Path("/w/mcp.json"), {name: server})).servers == {}


def test_a_server_with_onetool_as_argument_is_not_our_entry() -> None:
    assert not is_ours("docs", {"command": "npx", "args": ["onetool"]})


def test_names_become_python_identifiers() -> None:
    names = [
        "my-server",
        "my_server",
        "21st.dev",
        "class",
        "machine",
        "list",
        "münchen",
        "日本",
        "-",
        "ﬁle",
    ]
    result = import_from(
        ClientServers(Path("/w/mcp.json"), {name: {"command": "x"} for name in names})
    )
    assert list(result.servers) == [
        "my_server", "my_server_2", "mcp_21st_dev", "mcp_class", "mcp_machine", "mcp_list", "münchen", "日本", "server",
        "file",
    ]  # fmt: skip
    assert "my-server: renamed to my_server" in " ".join(result.notes)


def test_the_first_file_wins_and_existing_servers_are_kept() -> None:
    first, second = (
        ClientServers(Path(f"/w/{n}"), {"a": {"command": n}, n: {"command": n}})
        for n in ("one", "two")
    )
    result = import_from(
        first, second, servers={"one": {"command": "other"}, "two": {"command": "two"}}
    )
    assert result.servers == {"a": {"command": "one"}}
    assert "a: skipped the duplicate in /w/two" in " ".join(result.notes)
    assert "one: skipped, because a server of this name exists with other settings" in " ".join(
        result.notes
    )
    assert "two: already imported" in result.notes


@pytest.mark.parametrize(
    "server",
    [
        3,
        None,
        [],
        {},
        {"args": []},
        {"url": ""},
        {"url": "ws://x", "type": "ws"},
        {"url": "ftp://x"},
        {"command": ""},
    ],
)
def test_an_invalid_server_is_skipped_and_reported(server: Any) -> None:
    result = import_from(ClientServers(Path("/w/mcp.json"), {"a": server}))
    assert result.servers == {}
    assert any(note.startswith("a: skipped") for note in result.notes)


def test_a_url_may_start_with_a_variable() -> None:
    assert import_server({"url": "${BASE:-https://x}/mcp"}) == {"url": "${BASE:-https://x}/mcp"}


# --- secrets --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GITHUB_TOKEN", "short-but-named"),
        ("X", "ghp_" + "a" * 36),
        ("X", "sk-proj-" + "a1" * 20),
        ("DB", "postgres://me:word@host/db"),
        ("X", "0123456789abcdef0123456789abcdef"),
        ("Authorization", "Bearer abcdefgh123"),
        ("PASSWORD", "correct horse"),
        ("X-API-Key", "k1234567"),
        ("dbpassword", "short"),
        ("PAT", "abc"),
        ("X", "AKIA" + "A" * 16),
        ("X", "SG." + "a1" * 10 + "." + "b2" * 10),
        ("Authorization", "Digest abcdefgh123"),
    ],
)
def test_secrets_are_recognized_by_name_or_format(name: str, value: str) -> None:
    assert looks_secret(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAX_TOKENS", "4096"),
        ("AUTH", "false"),
        ("TOKEN", "${TOKEN}"),
        ("Authorization", "Bearer ${TOKEN}"),
        ("PATH", "/usr/local/bin:/usr/bin:/bin:/opt/some/long/path"),
        ("URL", "https://example.com/a/long/path/with/many/parts"),
        ("API_KEY", ""),
        ("AUTH_TYPE", "oauth"),
        ("AUTH_TYPE", "service_account"),
        ("AUTHOR", "Ada Lovelace"),
        ("sort_key", "created"),
    ],
)
def test_ordinary_values_are_not_secrets(name: str, value: str) -> None:
    assert not looks_secret(name, value)


@pytest.mark.parametrize(
    "part", ["-eyJ", "-----BEGIN PRIVATE KEY-----x", "1234567890:", "sk-", "-SG.", "T12345678/B"]
)
def test_secrets_are_searched_in_linear_time(part: str) -> None:
    text = part * (1_000_000 // len(part))
    assert measure_seconds(lambda: SECRET_VALUE.sub("", text), enough=2) < 2


def test_a_private_key_is_matched_to_its_end() -> None:
    key = (
        "-----BEGIN RSA PRIVATE KEY-----\nDEK-Info: AES-128-CBC,00\n\nMIIB\n-----END RSA PRIVATE"
        " KEY-----"
    )
    assert SECRET_VALUE.sub("***", f"before {key} after") == "before *** after"


_KEY = "ghp_" + "a1" * 18
_HEX = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    ("args", "secrets"),
    [
        ([f"--token={_KEY}"], [_KEY]),
        ([f"--anything={_HEX}"], [_HEX]),
        (["-e", f"GITHUB_TOKEN={_KEY}"], [_KEY]),
        (["--token", "abc=def99xyz"], ["abc=def99xyz"]),
        (["--token", f"{_HEX}=="], [f"{_HEX}=="]),
        (["-c", "API_KEY=Secret99x exec srv"], ["Secret99x"]),
        (
            ["-lc", "cd x && TOKEN='Secret 99x' srv --api-key Other88yy"],
            ["Secret 99x", "Other88yy"],
        ),
        (["-k", "Zx81hhQpL0vN3mR7tW2yB5cD"], ["Zx81hhQpL0vN3mR7tW2yB5cD"]),
        (["-p", "8080", "-t", "stdio"], []),
        ([f"https://example.org/s/{_HEX}/mcp"], [_HEX]),
        (["https://example.org/a/long/path/with/many/parts"], []),
    ],
)
def test_only_the_secret_part_of_an_argument_is_moved(args: list[str], secrets: list[str]) -> None:
    result = import_from(
        ClientServers(Path("/w/mcp.json"), {"a": {"command": "srv", "args": args}}),
        inline_secrets=False,
    )
    assert sorted(result.secrets.values()) == sorted(secrets)
    assert sorted(find_secrets(args)) == sorted(secrets)
    assert result.notes == []


def test_a_value_that_may_be_a_password_is_reported() -> None:
    server = {"command": "srv", "args": ["-p", "plainpw", "-t", "stdio"]}
    result = import_from(ClientServers(Path("/w/mcp.json"), {"a": server}), inline_secrets=False)
    assert result.secrets == {}
    assert [note.partition(";")[0] for note in result.notes] == ["a: the value of -p was kept"]


def test_secrets_get_unique_names_and_equal_secrets_are_shared() -> None:
    servers = {
        "a": {"command": "x", "env": {"API_KEY": "first-key", "MODE": "dark"}},
        "b-b": {"command": "x", "env": {"API_KEY": "second-key"}},
        "c": {"command": "x", "env": {"API_KEY": "first-key"}},
        "d": {"url": "https://x", "headers": {"Authorization": "Bearer third-key", "Accept": "x"}},
    }
    result = import_from(
        ClientServers(Path("/w/mcp.json"), servers),
        secrets={"B_B_API_KEY": "other"},
        inline_secrets=False,
    )
    assert result.secrets == {
        "API_KEY": "first-key",
        "B_B_API_KEY_2": "second-key",
        "D_AUTHORIZATION": "third-key",
    }
    assert result.servers["a"]["env"] == {"API_KEY": "${API_KEY}", "MODE": "dark"}
    assert result.servers["b_b"]["env"] == {"API_KEY": "${B_B_API_KEY_2}"}
    assert result.servers["c"]["env"] == {"API_KEY": "${API_KEY}"}
    assert result.servers["d"]["headers"] == {
        "Authorization": "Bearer ${D_AUTHORIZATION}",
        "Accept": "x",
    }
    again = import_from(ClientServers(Path("/w/mcp.json"), servers), secrets={**result.secrets, "B_B_API_KEY": "other"},
                  servers=result.servers, inline_secrets=False)  # fmt: skip
    assert (again.servers, again.secrets) == ({}, {})


TOKEN = "ghp_" + "a1" * 18


@pytest.mark.parametrize(
    ("server", "hidden", "secrets"),
    [
        (
            {"args": ["--api-key", "k1234567"]},
            {"args": ["--api-key", "${A_API_KEY}"]},
            {"A_API_KEY": "k1234567"},
        ),
        ({"args": ["--token=k1234567"]}, {"args": ["--token=${A_TOKEN}"]}, {"A_TOKEN": "k1234567"}),
        (
            {"args": ["-e", "API_KEY=k1234567"]},
            {"args": ["-e", "API_KEY=${A_API_KEY}"]},
            {"A_API_KEY": "k1234567"},
        ),
        (
            {"args": ["--header", "Authorization: Bearer k1234567"]},
            {"args": ["--header", "Authorization: Bearer ${A_AUTHORIZATION}"]},
            {"A_AUTHORIZATION": "k1234567"},
        ),
        (
            {"args": ["postgres://me:pa%20ss@host/db?sslmode=on"]},
            {"args": ["postgres://me:${A_PASSWORD}@host/db?sslmode=on"]},
            {"A_PASSWORD": "pa%20ss"},
        ),
        (
            {"args": ["mcp-remote", "https://host/mcp?region=eu&api_key=k1234567#x"]},
            {"args": ["mcp-remote", "https://host/mcp?region=eu&api_key=${A_API_KEY}#x"]},
            {"A_API_KEY": "k1234567"},
        ),
        (
            {"args": ["--config", '{"region": "eu", "deep": [{"apiKey": "k1\\"234567"}]}']},
            {"args": ["--config", '{"region": "eu", "deep": [{"apiKey": "${A_APIKEY}"}]}']},
            {"A_APIKEY": 'k1\\"234567'},
        ),
        ({"args": ["run", TOKEN]}, {"args": ["run", "${A_SECRET}"]}, {"A_SECRET": TOKEN}),
        ({"args": [f"x:{TOKEN}:y"]}, {"args": ["x:${A_SECRET}:y"]}, {"A_SECRET": TOKEN}),
        ({"args": ["AKIA" + "A" * 16]}, {"args": ["${A_SECRET}"]}, {"A_SECRET": "AKIA" + "A" * 16}),
        (
            {"args": ["xoxb-1234567890-x"]},
            {"args": ["${A_SECRET}"]},
            {"A_SECRET": "xoxb-1234567890-x"},
        ),
        ({"args": ["eyJhbGciOiJIUzI1.eyJzdWIi.c2ln"]}, {"args": ["${A_SECRET}"]}, None),
        (
            {"env": {"DSN_OF": "redis://:pass@host", "DATA": '{"password": "k1234567"}'}},
            {
                "env": {
                    "DSN_OF": "redis://:${A_PASSWORD}@host",
                    "DATA": '{"password": "${A_PASSWORD_2}"}',
                }
            },
            {"A_PASSWORD": "pass", "A_PASSWORD_2": "k1234567"},
        ),
    ],
)
def test_secrets_in_arguments_and_urls_are_moved_to_secrets(
    server: dict[str, Any], hidden: dict[str, Any], secrets: dict[str, str] | None
) -> None:
    found = ClientServers(Path("/w/mcp.json"), {"a": {"command": "x", **server}})
    result = import_from(found, inline_secrets=False)
    assert result.servers["a"] == {"command": "x", **hidden}
    assert secrets is None or result.secrets == secrets
    assert result.notes == []
    kept = import_from(found)
    assert kept.servers["a"] == {"command": "x", **server}
    assert "its settings contain a secret" in kept.notes[0]


def test_secrets_in_the_url_of_a_server_are_moved_to_secrets() -> None:
    address = "https://me:word@host/mcp?token=k1234567"
    result = import_from(
        ClientServers(Path("/w/mcp.json"), {"a": {"url": address}}), inline_secrets=False
    )
    assert result.servers["a"]["url"] == "https://me:${A_PASSWORD}@host/mcp?token=${A_TOKEN}"
    assert result.secrets == {"A_PASSWORD": "word", "A_TOKEN": "k1234567"}


@pytest.mark.parametrize(
    "args",
    [
        [
            "-y",
            "@modelcontextprotocol/server-filesystem",
            "/home/ada/a/long/path/to/some/directory",
        ],
        [
            "--max-tokens",
            "4096",
            "--auth",
            "oauth",
            "--url=https://host/path?page=2",
            '{"mode": "dark"}',
        ],
        ["--token", "${TOKEN}", "--api-key=${KEY}", "https://${USER}:${PASS}@host"],
        ["--verbose", "--token-cache", "off"],
    ],
)
def test_ordinary_arguments_are_unchanged(args: list[str]) -> None:
    env = {"TOKEN": "x", "KEY": "x", "USER": "x", "PASS": "x"}
    result = import_from(
        ClientServers(Path("/w/mcp.json"), {"a": {"command": "x", "args": args}}),
        env=env,
        inline_secrets=False,
    )
    assert (result.servers["a"]["args"], result.secrets) == (args, {})


def test_a_user_server_with_relative_paths_starts_in_the_project(tmp_path: Path) -> None:
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "main.js").write_text("")
    given = {
        "dotted": {"command": "node", "args": ["./x.js"]},
        "here": {"command": "uvx", "args": ["git", "--repository", "."]},
        "option": {"command": "node", "args": ["--import=./x.js"]},
        "found": {"command": "node", "args": ["dist/main.js"]},
        "program": {"command": "./serve"},
        "chosen": {"command": "node", "args": ["./x.js"], "cwd": "/srv"},
        "package": {"command": "npx", "args": ["-y", "@scope/server", "/data"]},
        "remote": {"url": "https://host/mcp"},
    }
    found = ClientServers(tmp_path / ".mcp.json", given)
    for is_user in (True, False):
        target = ImportTarget({}, {}, frozenset(), {}, tmp_path, Path("/home/ada"), is_user)
        servers = import_servers([found], target, inline_secrets=False).servers
        expected = {"dotted", "here", "option", "found", "program"} if is_user else set()
        assert {
            name for name, server in servers.items() if server.get("cwd") == "project"
        } == expected


def test_toml_of_codex_is_read_as_documented() -> None:
    text = """[mcp_servers.figma]
url = "https://mcp.figma.com/mcp"
bearer_token_env_var = "FIGMA"
http_headers = { "X-Region" = "us" }
[mcp_servers.off]
command = "x"
enabled = false
startup_timeout_sec = 20
"""
    result = import_from(read_client_servers(text, "config.toml"), env={"FIGMA": "1"})
    headers = {"X-Region": "us", "Authorization": "Bearer ${FIGMA}"}
    assert result.servers["figma"] == {"url": "https://mcp.figma.com/mcp", "headers": headers}
    assert result.servers["off"] == {"command": "x", "enabled": False}
    assert tomllib.loads(text)
