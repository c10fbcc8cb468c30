"""Start `onetool` by forking a process that has imported all of it, because tests start it
thousands of times.

The result is a real process: a child of the test's process with its own pipes, environment,
directory, session and exit status. Only the imports and the models of libraries, about half a
second of processor time, are shared. `patch_popen` makes `subprocess.Popen` do it for commands that
are `onetool` itself, also behind `env`, or one of `MODULES`. What a shell starts is started as
usual, and so is what names its `executable`. With ONETOOL_NIGHTLY=1 everything is.

    python forked_program.py DESCRIPTOR    is the process that is forked; it reads requests from that socket
"""

import asyncio
import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import inspect
import io
import json
import logging
import os
import pkgutil
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

ROOT = str(Path(__file__).parents[1])
PROGRAM = str(Path(sys.executable).with_name("onetool"))
MODULES = (
    "tests.e2e.arena",
    "tests.contract.storage_kinds",
)  # programs whose function `main` gets their arguments
MAX_REQUEST_BYTES = 100_000
CLONE_PARENT = 0x00008000
CLONE_NUMBERS = {"x86_64": 56, "aarch64": 220}
DECIDED_AT_START = ("PYTHON", "LC_", "LANG")  # Python reads these before it runs any code
UNSUPPORTED = (
    "preexec_fn",
    "pass_fds",
    "shell",
    "executable",
    "gid",
    "gids",
    "uid",
    "umask",
    "process_group",
)
IMPORTED_LATER = ("anyio._backends._asyncio", "docstring_parser", "jsonschema_rs", "uv", "yaml")
OriginalPopen = subprocess.Popen


# --- in the test's process ------------------------------------------------------------------------


class ForkingPopen(subprocess.Popen[Any]):
    """`subprocess.Popen`, which asks the server for the process if the command is `onetool`."""

    def _execute_child(self, *given: Any, **named: Any) -> None:
        bound = inspect.signature(OriginalPopen._execute_child).bind(self, *given, **named)  # type: ignore[attr-defined]
        options = bound.arguments
        request = request_of(options)
        server = start_server() if request else None
        if request is None or server is None:
            super()._execute_child(*given, **named)  # type: ignore[misc]
            return
        streams = [options["p2cread"], options["c2pwrite"], options["errwrite"]]
        descriptors = [number if stream == -1 else stream for number, stream in enumerate(streams)]
        self.pid = server.fork(request, descriptors)
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(options[name] for name in pipes))  # type: ignore[attr-defined]


def patch_popen() -> None:
    if (
        sys.platform == "linux"
        and os.uname().machine in CLONE_NUMBERS
        and os.environ.get("ONETOOL_NIGHTLY") != "1"
    ):
        setattr(subprocess, "Popen", ForkingPopen)  # noqa: B010 - it is meant to be another class


def request_of(options: Mapping[str, Any]) -> bytes | None:
    """What the server is to be asked for; None for commands that it cannot start."""
    if isinstance(options["args"], str | bytes | os.PathLike) or options["env"] is None:
        return None
    command, env = list(options["args"]), dict(options["env"])
    if command[0] == "env":
        del command[0]
        while "=" in command[0]:
            name, _, value = command.pop(0).partition("=")
            env[name] = value
    if command[0] != PROGRAM and not (
        command[:2] == [sys.executable, "-m"] and command[2] in MODULES
    ):
        return None
    if (
        any(options[name] not in {None, False, (), -1} for name in UNSUPPORTED)
        or not options["close_fds"]
    ):
        return None
    decided = {name for name in env if str(name).startswith(DECIDED_AT_START)} - {
        "PYTHONDONTWRITEBYTECODE"
    }
    if any(env[name] not in {os.environ.get(name), "C.UTF-8"} for name in decided):
        return None
    request = {
        "argv": [os.fspath(word) for word in command],
        "cwd": os.fspath(options["cwd"] or Path.cwd()),
        "env": env,
        "new_session": options["start_new_session"],
    }
    try:
        encoded = json.dumps(request).encode()
    except TypeError:  # bytes
        return None
    return encoded if len(encoded) < MAX_REQUEST_BYTES else None


@functools.cache
def start_server() -> "ProgramServer | None":
    """Start the process that is forked, unless it runs already; where `Popen` does not fork there
    is none.
    """
    return ProgramServer() if subprocess.Popen is ForkingPopen else None


class ProgramServer:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = OriginalPopen(
                [sys.executable, __file__, str(theirs.fileno())],
                cwd="/",
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        atexit.register(self.close)

    def fork(self, request: bytes, descriptors: list[int]) -> int:
        """Return the number of a process that carries out the request."""
        with self._lock:
            socket.send_fds(self._socket, [request], descriptors)
            answer = self._socket.recv(64)
        assert answer, "the server that forks onetool has ended"
        return int(answer)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


# --- in the process that is forked ----------------------------------------------------------------


def serve(descriptor: int) -> None:
    """Fork for each request; return when there are no more."""
    del sys.path[0]
    gc.disable()  # for the imports
    import_everything()
    asyncio.run(rehearse())
    while threading.active_count() > 1:  # threads of the rehearsal end after its event loop
        time.sleep(0.01)
    gc.collect()
    gc.freeze()
    gc.enable()
    number = CLONE_NUMBERS[os.uname().machine]
    syscall = ctypes.PyDLL(None).syscall
    with socket.socket(fileno=descriptor) as requests:
        while True:
            request, descriptors, _, _ = socket.recv_fds(requests, MAX_REQUEST_BYTES, 3)
            if not request:
                return
            assert threading.active_count() == 1, "a process with threads cannot be forked"
            # its parent is ours, so that it is a child of the tests like any process that they
            # start
            child = syscall(number, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
            if child == 0:
                break
            for each in descriptors:
                os.close(each)
            requests.send(str(child).encode())
    become(json.loads(request), descriptors)


def import_everything() -> None:
    import onetool

    sys.path.insert(0, ROOT)
    for name in MODULES:
        importlib.import_module(name)
    del sys.path[0]

    for name in IMPORTED_LATER:
        with contextlib.suppress(ImportError):  # it is not used any more
            importlib.import_module(name)
    for module in pkgutil.walk_packages(onetool.__path__, "onetool."):
        importlib.import_module(module.name)
    # the demo's server, which is a program of its own, configures logging when imported
    logging.root.handlers.clear()


async def rehearse() -> None:
    """Serve a client once, because libraries build their models on first use.

    Nothing else of it is kept.
    """
    from mcp import Client
    from pydantic import BaseModel

    from onetool.app import OneTool
    from onetool.server.mcp.mcp_server import OneToolServer
    from onetool.settings.model import Settings
    from onetool.util.logging import Log

    models = [BaseModel]
    for model in models:
        models += model.__subclasses__()
        if model.__module__.startswith("onetool."):
            model.model_rebuild()
    with tempfile.TemporaryDirectory() as folder:
        async with OneTool(Settings.model_validate({}), folder=Path(folder), log=Log()) as app:
            for mode in ("auto", "legacy"):
                async with Client(OneToolServer(app), mode=mode) as client:
                    await client.list_tools()
                    await client.call_tool("run", {"command": "ot.tools()"})


def become(request: Mapping[str, Any], descriptors: list[int]) -> NoReturn:
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    for descriptor in descriptors:
        os.close(descriptor)
    if request["new_session"]:
        os.setsid()
    coerced = {name: os.environ[name] for name in ("LC_CTYPE",) if name in os.environ}
    os.environ.clear()
    os.environ.update({**coerced, **request["env"]})
    os.chdir(request["cwd"])
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old, raw = getattr(sys, name), open(number, "wb" if number else "rb", closefd=False)  # noqa: SIM115
        new = io.TextIOWrapper(
            raw, old.encoding, old.errors, "\n", line_buffering=number == 2 or raw.isatty()
        )
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
    sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in os.environ
    random.seed()
    tempfile.tempdir = None  # that of the rehearsal
    status = run(request["argv"])
    # what Python does at its end, except for taking everything apart, which costs as much as a
    # small command
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def run(command: list[str]) -> int:
    if command[0] == PROGRAM:
        from onetool.cli.main import main

        sys.argv = command
        sys.path.insert(0, str(Path(PROGRAM).parent))
        return main()
    sys.path.insert(0, ROOT)
    importlib.import_module(command[2]).main(*command[3:])
    return 0


if __name__ == "__main__":
    serve(int(sys.argv[1]))
