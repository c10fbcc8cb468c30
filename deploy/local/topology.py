"""Run replicas of OneTool on this machine: PostgreSQL, nginx, several replicas and one worker, all
on loopback.

    python deploy/local/topology.py up        start everything that does not run; print the URL and a token
                                              (--replicas N, --port PORT, --settings FILE, --work DIRECTORY)
    python deploy/local/topology.py status    show the processes
    python deploy/local/topology.py down      stop everything and delete its directory

It needs Linux, `onetool` with the extra `postgres`, nginx, and the server programs of PostgreSQL 15
or later. Every command can be repeated, also after it was killed. Tests and benchmarks import
`Topology`.
"""

import argparse
import fcntl
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).parents[2]))

from deploy.local.postgres_cluster import PostgresCluster, TopologyError, choose_port

NGINX_ROUTES = Path(__file__).parents[1] / "nginx" / "onetool.conf"
# in the environment of every process, to find those that were never recorded
MARKER = "TOPOLOGY_DIRECTORY"
STATE = "topology.json"
DEFAULT_PORT = 8765
START_SECONDS = 60.0
STOP_SECONDS = 15.0
QUEUE = "default"
TOKEN_NAME = "topology"
PACKS = Path(__file__).parents[1] / "packs"
SETTINGS = f"""\
agents: {{default: {{permissions: [read, write, network]}}}}
tools_dir: [{json.dumps(str(PACKS))}]
tools: {{render: {{queue: {QUEUE}, idempotent: [preview]}}}}
"""
INHERITED = (
    "PATH",
    "LANG",
    "LC_ALL",
    "SSL_CERT_FILE",
    "UV_CACHE_DIR",
    "UV_INDEX_URL",
    "UV_DEFAULT_INDEX",
    "UV_PYTHON",
)
NGINX = """\
daemon off;
master_process off;
pid {directory}/nginx.pid;
error_log {directory}/nginx.log warn;
events {{ worker_connections 2048; }}
http {{
    access_log off;
    client_body_temp_path {directory}/client_body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    upstream replicas {{
        hash $route consistent;
        {servers}
        keepalive 32;
    }}
{routes}
}}
"""


class Topology:
    """The processes of a directory.

    Their ports, passwords and process IDs are in a file that only its owner reads.
    """

    def __init__(
        self,
        directory: Path,
        *,
        program: str = "",
        settings: str = SETTINGS,
        work: Path | None = None,
        variables: Mapping[str, str] | None = None,
        postgres: Mapping[str, object] | None = None,
    ) -> None:
        self.directory, self.settings, self.work = directory, settings, work or directory / "work"
        self._program, self._variables = program or find_program("onetool"), dict(variables or {})
        self.postgres = PostgresCluster(directory / "postgres", postgres)
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self.state: dict[str, Any] = {"ports": {}, "processes": {}, "secrets": {}}

    # --- commands ---------------------------------------------------------------------------------

    def up(self, replicas: int = 2, port: int = 0, *, has_worker: bool = True) -> None:
        """Start what does not run.

        `port` is that of nginx; 0 keeps the last one, or takes a free one.
        """
        self._prepare_directory()
        with self._lock():
            self._load()
            self._end_strays()
            self._start_database()
            for name in [
                name for name in self.state["processes"] if _replica_number(name) > replicas
            ]:
                self.stop(name)
            for number in range(1, replicas + 1):
                self.start_replica(number)
            for number in range(1, replicas + 1):
                self.wait_until_ready(number)
            if has_worker:
                self._start_worker()
            self._create_token()
            self._start_nginx(replicas, port)

    def down(self) -> None:
        """Stop everything and delete the directory."""
        if not self.directory.is_dir():
            return
        with self._lock():
            self._load()
            for name in filter(
                self._is_running, self.state["processes"]
            ):  # all at once, because each takes a while
                with suppress(ProcessLookupError):
                    os.kill(self.process_id(name), signal.SIGTERM)
            for name in list(self.state["processes"]):
                self.stop(name)
            self._end_strays()
            self.postgres.stop()
            shutil.rmtree(self.directory)

    def describe(self) -> dict[str, Any]:
        """Return the URL, the token, and whether each process runs."""
        if not (self.directory / STATE).exists():
            return {"url": None, "processes": {}}
        self._load()
        running = {name: self._is_running(name) for name in self.state["processes"]}
        return {
            "url": self.url,
            "token": self.token,
            "directory": str(self.directory),
            "store": self.store_url("replica"),
            "processes": {"postgres": self.postgres.is_running(), **running},
        }

    # --- facts ------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.state['ports'].get('nginx', 0)}"

    @property
    def token(self) -> str:
        return str(self.state["secrets"].get("token", ""))

    def replica_url(self, number: int) -> str:
        return f"http://127.0.0.1:{self.state['ports'][f'replica-{number}']}"

    def store_url(self, role: str) -> str:
        password, port = self.state["secrets"][role], self.state["ports"]["postgres"]
        return f"postgresql://onetool_{role}:{password}@127.0.0.1:{port}/onetool"

    def environment(self, name: str, role: str = "replica") -> dict[str, str]:
        """Return the environment of a process with a home of its own."""
        home = self.directory / name
        inherited = {key: os.environ[key] for key in INHERITED if key in os.environ}
        own = {
            "HOME": str(home),
            "TMPDIR": str(home / "tmp"),
            "ONETOOL_STANDALONE": "1",
            MARKER: str(self.directory),
        }
        store = {"ONETOOL_STORE": self.store_url(role), "ONETOOL_KEY": self.state["secrets"]["key"]}
        return {**inherited, **own, **store, **self._variables}

    def run_command(self, *arguments: str, role: str = "replica", check: bool = True) -> str:
        """Run a command of `onetool` with the rights of a role and return what it prints."""
        self._prepare_home("admin")
        ran = subprocess.run(
            [self._program, *arguments],
            cwd=self.work,
            env=self.environment("admin", role),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        if check and ran.returncode:
            raise TopologyError(f"`onetool {' '.join(arguments)}` failed: {ran.stderr.strip()}")
        return ran.stdout

    def process_id(self, name: str) -> int:
        return int(self.state["processes"][name][0])

    # --- the database -----------------------------------------------------------------------------

    def _start_database(self) -> None:
        known = self.state["secrets"]
        if "superuser" not in known:  # a cluster whose password was not stored is useless
            self.postgres.delete()
        for name in ("superuser", "migration", "replica", "worker"):
            known.setdefault(name, secrets.token_hex(16))
        known.setdefault("key", secrets.token_hex(32))
        self._save()
        self.postgres.create(known["superuser"], {MARKER: str(self.directory)})
        self.state["ports"]["postgres"] = self.postgres.start(
            self.state["ports"].get("postgres", 0)
        )
        self._save()
        self.postgres.create_roles(
            {name: known[name] for name in ("migration", "replica", "worker")}
        )
        self.run_command("store", "upgrade", "--grant", role="migration")

    # --- processes of OneTool ---------------------------------------------------------------------

    def start_replica(self, number: int, **variables: str) -> None:
        """Start a replica, on the port that it had. `wait_until_ready` waits for it."""
        name = f"replica-{number}"
        if self._is_running(name):
            return
        self._prepare_home(name)
        port = self.state["ports"][name] = choose_port(self.state["ports"].get(name, 0))
        command = [self._program, "serve", "--http", "--port", str(port), "--json"]
        self._start(name, command, {**self.environment(name), **variables})

    def wait_until_ready(self, number: int) -> None:
        name, end = f"replica-{number}", time.monotonic() + START_SECONDS
        while not _answers(f"{self.replica_url(number)}/readyz"):
            if not self._is_running(name) or time.monotonic() > end:
                raise TopologyError(f"{name} is not ready: {self._read_log(name)}")
            time.sleep(0.05)

    def _start_worker(self) -> None:
        """Start the worker and wait until it takes jobs: then it prints a line of JSON."""
        if self._is_running("worker"):
            return
        self._prepare_home("worker")
        log, end = self.directory / "worker.log", time.monotonic() + START_SECONDS
        printed = log.stat().st_size if log.exists() else 0
        command = [self._program, "worker", "--queue", QUEUE, "--json"]
        self._start("worker", command, self.environment("worker", "worker"))
        while b'{"queues"' not in log.read_bytes()[printed:]:
            if not self._is_running("worker") or time.monotonic() > end:
                raise TopologyError(
                    f"the worker did not start: {self._read_log('worker')}",
                    "start none: --no-worker",
                )
            time.sleep(0.05)

    def _create_token(self) -> None:
        if self.token:
            return
        create = ("token", "create", TOKEN_NAME, "--json")
        created = self.run_command(*create, check=False)
        if not created:  # it was created before, but never stored
            self.run_command("token", "revoke", TOKEN_NAME)
            created = self.run_command(*create)
        self.state["secrets"]["token"] = json.loads(created)["token"]
        self._save()

    # --- nginx ------------------------------------------------------------------------------------

    def _start_nginx(self, replicas: int, port: int) -> None:
        configuration, known = (
            self.directory / "nginx" / "nginx.conf",
            self.state["ports"].get("nginx", 0),
        )
        if self._is_running("nginx") and port in {0, known}:
            port = known
        else:
            self.stop("nginx")
            port = choose_port(port or known, must_have=bool(port))
        servers = [
            f"server 127.0.0.1:{self.state['ports'][f'replica-{each}']}"
            for each in range(1, replicas + 1)
        ]
        text = render_nginx(configuration.parent, port, servers)
        if self._is_running("nginx") and configuration.read_text("utf-8") == text:
            return
        self.stop("nginx")
        configuration.parent.mkdir(exist_ok=True)
        configuration.write_text(text, "utf-8")
        self.state["ports"]["nginx"] = port
        command = [
            find_program("nginx"),
            "-p",
            str(configuration.parent),
            "-e",
            "stderr",
            "-c",
            str(configuration),
        ]
        self._start("nginx", command, {**os.environ, MARKER: str(self.directory)})
        end = time.monotonic() + START_SECONDS
        while not _answers(f"{self.url}/healthz"):
            if not self._is_running("nginx") or time.monotonic() > end:
                raise TopologyError(f"nginx did not start: {self._read_log('nginx')}")
            time.sleep(0.02)

    # --- processes --------------------------------------------------------------------------------

    def _start(self, name: str, command: list[str], environment: Mapping[str, str]) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=self.work,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.state["processes"][name] = process.pid, _read_start(process.pid)
        self._children[name] = process
        self._save()

    def stop(self, name: str, number: int = signal.SIGTERM) -> None:
        """Send a signal to a process and wait until it has ended; it is killed after a while."""
        if self._is_running(name):
            _end(self.process_id(name), number)
        self.state["processes"].pop(name, None)
        if (child := self._children.pop(name, None)) is not None:
            child.wait()
        self._save()

    def _is_running(self, name: str) -> bool:
        if name not in self.state["processes"]:
            return False
        process, started = self.state["processes"][name]
        return started is not None and _read_start(process) == started

    def _end_strays(self) -> None:
        """End processes of this directory that were not recorded, because `up` was killed when it
        had started them.
        """
        while strays := list(self._find_strays()):  # again, because one may have started another
            for process in strays:
                _end(process, signal.SIGTERM)

    def _find_strays(self) -> Iterator[int]:
        marker = f"{MARKER}={self.directory}".encode()
        known = {int(process) for process, _ in self.state["processes"].values()}
        for entry in Path("/proc").glob("[0-9]*"):
            process = int(entry.name)
            with suppress(OSError):
                is_marked = marker in (entry / "environ").read_bytes().split(b"\0")
                is_descendant = os.getsid(process) in known or process == os.getpid()
                if is_marked and process not in known and not is_descendant:
                    yield process

    def _read_log(self, name: str) -> str:
        log = self.directory / f"{name}.log"
        return (
            log.read_text("utf-8", "replace")[-2000:].strip() if log.exists() else "it has no log"
        )

    # --- files ------------------------------------------------------------------------------------

    def _prepare_directory(self) -> None:
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        self.directory.mkdir(mode=0o711, exist_ok=True)  # the user of PostgreSQL passes through it
        if self.directory.is_symlink() or self.directory.stat().st_uid != os.getuid():
            raise TopologyError(
                f"{self.directory} is not a directory of yours",
                "choose another one with --directory",
            )
        self.work.mkdir(mode=0o700, exist_ok=True)

    def _prepare_home(self, name: str) -> None:
        home = self.directory / name
        (home / "tmp").mkdir(parents=True, exist_ok=True, mode=0o700)
        home.chmod(0o700)
        (home / ".onetool").mkdir(exist_ok=True, mode=0o700)
        (home / ".onetool" / "onetool.yaml").write_text(self.settings, "utf-8")

    @contextmanager
    def _lock(self) -> Iterator[None]:
        descriptor = os.open(self.directory, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _load(self) -> None:
        with suppress(FileNotFoundError):
            self.state = json.loads((self.directory / STATE).read_text("utf-8"))

    def _save(self) -> None:
        new = self.directory / f"{STATE}.new"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(self.state, file)
        new.replace(self.directory / STATE)


def render_nginx(directory: Path, port: int, servers: list[str]) -> str:
    """Return the configuration of nginx. A replica that fails is not used for two seconds."""
    routes = NGINX_ROUTES.read_text("utf-8").replace("listen 8080;", f"listen 127.0.0.1:{port};")
    listed = "\n        ".join(f"{server} max_fails=1 fail_timeout=2s;" for server in servers)
    return NGINX.format(directory=directory, servers=listed, routes=routes)


def find_program(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    found = (
        str(beside)
        if beside.exists()
        else shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    )
    if found is None:
        raise TopologyError(
            f"{name} is not installed", "see docs/guide/9-replicas-on-postgresql.md"
        )
    return found


def _replica_number(name: str) -> int:
    kind, _, number = name.partition("-")
    return int(number) if kind == "replica" else 0


def _answers(url: str) -> bool:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            url, timeout=5
        ) as answer:
            return bool(answer.status == 200)  # noqa: PLR2004 - of HTTP
    except OSError:
        return False


def _read_start(process: int) -> int | None:
    """Return when a process started, which tells it from a later one with the same ID; None if it
    has ended.
    """
    with suppress(OSError, IndexError, ValueError):
        fields = Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()
        if fields[0] not in {"Z", "X"}:
            return int(fields[19])
    return None


def _end(process: int, number: int) -> None:
    started, end = _read_start(process), time.monotonic() + STOP_SECONDS
    with suppress(ProcessLookupError):
        os.kill(process, number)
        while started is not None and _read_start(process) == started:
            if time.monotonic() > end:
                os.kill(process, signal.SIGKILL)
                end += STOP_SECONDS
            time.sleep(0.01)


# --- command line ---------------------------------------------------------------------------------


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    state = Path("/var/lib") if os.getuid() == 0 else Path.home() / ".local" / "state"
    parser.add_argument(
        "--directory",
        type=Path,
        default=state / "onetool-topology",
        help="directory of all files (default: %(default)s)",
    )
    actions = parser.add_subparsers(dest="action", required=True)
    up = actions.add_parser("up", help="start everything that does not run")
    up.add_argument(
        "--replicas",
        type=int,
        default=2,
        metavar="N",
        help="number of replicas (default: %(default)s)",
    )
    up.add_argument(
        "--port",
        type=int,
        default=DEFAULT_PORT,
        help="port of nginx (default: %(default)s; 0 for any)",
    )
    up.add_argument("--settings", type=Path, metavar="FILE", help="settings file for every replica")
    up.add_argument(
        "--work", type=Path, metavar="DIRECTORY", help="working directory of every replica"
    )
    up.add_argument("--no-worker", action="store_true", help="start no worker")
    for action in (up, actions.add_parser("status", help="show the processes")):
        action.add_argument("--json", action="store_true", help="print JSON")
    actions.add_parser("down", help="stop everything and delete the directory")
    return parser.parse_args()


def main() -> int:
    options = parse_arguments()
    directory = options.directory.absolute()
    try:
        if options.action == "up":
            settings = options.settings.read_text("utf-8") if options.settings else SETTINGS
            work = options.work.absolute() if options.work else None
            topology = Topology(directory, settings=settings, work=work)
            topology.up(options.replicas, options.port, has_worker=not options.no_worker)
        else:
            topology = Topology(directory)
        if options.action == "down":
            topology.down()
        else:
            _show(topology.describe(), as_json=options.json)
    except (TopologyError, OSError, subprocess.SubprocessError) as error:
        _fail(error)
    return 0


def _show(facts: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(facts, indent=2))
    elif facts["url"] is None:
        print("Nothing runs.")
    else:
        lines = [
            f"{name:12} {'runs' if runs else 'has ended'}"
            for name, runs in facts["processes"].items()
        ]
        print("\n".join([*lines, f"URL:         {facts['url']}", f"Token:       {facts['token']}"]))


def _fail(error: Exception) -> NoReturn:
    hint = getattr(error, "hint", "")
    print(f"error: {error}" + (f"\nHint: {hint}" if hint else ""), file=sys.stderr)
    raise SystemExit(1)


if __name__ == "__main__":
    raise SystemExit(main())
