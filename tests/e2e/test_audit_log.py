"""Test that every transport rejects a call that cannot be audited."""

from pathlib import Path

import pytest
from tests.rest_support import get_error_code, serve_app
from tests.support import configure, connect, get_texts, run_cli

SETTINGS = "audit: {file: /dev/full}\nagents: {default: {permissions: [read, write]}}\n"
WRITE = "fs.write(path='a.txt', content='x')"

pytestmark = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="the system has no /dev/full"
)


def test_a_call_over_stdio_that_cannot_be_audited_is_rejected(tmp_path: Path) -> None:
    configure(tmp_path, SETTINGS)
    (tmp_path / "b.txt").write_text("here", encoding="utf-8")
    with connect(tmp_path) as client:
        answer = client.run(WRITE)
        assert answer.is_error
        assert "AuditUnavailable" in get_texts(answer)[-1]
        assert "/dev/full" in get_texts(answer)[-1]
        assert "here" in get_texts(client.run("fs.read(path='b.txt')"))[-1]
        assert "/dev/full" in get_texts(client.run("ot.health()"))[-1]
    assert not (tmp_path / "a.txt").exists()


def test_a_cli_call_that_cannot_be_audited_is_rejected(tmp_path: Path) -> None:
    configure(tmp_path, SETTINGS)
    done = run_cli(tmp_path, "call", "fs.write", "path=a.txt", "content=x")
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "audit.file" in done.stderr
    assert not (tmp_path / "a.txt").exists()


def test_a_call_over_rest_that_cannot_be_audited_is_rejected(tmp_path: Path) -> None:
    settings = {
        "audit": {"file": "/dev/full"},
        "agents": {"default": {"permissions": ["read", "write"]}},
    }
    with serve_app(tmp_path, settings) as served:
        answer = served.rest.send(
            "POST", "/api/tools/fs.write/call", {"args": {"path": "a", "content": "x"}}
        )
        assert get_error_code(answer) == (503, "audit_unavailable")
        assert served.rest.client.get("/api/health").status_code == 200
    assert not (tmp_path / "a").exists()
