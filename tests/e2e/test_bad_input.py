"""Test hostile and malformed input: configuration, patterns, handles, snippets, files instead of
directories.

Each causes a clear error, promptly. The server keeps working and no existing data is lost.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import App, Connection, configure, connect, eventually, get_texts, open_app

# These take exponential time in a backtracking matcher.
HOSTILE_PATTERNS = [
    r"(a+)+$",
    r"(a|a)*$",
    r"(a|aa)+$",
    r"(.*)*x",
    r"(x+x+)+y",
    r"a?" * 30 + "a" * 30,
]
# These are not valid search patterns.
WRONG_PATTERNS = [
    "(",
    "[",
    "*",
    "a{1000}{1000}",
    r"\1",
    "(?=a)",
    "(?<!a)b",
    r"\C",
    "\ud800",
    "(" * 1000,
    "(?P<",
]
HANDLES: list[Any] = [
    "../../etc/passwd",
    "/etc/passwd",
    "..",
    "",
    "a/b",
    "a\\b",
    "a\0b",
    "result-" + "0" * 32,
    "0" * 32,
    "0" * 32 + ".meta.json",
    "0" * 32 + "\n",
    "F" * 32,
    "\u0660" * 32,
    "x" * 100_000,
    "\ud800",
    5,
    None,
    ["a"],
]


# --- onetool.yaml ---------------------------------------------------------------------------------

LAUGHS = "a0: &a0 [lol, lol]\n" + "".join(
    f"a{n}: &a{n} [{f'*a{n - 1}, ' * 9}]\n" for n in range(1, 12)
)
BAD_FILES: dict[str, tuple[str, str]] = {
    "an alias bomb": (LAUGHS, "too many values"),
    "a bomb of strings": (f"a: &a {'x' * 100_000}\nb: [{'*a, ' * 1000}]\n", "too many values"),
    "deep lists": ("a: " + "[" * 50_000, "nested more than 100 deep"),
    "deep mappings": ("{a: " * 50_000, "nested more than 100 deep"),
    "deep blocks": ("".join(" " * n + "a:\n" for n in range(2_000)), "nested more than 100 deep"),
    "an alias of itself": ("a: &a [*a]", "refers to a value that contains it"),
    "a Python object": ("a: !!python/object/apply:os.system [id]", "tag is not allowed"),
    "five million bytes": ("# " + "x" * 5_000_000, "too large: 5"),
    "a very long number": ("execution: {timeout: " + "9" * 100_000 + "}", "digits is too long"),
    "a key twice": ("aliases: {}\naliases: {}\n", "first defined in line 1"),
    "a list": ("- a\n- b\n", "the file must contain `key: value` lines"),
    "control characters": ("a: \x07", "is not valid YAML"),
    "a tab": ("execution:\n\ttimeout: 5\n", "indent with spaces, not with tabs"),
    "an unterminated reference": ("docs_url: 'https://${'", "docs_url contains ${ without"),
}


@pytest.fixture(scope="module")
def reload_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    """Start a server with a valid configuration, which the tests then replace."""
    home = tmp_path_factory.mktemp("reload_client")
    configure(home, "aliases: {before: machine.now}")
    with connect(home) as client:
        yield client


@pytest.mark.parametrize("kind", BAD_FILES)
def test_an_invalid_file_is_rejected_and_the_old_settings_stay(
    reload_client: Connection, kind: str
) -> None:
    text, expected = BAD_FILES[kind]
    configure(reload_client.home, text)
    answer = reload_client.run("ot.reload()")
    assert answer.is_error
    (message,) = get_texts(answer)
    assert f"ConfigError: {reload_client.home / '.onetool' / 'onetool.yaml'}:" in message
    assert expected in message
    assert len(message) < 2000
    assert not reload_client.run("before()").is_error


def test_a_file_that_is_not_utf_8_is_rejected(reload_client: Connection) -> None:
    (reload_client.home / ".onetool" / "onetool.yaml").write_bytes(b"aliases: {a: \xff}\n")
    assert (
        "is not UTF-8 text\nHint: save the file as UTF-8"
        in get_texts(reload_client.run("ot.reload()"))[0]
    )
    assert not reload_client.run("before()").is_error


@pytest.mark.parametrize("kind", ["an alias bomb", "deep lists"])
def test_the_server_starts_with_a_yaml_bomb_and_recovers(tmp_path: Path, kind: str) -> None:
    text, expected = BAD_FILES[kind]
    configure(tmp_path, text)
    with connect(tmp_path) as client:
        (message,) = get_texts(client.run("1 + 1"))
        assert message.startswith("invalid settings; nothing runs until they are fixed:\n")
        assert expected in message
        assert expected in get_texts(client.run("ot.health()"))[0]
        configure(tmp_path, "aliases: {}")
        assert get_texts(client.run("ot.reload()")) == ["OK: Configuration reloaded"]
        assert get_texts(client.run("1 + 1")) == ["2"]


# --- patterns and handles -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    with open_app({"output": {"max_inline_size": 2000}}) as app:
        yield app


@pytest.fixture(scope="module")
def handle(app: App) -> str:
    """Return the handle of a result with a line of 200,000 times the letter that hostile patterns
    repeat.
    """
    stored: dict[str, Any] = json.loads(app.value("'first\\n' + 'a' * 200_000 + '!\\nlast'"))
    return str(stored["handle"])


@pytest.mark.parametrize("pattern", HOSTILE_PATTERNS)
def test_a_hostile_pattern_takes_linear_time(app: App, handle: str, pattern: str) -> None:
    assert (
        app.data(f"ot.result(handle={handle!r}, search={pattern!r}, unit='lines')['matched_lines']")
        <= 3
    )


@pytest.mark.parametrize("pattern", WRONG_PATTERNS)
def test_an_invalid_pattern_is_a_short_error(app: App, handle: str, pattern: str) -> None:
    message = app.failure(f"ot.result(handle={handle!r}, search={pattern!r})")
    assert message.startswith("ArgumentError: ")
    assert "regular expression" in message or "cannot be searched for" in message
    assert len(message) < 3000


def test_patterns_of_list_functions_are_not_regular_expressions(app: App) -> None:
    for function in ("tools", "packs", "aliases", "snippets"):
        for pattern in ("(", "*", "(a+)+$" * 1000, "\0", "\ud800"):
            assert app.data(f"ot.{function}(pattern={pattern!r})") == []


@pytest.mark.parametrize(
    "query", ["(", '"', "*", "a AND", "NEAR(", "'; DROP TABLE x; --", "\0", "\ud800", "x" * 10_000]
)
def test_any_text_is_a_valid_search_query(app: App, query: str) -> None:
    assert isinstance(app.data(f"ot.search(query={query!r}, limit=3)"), list)
    assert isinstance(app.data(f"ot.help(query={query!r})"), str)


@pytest.mark.parametrize("function", ["ot.result", "ot.load"])
@pytest.mark.parametrize("wrong", HANDLES, ids=range(len(HANDLES)))
def test_an_invalid_handle_is_not_found(app: App, function: str, wrong: Any) -> None:
    message = app.failure(f"{function}(handle={wrong!r})")
    assert (
        "Result not found: " in message
        or "handle: " in message
        or "handle has 100000 characters" in message
    )
    assert "root:" not in message
    assert len(message) < 2000


def test_a_handle_of_another_agent_is_not_found() -> None:
    agents = {"other": {"permissions": ["read"]}}
    with open_app({"agents": agents, "output": {"max_inline_size": 100}}) as app:
        stored = json.loads(app.value("'secret ' * 100"))
        answer = app.run(f"ot.load({stored['handle']!r})", agent="other")
        assert answer.is_error
        assert "Result not found" in answer.text
        assert "secret" not in answer.text


# --- snippets and aliases -------------------------------------------------------------------------

BROKEN_SETTINGS: dict[str, Any] = {
    "aliases": {"one": "two", "two": "three", "three": "one", "self": "self", "again": "ot.call"},
    "snippets": {
        "syntax": {"body": "x = (1 +"},
        "indented": {"body": "if True:\nprint(1)"},
        "ping": {"body": "$pong"},
        "pong": {"body": "$ping"},
        "call_ping": {"body": "ot.snippet('call_pong')"},
        "call_pong": {"body": "ot.snippet('call_ping')"},
        "mixed": {"body": "one()"},
        "grows": {"params": {"n": {"default": 1}}, "body": "$grows n={{ n + 1 }}"},
        "loops": {
            "body": (
                "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}"
            )
        },
        "large": {"body": "{{ 'x' * 1000000000 }}"},
        "power": {"body": "{{ 9 ** 9 ** 9 }}"},
        "escape": {"body": "{{ ''.__class__.__mro__ }}"},
        "deep": {"body": "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}"},
        "good": {"body": "6 * 7"},
    },
}


@pytest.fixture(scope="module")
def broken_app() -> Iterator[App]:
    with open_app(BROKEN_SETTINGS) as app:
        yield app


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("syntax", "'(' was never closed"),
        ("indented", "expected an indented block"),
        ("ping", "snippets are circular: $ping → $pong → $ping"),
        ("call_ping", "snippets are nested more than 20 levels deep"),
        ("mixed", "two"),
        ("grows", "snippets are circular: $grows → $grows"),
        ("loops", "cannot render the body of $loops: rendering produced more than"),
        ("large", "cannot render the body of $large"),
        ("power", "cannot render the body of $power"),
        ("escape", "cannot render the body of $escape"),
        ("deep", "cannot render the body of $deep"),
    ],
)
def test_an_invalid_snippet_is_an_error_in_both_syntaxes(
    broken_app: App, name: str, expected: str
) -> None:
    assert expected in broken_app.failure(f"${name}")
    assert expected in broken_app.failure(f"ot.snippet({name!r})")
    assert broken_app.value("$good") == broken_app.value("ot.snippet('good')") == "42"


def test_invalid_snippets_and_aliases_are_still_listed(broken_app: App) -> None:
    listed = broken_app.value("ot.snippets(info='full')")
    assert all(f"name: {name}\n" in listed for name in BROKEN_SETTINGS["snippets"])
    assert len(broken_app.data("ot.aliases()")) == len(BROKEN_SETTINGS["aliases"])
    assert "circular aliases: one -> two -> three -> one" in broken_app.value("ot.help('one')")


@pytest.mark.parametrize("alias", ["one", "two", "three", "self", "again"])
def test_a_circular_alias_is_an_error(broken_app: App, alias: str) -> None:
    assert "ToolNotFound" in broken_app.failure(f"{alias}()")
    assert "ToolNotFound" in broken_app.failure(f"ot.call({alias!r})")


# --- unusable files and directories ---------------------------------------------------------------

TOPICS = [
    {"pattern": "folder", "file": "folder"},
    {"pattern": "under", "file": "file/notes.yaml"},
    {"pattern": "long", "file": "x" * 300},
    {"pattern": "nul", "file": "a\0b"},
    {"pattern": "device", "file": "/dev/full"},
    {"pattern": "pipe", "file": "pipe"},
    {"pattern": "good", "file": "good.yaml"},
    {"pattern": "*a" * 100, "file": "good.yaml"},
]


@pytest.fixture(scope="module")
def notified() -> Iterator[App]:
    with open_app({"notify": {"topics": TOPICS}}) as app:
        data = app.onetool.directories.data
        (data / "folder").mkdir()
        (data / "file").write_text("kept", encoding="utf-8")
        os.mkfifo(data / "pipe")
        yield app


@pytest.mark.parametrize("topic", ["folder", "under", "long", "nul", "device", "pipe"])
def test_a_message_that_cannot_be_written_is_an_error(notified: App, topic: str) -> None:
    message = notified.failure(f"ot.notify(topic={topic!r}, message='hello')")
    assert message.startswith("StorageError: cannot write the message to ")
    assert notified.value("ot.notify(topic='good', message='hello')") == "OK: good -> good.yaml"
    assert (notified.onetool.directories.data / "file").read_text("utf-8") == "kept"


def test_long_topics_and_messages_are_rejected_quickly(notified: App) -> None:
    assert notified.value("ot.notify(topic='a' * 500, message='')").startswith(("OK", "SKIP"))
    assert "topic too long: 501 characters (maximum 500)" in notified.failure(
        "ot.notify(topic='a' * 501, message='')"
    )
    assert "message too long: 2000000 characters (maximum 100000)" in notified.failure(
        "ot.notify(topic='good', message='x' * 2_000_000)"
    )


def test_only_large_results_fail_if_the_results_directory_is_a_file() -> None:
    with open_app({"output": {"max_inline_size": 100}}) as app:
        blocking = app.onetool.directories.data / "tmp"
        blocking.write_text("kept", encoding="utf-8")
        message = app.failure("'x' * 1000")
        assert f"cannot be stored in {blocking}" in message
        assert "return a smaller part of the result" in message
        failed = app.run("print('x' * 1000)\n1 / 0")
        assert "ZeroDivisionError" in failed.text
        assert app.value("6 * 7") == "42"
        assert blocking.read_text("utf-8") == "kept"
        blocking.unlink()
        assert json.loads(app.value("'x' * 1000"))["size_bytes"] == 1000


def test_calls_succeed_if_the_statistics_directory_is_a_file() -> None:
    with open_app() as app:
        blocking = app.onetool.directories.data / "stats"
        blocking.write_text("kept", encoding="utf-8")
        assert app.value("machine.now()")
        assert f"cannot write statistics to {blocking}" in app.value("ot.stats()")
        assert f"{blocking} is not a directory" in app.value("ot.health()")
        assert blocking.read_text("utf-8") == "kept"
        blocking.unlink()
        assert (
            app.data("ot.stats(tool='machine.now')")["total_calls"] == 1
        )  # counted in memory until it could be written


def test_runs_succeed_if_the_statistics_file_is_truncated() -> None:
    with open_app() as app:
        for _ in range(50):
            assert app.value("machine.now()")
        assert app.data("ot.stats(tool='machine.now')")["total_calls"] == 50
        file = app.onetool.directories.data / "stats" / "stats.db"
        left = file.read_bytes()[: file.stat().st_size // 2]
        file.write_bytes(left)
        assert app.value("machine.now()")
        assert eventually(lambda: "were reset" in app.value("ot.health()"))
        assert eventually(lambda: app.data("ot.stats(tool='machine.now')")["total_calls"] == 1)
        assert [
            stored.read_bytes()[: len(left)] for stored in file.parent.glob("*.damaged-*[0-9Z]")
        ] == [left]


@pytest.mark.parametrize("name", ["cache", "logs", "tmp"])
def test_the_server_works_if_a_data_directory_is_a_file(tmp_path: Path, name: str) -> None:
    (tmp_path / ".onetool").mkdir()
    (tmp_path / ".onetool" / name).write_text("kept", encoding="utf-8")
    with connect(tmp_path) as client:
        assert "machine.disk" in "".join(
            get_texts(client.run("ot.search(query='free disk space')"))
        )
        assert not client.run("machine.disk()").is_error
        assert not client.run("ot.stats()").is_error
    assert (tmp_path / ".onetool" / name).read_text("utf-8") == "kept"


@pytest.mark.parametrize("content", [b"", b"[" * 100_000])
def test_shapes_in_a_damaged_file_are_ignored(content: bytes) -> None:
    with open_app() as app:
        file = app.onetool.directories.data / "stats" / "stats.db"
        file.parent.mkdir()
        file.write_bytes(content)
        assert "machine.disk" in app.value("ot.help('machine.disk')")
        assert app.value("machine.disk()\nmachine.disk()\n'fine'") == "fine"
        assert not app.run("ot.health()").is_error
