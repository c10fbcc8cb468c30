"""Invisible characters: rejected or replaced in names, redacted in sanitized results, escaped on a terminal."""

import json
import os
import pty
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.encodings_support import INVISIBLE_CHARACTERS
from tests.proxy_support import hostile_server
from tests.rest_support import get_error_code, new_id, serve_app
from tests.support import PROGRAM, configure, connect, environment, get_texts, run_cli

ALL = "".join(INVISIBLE_CHARACTERS.values())
SHOWN = ALL.replace("\x00", "")
CALL = f"odd.a_b(text={ALL!a})"
SECTIONS: dict[str, Callable[[str], Any]] = {
    "agents": lambda name: {"agents": {name: {}}},
    "servers": lambda name: {"servers": {name: {"command": "true"}}},
    "snippets": lambda name: {"snippets": {name: {"body": "1"}}},
    "aliases": lambda name: {"aliases": {name: "ot.help"}},
    "tokens": lambda name: {"auth": {"tokens": [{"name": name, "hash": "0" * 64}]}},
}


def leaked(text: str) -> list[str]:
    return [name for name, character in INVISIBLE_CHARACTERS.items() if character in text]


def in_terminal(home: Path, *arguments: str) -> str:
    ours, theirs = pty.openpty()
    command, env = [PROGRAM, *arguments], {**environment(home), "TERM": "xterm"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, cwd=home) as process:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 65536):
                shown += part
        except OSError:  # the last process that held the terminal has ended
            pass
        process.wait(60)
    os.close(ours)
    return shown.decode()


@pytest.mark.parametrize("section", SECTIONS)
def test_settings_with_an_invisible_character_in_a_name_are_rejected(tmp_path: Path, section: str) -> None:
    configure(tmp_path, yaml.safe_dump(SECTIONS[section]("a\u200bb")))
    done = run_cli(tmp_path, "run", "1 + 1")
    assert done.returncode == 1
    assert "\u200b" not in done.stdout + done.stderr
    assert section in done.stdout + done.stderr


def test_tools_of_servers_have_visible_names(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string", "description": f"words{ALL}"}}}
    offered = [{"name": f"a{each}b", "description": f"A{ALL} tool", "inputSchema": schema} for each in "\u200b"]
    (tmp_path / "tools.json").write_text(json.dumps(offered), encoding="utf-8")
    configure(tmp_path, yaml.safe_dump({"servers": {"odd": hostile_server("scripted", tmp_path)}}))
    with connect(tmp_path) as client:
        (listed,) = get_texts(client.run("ot.tools(pattern='odd')"))[-1:]
        assert "odd.a_b" in listed
        assert not leaked(listed)
        assert not leaked(get_texts(client.run("ot.help(query='odd', info='full')"))[-1])
        exact = get_texts(client.run(f"__format__ = 'raw'; {CALL}"))[-1]
        assert leaked(exact) == list(INVISIBLE_CHARACTERS)
        sanitized = get_texts(client.run(f"__sanitize__ = True; __format__ = 'raw'; {CALL}"))[-1]
        assert not leaked(sanitized)
        assert "[REDACTED:invisible]" in sanitized
        failed = client.run(f"raise ValueError('file ' + {CALL})")
        assert failed.is_error
        assert not leaked(get_texts(failed)[-1])
        assert "\\u202e" in get_texts(failed)[-1]
    acting = (["run", f"print({CALL})"], ["call", "odd.a_b", f"text={SHOWN}"])
    for arguments in (["tools", "odd"], ["help", "odd.a_b"], *acting, ["doctor"], ["stats"]):
        shown = in_terminal(tmp_path, *arguments).replace("\x1b[K", "")
        assert not leaked(_without_styles(shown)), arguments
    piped = run_cli(tmp_path, "run", f"print({CALL})").stdout
    assert leaked(piped) == list(INVISIBLE_CHARACTERS)


def _without_styles(shown: str) -> str:
    for code in (0, 1, 2, 31, 32, 33):
        shown = shown.replace(f"\x1b[{code}m", "")
    return shown


def test_a_terminal_shows_styles_of_ours_only(tmp_path: Path) -> None:
    shown = in_terminal(tmp_path, "run", "'\\x1b[31mred\\x1b[0m \\x1b]0;title\\x07 \\x9b2J \\u202eabc'")
    assert "\\x1b[31mred\\x1b[0m \\x1b]0;title\\x07 \\x9b2J \\u202eabc" in shown
    assert "\x1b[31m" not in shown


def test_rest_rejects_invisible_characters_in_names_and_errors(tmp_path: Path) -> None:
    with serve_app(tmp_path) as served:
        client = served.rest.client
        for character in INVISIBLE_CHARACTERS.values():
            for names in ({"slug": f"a{character}b"}, {"slug": "ab", "displayName": f"a{character}b"}):
                body = {"displayName": "ab", "isEnabled": True, **names}
                answer = client.put(f"/tools/bundles/{new_id()}", json=body)
                assert get_error_code(answer) == (400, "invalid"), (ascii(character), answer.text)
                assert character not in answer.json()["error"]["message"]
        answer = client.post("/api/run", json={"command": f"ot.help(query={ALL!a}); open({'a' + ALL[:20]!a})"})
        assert answer.json()["isError"]
        assert not leaked(json.dumps(answer.json()["blocks"], ensure_ascii=False))
