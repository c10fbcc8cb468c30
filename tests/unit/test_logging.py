"""The log: spans as redacted JSON lines that never fail a call."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from onetool.errors import ToolTimeout
from onetool.util.logging import MAX_LOG_BYTES, Log
from onetool.util.redact import Redactor


def read_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_a_span_is_one_line_with_its_outcome(tmp_path: Path) -> None:
    log = Log(tmp_path / "logs" / "onetool.log")
    with log.span("run", correlation_id="c1") as fields:
        fields["agent"] = "default"
    log.close()
    (line,) = read_lines(tmp_path / "logs" / "onetool.log")
    assert (line["name"], line["status"], line["correlation_id"], line["agent"]) == (
        "run",
        "ok",
        "c1",
        "default",
    )
    assert line["duration_ms"] >= 0


def test_a_failed_span_names_the_error_type(tmp_path: Path) -> None:
    log = Log(tmp_path / "onetool.log")
    with pytest.raises(ToolTimeout), log.span("tool.call"):
        raise ToolTimeout("late")
    log.close()
    assert read_lines(tmp_path / "onetool.log")[0]["error_type"] == "timeout"


def test_secrets_are_redacted_plain_and_escaped(tmp_path: Path) -> None:
    log = Log(tmp_path / "onetool.log", redact=Redactor(['pass"word\n1', "abc"]))
    log.event("run", text='it was pass"word\n1, abc')
    log.close()
    text = (tmp_path / "onetool.log").read_text(encoding="utf-8")
    assert "word" not in text
    assert "abc" in text  # too short to be redacted as a secret


def test_lines_below_the_level_are_left_out(tmp_path: Path) -> None:
    log = Log(tmp_path / "onetool.log", level="WARNING")
    log.event("run")
    log.event("run", level="ERROR")
    log.close()
    assert len(read_lines(tmp_path / "onetool.log")) == 1


def test_a_log_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder", encoding="utf-8")
    log = Log(tmp_path / "file" / "onetool.log")
    log.event("run")
    log.close()
    assert log.problem is not None
    assert "cannot write" in log.problem


def test_a_large_log_is_rotated(tmp_path: Path) -> None:
    file = tmp_path / "onetool.log"
    file.write_bytes(b"x" * (MAX_LOG_BYTES + 1))
    log = Log(file)
    log.event("run")
    log.close()
    assert len(read_lines(file)) == 1
    assert (tmp_path / "onetool.log.1").stat().st_size > MAX_LOG_BYTES


def test_texts_that_wait_to_be_redacted_are_limited(tmp_path: Path) -> None:
    may_write = threading.Event()

    def redact(text: str) -> str:
        may_write.wait()
        return text

    log = Log(tmp_path / "log.jsonl", redact=redact, gathers=False)
    for _ in range(100):
        log.event("worker.output", text="x" * (1 << 20))
    may_write.set()
    log.close()
    written = sum(file.stat().st_size for file in tmp_path.glob("log.jsonl*"))  # it may rotate
    assert 32 << 20 <= written < 66 << 20
