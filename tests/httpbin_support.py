"""The real httpbin, in a process and an environment of its own, on loopback.

It cannot live beside us: on Python 3.11 it wants an old greenlet. Its access log shows each request as it came over
the wire, which its answers do not.
"""

import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

from tests.conftest import find_program
from tests.proxy_support import CACHE, _once
from tests.support import PATIENCE, eventually

PYPI = {"httpbin": "0.10.4", "flask": "3.1.3", "werkzeug": "3.1.9", "flasgger": "0.9.7.1", "gunicorn": "27.0.0"}
LISTENS = re.compile(r"Listening at: http://127\.0\.0\.1:(\d+)")


# What each line of the access log says.
SAID = ("%(s)s", "%(m)s", "%(r)s", "%({host}i)s", "%({authorization}i)s", "%({x-key}i)s")


class Seen(NamedTuple):
    """One request as it came over the wire; a header that is not there is a hyphen."""

    status: str
    method: str
    line: str
    host: str
    authorization: str
    key: str

    @property
    def target(self) -> str:
        return self.line.split(" ")[1]


@dataclass(frozen=True)
class Httpbin:
    port: int
    log: Path

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def seen(self, part: str) -> list[Seen]:
        """The requests with this part in their line. A line is written after its answer, so a last one is sent."""
        last = f"/uuid?{uuid.uuid4()}"
        with urlopen(self.url(last)) as answer:
            answer.read()
        assert eventually(lambda: self._lines(last))
        return self._lines(part)

    def _lines(self, part: str) -> list[Seen]:
        lines = self.log.read_text(encoding="utf-8").splitlines()
        return [seen for seen in (Seen(*line.split("\t")) for line in lines) if part in seen.line]


@contextmanager
def httpbin(folder: Path) -> Iterator[Httpbin]:
    """The logs are in the folder."""
    access, errors = folder / "access.log", folder / "errors.log"
    access.touch()
    errors.touch()
    command = [str(_installed() / "bin" / "gunicorn"), "--bind", "127.0.0.1:0", "--threads", "8"]
    command += ["--no-control-socket", "--limit-request-line", "8190"]
    logs = ["--access-logfile", str(access), "--access-logformat", "\t".join(SAID), "--error-logfile", str(errors)]
    given = {"HOME": str(folder), "PATH": os.environ["PATH"]}
    with subprocess.Popen([*command, *logs, "httpbin:app"], cwd=folder, env=given, start_new_session=True) as server:
        try:
            assert eventually(lambda: LISTENS.search(errors.read_text()), PATIENCE * 3), errors.read_text()
            yield Httpbin(int(LISTENS.findall(errors.read_text())[0]), access)
        finally:
            os.killpg(server.pid, signal.SIGKILL)  # its workers too, which may be in the middle of a long answer


def _installed() -> Path:
    folder = CACHE / "httpbin"
    python = folder / "bin" / "python"
    wanted = [f"{package}=={version}" for package, version in PYPI.items()]
    uv = find_program("uv")
    made = f'"{uv}" venv -q --clear --python "{sys.executable}" "{folder}"'
    install = f'"{uv}" pip install -q --python "{python}" {" ".join(wanted)}'
    _once(folder, ["/bin/sh", "-c", f'cd "{CACHE}" && {made} && {install}'], wanted)  # here our own pins would hold
    return folder
