"""Invisible characters: rejected or replaced in names, redacted in sanitized results, escaped on a
terminal.
"""

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


def find_invisible(text: str) -> list[str]:
    return [name for name, character in INVISIBLE_CHARACTERS.items() if character in text]


def run_in_terminal(home: Path, *arguments: str) -> str:
    ours, theirs = pty.openpty()
    command, env = [PROGRAM, *arguments], {**environment(home), "TERM": "xterm"}
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, cwd=home
    ) as process:
        os.close(theirs)
        output = b""
        try:
            while part := os.read(ours, 65536):
                output += part
        except OSError:  # the last process that held the terminal has ended
            pass
        process.wait(60)
    os.close(ours)
    return output.decode()


@pytest.mark.parametrize("section", SECTIONS)
def test_settings_with_an_invisible_character_in_a_name_are_rejected(
    tmp_path: Path, section: str
) -> None:
    configure(tmp_path, yaml.safe_dump(SECTIONS[section]("a\u200bb")))
    done = run_cli(tmp_path, "run", "1 + 1")
    assert done.returncode == 1
    assert "\u200b" not in done.stdout + done.stderr
    assert section in done.stdout + done.stderr


def test_invisible_characters_of_upstream_tools_are_escaped(tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"text": {"type": "string", "description": f"words{ALL}"}},
    }
    offered = [
        {"name": f"a{each}b", "description": f"A{ALL} tool", "inputSchema": schema}
        for each in "\u200b"
    ]
    (tmp_path / "tools.json").write_text(json.dumps(offered), encoding="utf-8")
    configure(tmp_path, yaml.safe_dump({"servers": {"odd": hostile_server("scripted", tmp_path)}}))
    with connect(tmp_path) as client:
        (listed,) = get_texts(client.run("ot.tools(pattern='odd')"))[-1:]
        assert "odd.a_b" in listed
        assert not find_invisible(listed)
        assert not find_invisible(get_texts(client.run("ot.help(query='odd', info='full')"))[-1])
        exact = get_texts(client.run(f"__format__ = 'raw'; {CALL}"))[-1]
        assert find_invisible(exact) == list(INVISIBLE_CHARACTERS)
        sanitized = get_texts(client.run(f"__sanitize__ = True; __format__ = 'raw'; {CALL}"))[-1]
        assert not find_invisible(sanitized)
        assert "[REDACTED:invisible]" in sanitized
        failed = client.run(f"raise ValueError('file ' + {CALL})")
        assert failed.is_error
        assert not find_invisible(get_texts(failed)[-1])
        assert "\\u202e" in get_texts(failed)[-1]
    acting = (["run", f"print({CALL})"], ["call", "odd.a_b", f"text={SHOWN}"])
    for arguments in (["tools", "odd"], ["help", "odd.a_b"], *acting, ["doctor"], ["stats"]):
        output = run_in_terminal(tmp_path, *arguments).replace("\x1b[K", "")
        assert not find_invisible(_remove_styles(output)), arguments
    piped = run_cli(tmp_path, "run", f"print({CALL})").stdout
    assert find_invisible(piped) == list(INVISIBLE_CHARACTERS)


def _remove_styles(output: str) -> str:
    for code in (0, 1, 2, 31, 32, 33):
        output = output.replace(f"\x1b[{code}m", "")
    return output


def test_a_terminal_gets_no_escape_sequences_from_results(tmp_path: Path) -> None:
    output = run_in_terminal(
        tmp_path, "run", "'\\x1b[31mred\\x1b[0m \\x1b]0;title\\x07 \\x9b2J \\u202eabc'"
    )
    assert "\\x1b[31mred\\x1b[0m \\x1b]0;title\\x07 \\x9b2J \\u202eabc" in output
    assert "\x1b[31m" not in output


def test_rest_rejects_invisible_characters_in_names_and_errors(tmp_path: Path) -> None:
    with serve_app(tmp_path) as served:
        client = served.rest.client
        for character in INVISIBLE_CHARACTERS.values():
            for names in (
                {"slug": f"a{character}b"},
                {"slug": "ab", "displayName": f"a{character}b"},
            ):
                body = {"displayName": "ab", "isEnabled": True, **names}
                answer = client.put(f"/tools/bundles/{new_id()}", json=body)
                assert get_error_code(answer) == (400, "invalid"), (ascii(character), answer.text)
                assert character not in answer.json()["error"]["message"]
        answer = client.post(
            "/api/run", json={"command": f"ot.help(query={ALL!a}); open({'a' + ALL[:20]!a})"}
        )
        assert answer.json()["isError"]
        assert not find_invisible(json.dumps(answer.json()["blocks"], ensure_ascii=False))
