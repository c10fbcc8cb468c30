"""A real PostgreSQL on loopback, in a temporary directory, as a user that is not root.

The fixture `postgres_url` is the URL of a fresh database in a server that all pytest workers share
(`postgres_server`). Tests that stop the server, or need durable writes, start their own with
`run_postgres`.
"""

import fcntl
import json
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import pytest
from tests.cells_support import IS_ROOT, skip_or_fail
from tests.openapi_support import free_port

from onetool.state.postgres_database import Database
from onetool.state.replica_kinds import SettingsRows
from onetool.state.storage import State

SUPERUSER = "postgres"
START_SECONDS = 60.0
DEBIAN_DIRECTORIES = "/usr/lib/postgresql"
SETTINGS: Mapping[str, object] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": 200,
    "shared_buffers": "32MB",
    "autovacuum": "off",
    "timezone": "UTC",
}
FAST: Mapping[str, object] = {"fsync": "off", "full_page_writes": "off"}


def find_postgres(program: str) -> str:
    """Return the path of a program of PostgreSQL.

    Debian does not link the server's programs to `/usr/bin`.
    """
    versions = sorted(
        Path(DEBIAN_DIRECTORIES).glob("*/bin"), key=lambda path: -int(path.parent.name)
    )
    found = shutil.which(
        program, path=os.pathsep.join([*map(str, versions), os.environ.get("PATH", "")])
    )
    return found or skip_or_fail(f"{program} of PostgreSQL is not installed")


def get_database(state: State) -> Database:
    """Return the database of a state that replicas share."""
    (database,) = state.databases
    assert isinstance(database, Database)
    return database


def get_settings(state: State) -> SettingsRows:
    """Return the settings in the database, to write them without any check."""
    assert isinstance(state.settings, SettingsRows)
    return state.settings


def _server_user() -> dict[str, Any]:
    """Return the arguments of `subprocess` for the user of the server: root may not run it."""
    if not IS_ROOT:
        return {}
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            user = pwd.getpwnam(name)
            return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    return skip_or_fail("no user can run PostgreSQL: neither postgres nor nobody exists")


@dataclass(frozen=True)
class PostgresServer:
    """A server, which may be stopped and started again on the same port."""

    directory: Path
    port: int

    def url(self, database: str = "postgres", user: str = SUPERUSER, password: str = "") -> str:
        account = f"{user}:{password}" if password else user
        return f"postgresql://{account}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        self._control(
            "start",
            "-t",
            str(int(START_SECONDS)),
            "-l",
            str(self.directory / "log"),
            "-o",
            f"-p {self.port}",
        )

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        self._control("stop", "-m", mode)

    def execute(
        self, *statements: str, database: str = "postgres", user: str = SUPERUSER
    ) -> list[Any]:
        """Execute statements outside of a transaction and return the rows of the last one."""
        import psycopg

        rows: list[Any] = []
        with psycopg.connect(self.url(database, user), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
                rows = cursor.fetchall() if cursor.description else []
        return rows

    def create_database(self, template: str = "template1") -> str:
        """Create a database and return its name."""
        name = f"t_{uuid4().hex}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def _control(self, action: str, *arguments: str) -> None:
        command = [
            find_postgres("pg_ctl"),
            action,
            "-w",
            "-s",
            "-D",
            str(self.directory / "data"),
            *arguments,
        ]
        try:
            subprocess.run(
                command, check=True, cwd=self.directory, stdin=subprocess.DEVNULL, **_server_user()
            )
        except subprocess.CalledProcessError as error:
            log = self.directory / "log"
            raise RuntimeError(log.read_text() if log.exists() else str(error)) from error


def create_server(**settings: object) -> PostgresServer:
    """Create and start a server in a new temporary directory.

    The caller ends it with `remove_server`.
    """
    user = _server_user()
    directory = Path(tempfile.mkdtemp(prefix="onetool-postgres-"))
    if user:
        os.chown(directory, user["user"], user["group"])
    initialize = [
        find_postgres("initdb"),
        "--no-sync",
        "--auth=trust",
        f"--username={SUPERUSER}",
        "--encoding=UTF8",
    ]
    command = [*initialize, "--locale=C", "-D", str(directory / "data")]
    subprocess.run(command, check=True, cwd=directory, stdout=subprocess.DEVNULL, **user)
    lines = [f"{name} = '{value}'\n" for name, value in {**SETTINGS, **settings}.items()]
    with (directory / "data" / "postgresql.conf").open("a", encoding="utf-8") as file:
        file.writelines(lines)
    server = PostgresServer(directory, free_port())
    server.start()
    return server


def remove_server(server: PostgresServer) -> None:
    with suppress(RuntimeError):  # it is stopped already
        server.stop("immediate")
    shutil.rmtree(server.directory, ignore_errors=True)


@contextmanager
def run_postgres(*, is_durable: bool = False, **settings: object) -> Iterator[PostgresServer]:
    """Run a server of its own.

    With `is_durable`, committed data survives `stop("immediate")` and a power failure.
    """
    server = create_server(**({} if is_durable else FAST), **settings)
    try:
        yield server
    finally:
        remove_server(server)


@contextmanager
def share_server(factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """Use a server that the workers of pytest share. The last one to end stops it."""
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    state = folder / "postgres.json"
    with (
        (folder / "postgres.lock").open("a") as starting,
        (folder / "postgres.users").open("a") as users,
    ):
        fcntl.flock(starting, fcntl.LOCK_EX)
        fcntl.flock(users, fcntl.LOCK_SH)
        if not state.exists():
            created = create_server(**FAST)
            state.write_text(json.dumps([str(created.directory), created.port]))
        directory, port = json.loads(state.read_text())
        fcntl.flock(starting, fcntl.LOCK_UN)
        server = PostgresServer(Path(directory), port)
        yield server
        fcntl.flock(starting, fcntl.LOCK_EX)
        with suppress(BlockingIOError):  # another worker uses it
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            state.unlink()
            remove_server(server)
