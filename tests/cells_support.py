"""Helpers for tests of cells: a server in a separate process that can be attacked, killed, and run
as any user.

`Arena` controls `tests.e2e.arena`. The user of the server may access its directory, so that only
the confinement, and not file permissions, can prevent access there.
"""

import contextlib
import fcntl
import functools
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Self

import pytest
from tests.support import ISOLATION, TIMEOUT_SECONDS

ROOT = Path(__file__).parents[1]
SENTINEL = "SENTINEL-ESCAPED"
ORDINARY_USER = 61234  # a number that no account of the machine has
NIGHTLY = os.environ.get("ONETOOL_NIGHTLY") == "1"
IS_ROOT = os.geteuid() == 0
# A WebAssembly sandbox takes longer to start, and attacks often end its process.
SECONDS = (
    {"brief": 2.0, "patient": 20.0} if ISOLATION == "auto" else {"brief": 8.0, "patient": 30.0}
)
SHOWN = 20_000


def skip_or_fail(reason: str) -> NoReturn:
    """Skip a test that this machine cannot run, or fail it with CI=true."""
    (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


def compute_once(
    factory: pytest.TempPathFactory, name: str, compute: Callable[[], Any], *, wait: bool = True
) -> Any:
    """Compute a result in the first pytest worker.

    The others wait for it or, without `wait`, get None.
    """
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    file = folder / f"{name}.json"
    with (folder / f"{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        if not file.exists():
            file.write_text(json.dumps(_try_compute(compute)), encoding="utf-8")
        result, problem = json.loads(file.read_text(encoding="utf-8"))
    assert problem is None, problem
    return result


def _try_compute(compute: Callable[[], Any]) -> tuple[Any, str | None]:
    """Return the result or the traceback: computing it again for every test would take hours."""
    try:
        return compute(), None
    except Exception:  # noqa: BLE001 - it fails every test that asks for it
        return None, traceback.format_exc()


@dataclass(frozen=True)
class Setup:
    """The setup of the server: isolation, launcher, kernel features to hide, and user."""

    isolation: str = ISOLATION
    launcher: str = "forked"
    lacking: tuple[str, ...] = ()
    as_user: bool = False
    execution: Mapping[str, Any] = field(default_factory=dict)
    timeouts: Mapping[str, float] = field(default_factory=lambda: SECONDS)
    home: Path | None = None
    scratch: Path | None = None
    forked: bool = True  # a forked process has the environment of its parent in /proc


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run. `raised` is an exception of the server itself, which must not happen."""

    blocks: tuple[str, ...] = ()
    is_error: bool = False
    error: str | None = None
    seconds: float = 0.0
    length: int = 0
    raised: str | None = None
    probe: str = ""

    @property
    def text(self) -> str:
        return "\n".join(self.blocks)

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> "Outcome":
        facts = {name: value for name, value in message.items() if name != "id"}
        return cls(**{**facts, "blocks": tuple(facts.get("blocks", ()))})


class Arena:
    def __init__(self, folder: Path, setup: Setup) -> None:
        self.folder, self.setup = folder, setup
        self.home = setup.home or folder / "home"
        self.scratch = setup.scratch or folder / "scratch"
        self._abstract = f"rsec_{secrets.token_hex(8)}"
        self._waiting: dict[str, Future[dict[str, Any]]] = {"hello": Future()}
        self.noise: list[str] = []  # lines of the server's standard output that are not responses
        _create_files(folder, self.home, self.scratch, ORDINARY_USER if setup.as_user else None)
        self._stderr = (folder / "stderr").open("w+", encoding="utf-8", errors="replace")
        self.process = subprocess.Popen(
            self._command(),
            executable=None if setup.forked else sys.executable,
            cwd=ROOT,
            env=self._environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        self.port = int(self._waiting["hello"].result(TIMEOUT_SECONDS * 3)["port"])
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect, and wait until the server has ended."""
        if self._stderr.closed:
            return
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(TIMEOUT_SECONDS * 3)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(TIMEOUT_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._stderr.close()

    def run(self, code: str, app: str = "patient", *, shown: int = SHOWN) -> Outcome:
        return self.start(code, app, shown=shown).result(SECONDS[app] + TIMEOUT_SECONDS)

    def start(
        self, code: str, app: str = "patient", *, ident: str | None = None, shown: int = SHOWN
    ) -> Future[Outcome]:
        return self._outcome(do="run", code=self.placed(code), app=app, shown=shown, ident=ident)

    def attempt(self, code: str, app: str, *, shown: int = SHOWN) -> Future[Outcome]:
        """Start an attack, and a run after it that must not be affected."""
        return self._outcome(do="attempt", code=self.placed(code), app=app, shown=shown)

    def cancel(self, ident: str) -> None:
        self._ask(do="cancel", of=ident).result(TIMEOUT_SECONDS)

    def facts(self) -> dict[str, Any]:
        return self._ask(do="facts").result(TIMEOUT_SECONDS)

    def stderr(self) -> str:
        return Path(self._stderr.name).read_text(encoding="utf-8", errors="replace")

    def placed(self, code: str) -> str:
        """Return the code with the paths, the port and the socket name of this arena."""
        places = {
            "/tmp/": f"{self.folder}/",
            "8765": str(self.port),
            "rsec_sentinel": self._abstract,
            "@SERVER@": str(self.process.pid),
            "@HOME@": str(self.home),
            "@SOURCE@": str(ROOT / "src"),
            "@PACKAGES@": str(
                next(Path(path) for path in sys.path if path.endswith("site-packages"))
            ),
        }
        return functools.reduce(lambda text, place: text.replace(*place), places.items(), code)

    # --- the process ------------------------------------------------------------------------------

    def _outcome(self, **order: Any) -> Future[Outcome]:
        outcome: Future[Outcome] = Future()
        self._ask(**order).add_done_callback(lambda done: _copy_result(done, outcome))
        return outcome

    def _ask(self, ident: str | None = None, **order: Any) -> Future[dict[str, Any]]:
        ident = ident or secrets.token_hex(
            8
        )  # unguessable, so that hostile code cannot forge a response
        answer: Future[dict[str, Any]] = Future()
        self._waiting[ident] = answer
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"id": ident, **order}).encode() + b"\n")
        self.process.stdin.flush()
        return answer

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                message = json.loads(line)
                answer = self._waiting.pop(message["id"])
            except (ValueError, KeyError, TypeError):
                self.noise.append(line.decode(errors="replace"))
            else:
                answer.set_result(message)
        for answer in self._waiting.values():
            answer.set_exception(ConnectionError(f"the server is gone: {self.stderr()[-2000:]}"))

    def _command(self) -> list[str]:
        setup = {
            "folder": str(self.folder),
            "abstract": self._abstract,
            "isolation": self.setup.isolation,
            "launcher": self.setup.launcher,
            "lacking": self.setup.lacking,
            "execution": dict(self.setup.execution),
            "timeouts": dict(self.setup.timeouts),
        }
        command = [sys.executable, "-m", "tests.e2e.arena", json.dumps(setup)]
        return as_ordinary_user(command) if self.setup.as_user else command

    def _environment(self) -> dict[str, str]:
        return {
            "HOME": str(self.home),
            "PATH": os.environ["PATH"],
            "TMPDIR": str(self.scratch),
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
            "SENTINEL_SECRET": SENTINEL,
        }


def _copy_result(done: Future[dict[str, Any]], outcome: Future[Outcome]) -> None:
    if (error := done.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(Outcome.of(done.result()))


@contextlib.contextmanager
def open_arena(setup: Setup | None = None) -> Iterator[Arena]:
    setup = setup or Setup()
    if setup.as_user:
        require_ordinary_user()
    # not the directory of pytest, which only its owner may enter
    folder = Path(tempfile.mkdtemp(prefix="arena-", dir="/tmp"))
    try:
        with Arena(folder, setup) as opened:
            yield opened
    finally:
        # hostile code may have left files that shutil.rmtree cannot remove
        subprocess.run(["rm", "-rf", str(folder)], check=True)


def _create_files(folder: Path, home: Path, scratch: Path, user: int | None) -> None:
    """Create the files that hostile code could look for, readable and writable for its user."""
    files = {
        "sentinel.txt": SENTINEL,
        "sentinel_mod.py": f"R = {SENTINEL!r}\n",
        "sentinel_inherited": SENTINEL,
        "home/.onetool/secrets.yaml": f"OTHER: {SENTINEL}\n",
    }
    for path in (scratch, home, folder / "home" / ".onetool"):
        path.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    with contextlib.suppress(OSError):  # a file system without them
        os.setxattr(folder / "sentinel.txt", "user.secret", SENTINEL.encode())
    os.utime(folder / "sentinel.txt", (1_000_000_000, 1_000_000_000))
    folder.chmod(0o755)
    if user is not None:
        for path in (folder, *folder.rglob("*"), home, scratch):
            os.chown(path, user, user)


# --- an ordinary user -----------------------------------------------------------------------------


def as_ordinary_user(command: Sequence[str]) -> list[str]:
    program = str(ROOT / "tests" / "e2e" / "as_user.py")
    return [
        sys.executable,
        program,
        str(ORDINARY_USER),
        *_list_needed_directories(),
        "--",
        *command,
    ]


def _list_needed_directories() -> list[str]:
    """Return the directories of the interpreter and the source, with links resolved."""
    executable, directories = Path(sys.executable), {ROOT, Path(sys.prefix), Path(sys.base_prefix)}
    while executable.is_symlink():
        executable = executable.parent / executable.readlink()
        directories.add(executable.parent)
    return sorted({str(folder.resolve()) for folder in directories} | {str(Path(sys.base_prefix))})


def require_ordinary_user() -> None:
    """Skip or fail the test if the server cannot be run as another user."""
    if not IS_ROOT:
        pytest.skip("only root can become another user")
    if (problem := _find_user_problem()) is not None:
        skip_or_fail(f"the server cannot be run as an ordinary user here: {problem}")


@functools.cache
def _find_user_problem() -> str | None:
    command = as_ordinary_user([sys.executable, "-c", "import onetool.app, tests.e2e.demo_pack"])
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    return None if done.returncode == 0 else done.stderr.strip()[-500:]
