"""A PostgreSQL server in a directory, on loopback, with passwords, as a user that is not root."""

import os
import pwd
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

SUPERUSER = "postgres"
DEBIAN_DIRECTORIES = "/usr/lib/postgresql"  # Debian does not link the server's programs to /usr/bin
SETTINGS: Mapping[str, object] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "password_encryption": "scram-sha-256",
    "max_connections": 200,
    "shared_buffers": "64MB",
    "timezone": "UTC",
}
START_SECONDS = 60
EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


class TopologyError(Exception):
    """Something that the topology needs is missing or has failed."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class PostgresCluster:
    """The files and the processes of one server.

    Its superuser has a password that the caller keeps.
    """

    def __init__(self, directory: Path, settings: Mapping[str, object] | None = None) -> None:
        self._directory, self._settings = directory, {**SETTINGS, **(settings or {})}
        self._password, self.port = "", 0

    @property
    def data(self) -> Path:
        return self._directory / "data"

    def create(self, password: str, variables: Mapping[str, str] | None = None) -> None:
        """Create the files, unless they exist.

        They are created under another name, so that they are complete.

        `initdb` has the variables, by which it is found if it outlives this process.
        """
        self._password = password
        if self.data.exists():
            return
        self.delete()
        self._directory.mkdir(mode=0o700)
        file, new = self._directory / "password", self._directory / "data.new"
        file.write_text(f"{password}\n", "utf-8")
        file.chmod(0o600)
        user = find_server_user()
        for path in (self._directory, file) if user else ():
            os.chown(path, user["user"], user["group"])
        self._run(
            *(
                "initdb",
                "--no-sync",
                "--auth=scram-sha-256",
                f"--username={SUPERUSER}",
                "--encoding=UTF8",
            ),
            *("--locale=C", f"--pwfile={file}", "-D", str(new)),
            variables=variables,
        )
        file.unlink()
        with (new / "postgresql.conf").open("a", encoding="utf-8") as configuration:
            configuration.writelines(
                f"{name} = '{value}'\n" for name, value in self._settings.items()
            )
        new.rename(self.data)

    def start(self, port: int) -> int:
        """Start the server, unless it runs, and return its port: this one if it is free."""
        if not self.is_running():
            wanted, log = choose_port(port), str(self._directory / "log")
            try:
                self._run(
                    "pg_ctl",
                    "start",
                    *self._control,
                    "-t",
                    str(START_SECONDS),
                    "-l",
                    log,
                    "-o",
                    f"-p {wanted}",
                )
            except TopologyError:
                if (
                    not self.is_running()
                ):  # a `pg_ctl` that outlived its caller may have been faster
                    raise
        self.port = self._wait_until_ready()
        return self.port

    def _wait_until_ready(self) -> int:
        """Return the port of a server that runs, when it accepts connections: it may still be
        starting.
        """
        end = time.monotonic() + START_SECONDS
        while True:
            with suppress(OSError):  # it has ended
                lines = (self.data / "postmaster.pid").read_text("utf-8").splitlines()
                if lines and lines[-1].strip() == "ready":
                    return int(lines[3])
            if time.monotonic() > end or not self.is_running():
                raise TopologyError(f"PostgreSQL does not accept connections: {self._read_log()}")
            time.sleep(0.05)

    def stop(self, mode: str = "fast") -> None:
        if self.is_running():
            self._run("pg_ctl", "stop", *self._control, "-m", mode)

    def is_running(self) -> bool:
        if not self.data.exists():
            return False
        status = [find_postgres("pg_ctl"), "status", "-D", str(self.data)]
        return (
            subprocess.run(
                status, cwd="/", capture_output=True, check=False, **find_server_user()
            ).returncode
            == 0
        )

    def delete(self) -> None:
        self.stop("immediate")
        if self._directory.exists():
            shutil.rmtree(self._directory)

    def create_roles(self, passwords: Mapping[str, str]) -> None:
        """Create the roles `onetool_NAME` and the database `onetool`, unless they exist."""
        for name, password in passwords.items():
            role = f"onetool_{name}"
            self.execute(
                f"DO $$ BEGIN CREATE ROLE {role}; EXCEPTION WHEN duplicate_object THEN NULL; END"
                f" $$;ALTER ROLE {role} LOGIN PASSWORD '{password}';"
            )
        if not self.execute("SELECT 1 FROM pg_database WHERE datname = 'onetool'").strip():
            self.execute("CREATE DATABASE onetool OWNER onetool_migration")

    def execute(
        self, sql: str, database: str = "postgres", user: str = SUPERUSER, password: str = ""
    ) -> str:
        """Execute statements and return their rows as text.

        Passwords are in the environment and the input only.
        """
        command = [
            find_postgres("psql"),
            "-X",
            "-q",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-h",
            "127.0.0.1",
        ]
        command += ["-p", str(self.port), "-U", user, "-d", database]
        variables = {"PATH": os.environ.get("PATH", ""), "PGPASSWORD": password or self._password}
        ran = subprocess.run(
            command, env=variables, input=sql, capture_output=True, encoding="utf-8", check=False
        )
        if ran.returncode:
            raise TopologyError(f"PostgreSQL rejected a statement: {ran.stderr.strip()}")
        return ran.stdout

    @property
    def _control(self) -> tuple[str, ...]:
        return "-w", "-s", "-D", str(self.data)

    def _run(
        self, program: str, *arguments: str, variables: Mapping[str, str] | None = None
    ) -> None:
        command = [find_postgres(program), *arguments]
        ran = subprocess.run(
            command,
            cwd="/",
            env={**os.environ, **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            check=False,
            **find_server_user(),
        )
        if ran.returncode:
            raise TopologyError(
                f"{program} failed: {ran.stderr.strip()} {self._read_log()}".strip()
            )

    def _read_log(self) -> str:
        log = self._directory / "log"
        return log.read_text("utf-8", "replace")[-2000:] if log.exists() else ""


def find_postgres(program: str) -> str:
    """Return the path of a program of PostgreSQL, of the newest version."""
    versions = sorted(
        Path(DEBIAN_DIRECTORIES).glob("*/bin"), key=lambda path: -int(path.parent.name)
    )
    found = shutil.which(
        program, path=os.pathsep.join([*map(str, versions), os.environ.get("PATH", "")])
    )
    if found is None:
        raise TopologyError(
            f"{program} of PostgreSQL is not installed", "install PostgreSQL 15 or later"
        )
    return found


def find_server_user() -> dict[str, Any]:
    """Return the arguments of `subprocess` for the user of the server, because root may not run it."""
    if os.getuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            user = pwd.getpwnam(name)
            return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise TopologyError(
        "root cannot run PostgreSQL, and neither the user postgres nor nobody exists"
    )


def choose_port(wanted: int, *, must_have: bool = False) -> int:
    """Return the port, or a free one if it is in use.

    A free one is not of those that the kernel gives to connections: one of them could take it
    before it is used.
    """
    first = (
        int(EPHEMERAL_PORTS.read_text("ascii").split()[0]) if EPHEMERAL_PORTS.exists() else 32_768
    )
    for port in (wanted, *(random.randrange(first // 2, first) for _ in range(100))):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if port:
                probe.bind(("127.0.0.1", port))
                return port
        if port and must_have:
            raise TopologyError(f"port {wanted} is in use", "choose another one with --port")
    raise TopologyError("no port is free")
