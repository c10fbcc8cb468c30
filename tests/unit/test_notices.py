"""Messages are written completely to the configured file, or not at all."""

import os
import resource
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings, strategies as st
from tests.support import measure_seconds

from onetool.errors import ArgumentError, BudgetExceeded, StorageError, ToolError
from onetool.settings.model import Topic
from onetool.state.counters import Counters
from onetool.state.file_kinds import NoticeFiles
from onetool.state.notices import count_message, publish
from onetool.util.atomic import locked


def at_noon() -> float:
    return 1_763_208_000.0


def topics(*pairs: tuple[str, str]) -> tuple[Topic, ...]:
    return tuple(Topic(pattern=pattern, file=file) for pattern, file in pairs)


def send(directory: Path, message: Any, file: str = "notes.yaml") -> str:
    return publish(topics(("**", file)), NoticeFiles(directory), "notes", message, at_noon)


def test_a_full_file_rejects_messages(tmp_path: Path) -> None:
    known = topics(("**", "notes.yaml"))
    publish(known, NoticeFiles(tmp_path, 1000), "notes", "x" * 600, at_noon)
    with pytest.raises(
        StorageError, match=r"the file is full \(notify.max_file_bytes is 1000\)\nHint: move"
    ) as caught:
        publish(known, NoticeFiles(tmp_path, 1000), "notes", "x" * 600, at_noon)
    assert caught.value.file == str(tmp_path / "notes.yaml")
    assert len(read_documents(tmp_path / "notes.yaml")) == 1


def test_an_agent_may_send_a_limited_number_of_messages_per_minute() -> None:
    now = [0.0]
    counters = Counters(lambda: now[0])
    for _ in range(3):
        count_message(counters, "a", 3)
    with pytest.raises(BudgetExceeded, match=r"notify\.per_minute is 3; try again in 60 s"):
        count_message(counters, "a", 3)
    count_message(counters, "b", 3)
    now[0] = 60.0
    count_message(counters, "a", 3)


def read_documents(file: Path) -> list[Any]:
    return list(yaml.safe_load_all(file.read_bytes()))


def test_a_message_is_appended_as_a_yaml_document(tmp_path: Path) -> None:
    answer = publish(
        topics(("notes", "notes.yaml")),
        NoticeFiles(tmp_path),
        "notes",
        "Remember to review PR #123",
        at_noon,
    )

    assert answer == "OK: notes -> notes.yaml"
    assert (
        (tmp_path / "notes.yaml").read_text()
        == '---\ntopic: notes\ntime: "2025-11-15T12:00:00Z"\nmessage: "Remember to review PR #123"\n'
    )
    send(tmp_path, {"done": [1, 2]})
    assert [each["message"] for each in read_documents(tmp_path / "notes.yaml")] == [
        "Remember to review PR #123",
        {"done": [1, 2]},
    ]


@pytest.mark.parametrize(
    ("pattern", "topic", "matches"),
    [
        ("notes", "notes", True),
        ("notes", "Notes", False),
        ("notes", "notes2", False),
        ("*", "notes", True),
        ("*", "a:b", False),
        ("*", "", True),
        ("**", "a:b:c", True),
        ("todo:*", "todo:home", True),
        ("todo:*", "todo:", True),
        ("todo:*", "todo:home:urgent", False),
        ("todo:**", "todo:home:urgent", True),
        ("todo:**", "todo", False),
        ("*:done", "a:done", True),
        ("*:done", "a:b:done", False),
        ("**:done", "a:b:done", True),
        ("**x*y", "x:xy", True),
        ("a*c*e", "abcde", True),
        ("a***b", "a:b", True),
        ("n.tes", "notes", False),
        ("[a-z]", "b", False),
        ("a\nb", "a\nb", True),
        ("é*", "été", True),
    ],
)
def test_one_star_matches_between_colons_and_two_stars_match_across(
    tmp_path: Path, pattern: str, topic: str, matches: bool
) -> None:
    answer = publish(topics((pattern, "n.yaml")), NoticeFiles(tmp_path), topic, "x", at_noon)

    assert answer.startswith("OK: " if matches else "SKIP: ")


def test_the_first_matching_pattern_wins(tmp_path: Path) -> None:
    known = topics(("todo:*", "todo.yaml"), ("**", "rest.yaml"), ("todo:home", "never.yaml"))

    assert (
        publish(known, NoticeFiles(tmp_path), "todo:home", "x", at_noon)
        == "OK: todo:home -> todo.yaml"
    )
    assert publish(known, NoticeFiles(tmp_path), "other", "x", at_noon) == "OK: other -> rest.yaml"


def test_a_hostile_pattern_takes_linear_time(tmp_path: Path) -> None:
    def publish_with_stars(stars: int) -> None:
        known = topics(("*a" * stars + "b", "n.yaml"))
        assert (
            publish(known, NoticeFiles(tmp_path), "a" * 200, "x", at_noon)
            == "SKIP: no matching topic"
        )

    # Trying all distributions of the topic over the stars would take hundreds of thousands of times
    # as long.
    few, many = (measure_seconds(partial(publish_with_stars, stars), times=20) for stars in (1, 4))
    assert many < 8 * few


def test_the_length_of_a_topic_is_limited(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="maximum 500"):
        publish((), NoticeFiles(tmp_path), "x" * 501, "x", at_noon)


def test_relative_files_are_in_the_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    send(tmp_path / "folder", "a", "deep/er/notes.yaml")
    send(tmp_path / "folder", "b", str(tmp_path / "absolute.yaml"))
    send(tmp_path / "folder", "c", "~/mine.yaml")

    for path, message in (
        ("folder/deep/er/notes.yaml", "a"),
        ("absolute.yaml", "b"),
        ("home/mine.yaml", "c"),
    ):
        assert read_documents(tmp_path / path)[0]["message"] == message


def test_a_new_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    send(tmp_path, "x")

    assert stat.S_IMODE((tmp_path / "notes.yaml").stat().st_mode) == 0o600


def test_a_file_without_a_final_line_break_stays_readable(tmp_path: Path) -> None:
    (tmp_path / "notes.yaml").write_text("mine: 1")
    send(tmp_path, "x")

    assert [*read_documents(tmp_path / "notes.yaml")[0]] == ["mine"]
    assert len(read_documents(tmp_path / "notes.yaml")) == 2


plain = (
    st.text(st.characters(exclude_categories=["Cs"])) | st.integers() | st.booleans() | st.none()
)


@pytest.mark.slow
@settings(deadline=None, max_examples=20)
@given(
    st.lists(
        st.recursive(
            plain, lambda inner: st.lists(inner) | st.dictionaries(st.text("abc:-# "), inner)
        )
    )
)
def test_every_message_is_read_back_unchanged(
    tmp_path_factory: pytest.TempPathFactory, messages: list[Any]
) -> None:
    directory = tmp_path_factory.mktemp("notify")
    for message in ["---\n...\n", *messages]:
        send(directory, message)

    assert [each["message"] for each in read_documents(directory / "notes.yaml")] == [
        "---\n...\n",
        *messages,
    ]


def test_the_size_of_a_message_is_limited(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="maximum 100000"):
        send(tmp_path, "x" * 1_000_001)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("file", ["folder", "file/notes.yaml", "pipe", "x" * 300, "n\0"])
def test_an_unwritable_file_is_an_error_with_the_reason(tmp_path: Path, file: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(ToolError, match=r"cannot write the message to .*: \w+"):
        send(tmp_path, "x", file)


@pytest.mark.slow
def test_a_message_that_does_not_fit_leaves_the_file_unchanged(tmp_path: Path) -> None:
    send(tmp_path, "first")
    before = (tmp_path / "notes.yaml").read_bytes()
    code = """
import resource, sys
from pathlib import Path
from onetool.settings.model import Topic
from onetool.state.file_kinds import NoticeFiles
from onetool.state.notices import publish
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
publish([Topic(pattern="*", file="notes.yaml")], NoticeFiles(Path(sys.argv[1])), "notes", "x" * 5000, lambda: 0.0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )

    assert "StorageError: cannot write the message to" in done.stderr
    assert "File too large" in done.stderr
    assert (tmp_path / "notes.yaml").read_bytes() == before
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1000


def test_a_lock_is_released_when_its_process_dies(tmp_path: Path) -> None:
    code = "import sys, time; from pathlib import Path; from onetool.util.atomic import locked\n"
    code += "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "lock")], stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"held\n"
        holder.kill()
        with locked(tmp_path / "lock"):
            assert holder.wait() != 0
