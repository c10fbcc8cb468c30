"""Assistants over stdio that start the shared server, and commands that use it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support import TIMEOUT_SECONDS, environment

CLIENT = [sys.executable, "-P", "-m", "onetool.daemon_client"]  # the command `onetool`


def make_environment(home: Path) -> dict[str, str]:
    """Return the environment of a client that may use the shared server. The home directory needs a short path."""
    return {name: value for name, value in environment(home).items() if name != "ONETOOL_STANDALONE"}


class StdioClient:
    """An assistant that started `onetool` and listed its tools."""

    def __init__(self, home: Path, directory: Path, name: str) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(CLIENT, cwd=directory, env=make_environment(home), stdin=pipe, stdout=pipe)
        info = {"name": name, "version": "1"}
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info}
        assert "result" in self.request("initialize", **hello)
        assert "result" in self.request("tools/list")

    def request(self, method: str, **params: Any) -> dict[str, Any]:
        to, answers = self._process.stdin, self._process.stdout
        assert to is not None
        assert answers is not None
        to.write(json.dumps({"jsonrpc": "2.0", "id": method, "method": method, "params": params}).encode() + b"\n")
        to.flush()
        answer: dict[str, Any] = json.loads(answers.readline())
        return answer

    def close(self) -> None:
        self._process.communicate(timeout=TIMEOUT_SECONDS)
