"""Test the parts of the daemon's client that need no daemon."""

from pathlib import Path

import pytest

from onetool.processes import daemon_client


@pytest.mark.parametrize(
    ("text", "is_off"),
    [
        ("daemon: {shared: false}\n", True),
        (
            (
                "log_level: INFO\ndaemon:\n  # one process each\n\n  idle: 5\n  shared: false  # as"
                " before\n"
            ),
            True,
        ),
        ("daemon: {shared: true}\nservers:\n  db: {command: x, shared: false}\n", False),
        ("daemon:\n  http: true\n# shared: false\nservers:\n  db:\n    shared: false\n", False),
        ("# daemon: {shared: false}\n", False),
    ],
)
def test_only_the_section_of_the_daemon_turns_it_off(
    text: str, is_off: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / ".onetool" / "onetool.yaml"
    settings.parent.mkdir()
    settings.write_text(text, encoding="utf-8")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert daemon_client._is_turned_off() is is_off
    monkeypatch.setenv("HOME", str(tmp_path / "other"))
    monkeypatch.setenv("ONETOOL_CONFIG", str(settings))
    assert daemon_client._is_turned_off() is is_off
