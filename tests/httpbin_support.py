"""httpbin on loopback, in its own process and environment.

It needs its own environment: on Python 3.11 it requires an old version of greenlet. Its access log
shows each request as received, which its responses do not.
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
from tests.proxy_support import CACHE, install_once
from tests.support import TIMEOUT_SECONDS, eventually

PYPI = {
    "httpbin": "0.10.4",
    "flask": "3.1.3",
    "werkzeug": "3.1.9",
    "flasgger": "0.9.7.1",
    "gunicorn": "27.0.0",
}
LISTENING_PATTERN = re.compile(r"Listening at: http://127\.0\.0\.1:(\d+)")


# The fields of the access log.
LOG_FIELDS = ("%(s)s", "%(m)s", "%(r)s", "%({host}i)s", "%({authorization}i)s", "%({x-key}i)s")


class LoggedRequest(NamedTuple):
    """A request as received; a missing header is a hyphen."""

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

    def find_requests(self, part: str) -> list[LoggedRequest]:
        """Return the requests whose line contains this part.

        A line is logged after its response, so a last request is sent to wait for the others.
        """
        last = f"/uuid?{uuid.uuid4()}"
        with urlopen(self.url(last)) as response:
            response.read()
        assert eventually(lambda: self._read_log(last))
        return self._read_log(part)

    def _read_log(self, part: str) -> list[LoggedRequest]:
        lines = self.log.read_text(encoding="utf-8").splitlines()
        return [
            request
            for request in (LoggedRequest(*line.split("\t")) for line in lines)
            if part in request.line
        ]


@contextmanager
def httpbin(directory: Path) -> Iterator[Httpbin]:
    """Run httpbin with its logs in this directory."""
    access, errors = directory / "access.log", directory / "errors.log"
    access.touch()
    errors.touch()
    command = [str(_install() / "bin" / "gunicorn"), "--bind", "127.0.0.1:0", "--threads", "8"]
    command += ["--no-control-socket", "--limit-request-line", "8190"]
    logs = [
        "--access-logfile",
        str(access),
        "--access-logformat",
        "\t".join(LOG_FIELDS),
        "--error-logfile",
        str(errors),
    ]
    environment = {"HOME": str(directory), "PATH": os.environ["PATH"]}
    with subprocess.Popen(
        [*command, *logs, "httpbin:app"], cwd=directory, env=environment, start_new_session=True
    ) as server:
        try:
            assert eventually(
                lambda: LISTENING_PATTERN.search(errors.read_text()), TIMEOUT_SECONDS * 3
            ), errors.read_text()
            yield Httpbin(int(LISTENING_PATTERN.findall(errors.read_text())[0]), access)
        finally:
            os.killpg(
                server.pid, signal.SIGKILL
            )  # including its workers, which may be sending a long response


def _install() -> Path:
    directory = CACHE / "httpbin"
    python = directory / "bin" / "python"
    requirements = [f"{package}=={version}" for package, version in PYPI.items()]
    uv = find_program("uv")
    create = f'"{uv}" venv -q --clear --python "{sys.executable}" "{directory}"'
    install = f'"{uv}" pip install -q --python "{python}" {" ".join(requirements)}'
    install_once(
        directory, ["/bin/sh", "-c", f'cd "{CACHE}" && {create} && {install}'], requirements
    )  # outside of the repository, so that its pins do not apply
    return directory
