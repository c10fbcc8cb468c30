"""Test that secrets in any encoding are redacted in results, errors, stored results, logs and REST
responses.
"""

import json
from collections.abc import Iterator

import pytest
from tests.encodings_support import ALL, SECRETS
from tests.rest_support import ServedApp, serve_app

from onetool import ToolError, tool
from onetool.util.logging import Log
from onetool.util.redact import REDACTED

TEXTS = [text for _, _, text in ALL]


@tool("demo.give")
def give(number: int) -> str:
    """Give a text with a secret in it."""
    return f"before {TEXTS[number]} after"


@tool("demo.fail")
def fail(number: int) -> None:
    """Fail with a secret in the message."""
    raise ToolError(f"before {TEXTS[number]} after")


@tool("demo.act", permissions=["network"], logged=("text",))
def act(text: str) -> str:
    """Take a secret."""
    return text


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApp]:
    directory = tmp_path_factory.mktemp("redaction")
    secrets = {f"SECRET{number}": secret for number, secret in enumerate(SECRETS)}
    with serve_app(
        directory,
        tools=[give, fail, act],
        secrets=secrets,
        log=Log(directory / "log", gathers=False),
    ) as server:
        yield server


def run(served: ServedApp, command: str) -> str:
    return served.rest.send("POST", "/api/run", {"command": command}).text


def test_secrets_are_redacted_in_printed_output(served: ServedApp) -> None:
    each = f"for number in range({len(TEXTS)}):\n    print('#', number, demo.give(number))"
    printed = "".join(json.loads(run(served, each))["blocks"]).split("# ")[1:]
    assert [ALL[number] for number, text in enumerate(printed) if REDACTED not in text] == []


def test_secrets_are_redacted_in_errors(served: ServedApp) -> None:
    for number in range(0, len(TEXTS), 5):
        assert REDACTED in run(served, f"demo.fail({number})"), ALL[number]


def test_secrets_are_redacted_in_stored_results(served: ServedApp) -> None:
    value = f"'\\n'.join('x' * 2000 + demo.give(number) for number in range({len(TEXTS)}))"
    handle = json.loads(json.loads(run(served, value))["blocks"][-1])["handle"]
    file = served.onetool.directories.data / "tmp" / f"result-{handle}.txt"
    records = file.read_text(encoding="utf-8").split("x" * 2000)[1:]
    assert [ALL[number] for number, text in enumerate(records) if REDACTED not in text] == []


def test_secrets_are_redacted_in_calls_over_rest(served: ServedApp) -> None:
    for number in range(0, len(TEXTS), 5):
        for name in ("demo.give", "demo.fail"):
            answer = served.rest.send(
                "POST", f"/api/tools/{name}/call", {"args": {"number": number}}
            )
            assert REDACTED in answer.text, (name, ALL[number])


def test_secrets_are_redacted_in_the_log_and_audit_log(served: ServedApp) -> None:
    for text in TEXTS:
        served.rest.send("POST", "/api/tools/demo.act/call", {"args": {"text": text}})
    directory = served.onetool.directories.data
    served.onetool.log.close()
    for file in (directory / "log", directory / "logs" / "audit.jsonl"):
        lines = [
            line for line in file.read_text(encoding="utf-8").splitlines() if '"demo.act"' in line
        ]
        assert len(lines) >= len(TEXTS)
        assert [line for line in lines if REDACTED not in line] == []
