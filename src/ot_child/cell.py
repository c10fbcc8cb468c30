"""A cell: one process, one run. It waits for the code, runs it as a module would run, answers, and is gone.

It is forked by the zygote, or started by itself where there is no fork. Everything after `start` belongs to the code that
the model wrote: nothing here is a boundary; the kernel (see `confine`) and the server are.
"""

import codecs
import io
import linecache
import os
import signal
import sys
import types
from typing import Any

from ot_child import data, errors
from ot_child.capture import FILENAME, NO_VALUE, execute
from ot_child.pack_proxy import OtProxy, PackProxy, ToolProxy
from ot_child.rpc import ConnectionLost, Peer

OUTPUT_BUFFER = 8192
RETRY_SECONDS = 0.01


def serve(reader: int, writer: int, ready: dict[str, Any]) -> None:
    """Say what is in force, run one piece of code, end. Never returns."""
    peer = Peer(reader, writer, data.encode)
    try:
        peer.notify("ready", ready)
        request = peer.receive()
        Run(peer, request["id"], request["params"]).answer()
    except (ConnectionLost, OSError):
        pass  # the server is gone, or has cut this run off
    finally:
        os._exit(0)


class Run:
    def __init__(self, peer: Peer, ident: int, params: dict[str, Any]) -> None:
        self._peer, self._id, self._params = peer, ident, params
        self._code: str = params["code"]
        self._from_ot: list[Any] = []
        self._output = _Output(peer)

    def answer(self) -> None:
        sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = self._output.stream  # type: ignore[misc] - so print and logging meet
        try:
            self._start_clock(self._params["timeout"])
            value = execute(self._code, self._namespace())
            answer = self._success(value)
        except BaseException as error:  # noqa: BLE001 - whatever the code raised is its answer
            answer = self._failure(error)
        self._output.flush()
        self._peer.send_line(answer)

    def _success(self, value: Any) -> str:
        module = sys.modules["__main__"].__dict__
        result = {
            "value": None if value is NO_VALUE else value,
            "has_value": value is not NO_VALUE,
            "format": module.get("__format__"),
            "from_ot": any(value is given for given in self._from_ot),
        }
        if result["format"] == "raw":
            result["value"] = str(value)
        line = data.encode({"jsonrpc": "2.0", "id": self._id, "result": result})
        if len(line) > self._params["max_output"]:
            raise errors.ToolError(f"the value has {len(line)} bytes, the limit is {self._params['max_output']}")
        return line

    def _failure(self, error: BaseException) -> str:
        if isinstance(error, SystemExit) and error.code in {None, 0}:
            return self._success(NO_VALUE)
        return self._failure_at(error, _line_of(error))

    def _failure_at(self, error: BaseException, line: int | None) -> str:
        lines = self._code.splitlines()
        source = lines[line - 1] if line and line <= len(lines) else None
        name = getattr(error, "name", None) if isinstance(error, NameError | ImportError) else None
        about = {**errors.describe(error), "line": line, "source": source, "name": name}
        detail = {"code": -32000, "message": about["message"], "data": about}
        try:
            return data.encode({"jsonrpc": "2.0", "id": self._id, "error": detail})
        except ValueError:  # fields that are no data
            return self._failure_at(errors.ToolError(errors.message_of(error)), line)

    # --- what the code sees -------------------------------------------------------------------------------------

    def _namespace(self) -> dict[str, Any]:
        """A real module, so that classes, enums, dataclasses and pickle find themselves by name."""
        linecache.cache[FILENAME] = (len(self._code), None, self._code.splitlines(keepends=True), FILENAME)
        module = types.ModuleType("__main__")
        module.__dict__["__builtins__"] = __builtins__
        module.__dict__.update(errors.TREE)
        module.__dict__.update(self._tools())
        sys.modules["__main__"] = module
        return module.__dict__

    def _tools(self) -> dict[str, Any]:
        names = self._params["names"]
        packs = {
            pack: (OtProxy if pack == "ot" else PackProxy)(pack, tools, self._call, self._peer.request)
            for pack, tools in names["packs"].items()
        }
        bare = {name: ToolProxy(target, self._call) for name, target in names["tools"].items()}
        return {**packs, **bare}

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = self._peer.request("call", {"name": name, "args": args, "kwargs": kwargs})
        if name.startswith("ot.") and isinstance(value, dict | list):
            self._from_ot.append(value)
        return value

    # --- time ---------------------------------------------------------------------------------------------------

    def _start_clock(self, seconds: float) -> None:
        """A courtesy: it tells where the code was. The server kills the cell a moment later in any case."""
        if hasattr(signal, "setitimer"):
            signal.signal(signal.SIGALRM, self._out_of_time)
            signal.setitimer(signal.ITIMER_REAL, seconds)

    def _out_of_time(self, _signal: int, frame: types.FrameType | None) -> None:
        if not self._peer.writing.acquire(blocking=False):  # a line is half written: let it end first
            signal.setitimer(signal.ITIMER_REAL, RETRY_SECONDS)
            return
        self._peer.writing.release()
        while frame is not None and frame.f_code.co_filename != FILENAME:
            frame = frame.f_back
        error = errors.ToolTimeout(f"the run took longer than {self._params['timeout']:g} s")
        answer = self._failure_at(error, frame.f_lineno if frame else None)
        try:
            self._output.flush()
            self._peer.send_line(answer)
        finally:
            os._exit(0)


class _Output(io.RawIOBase):
    """Where `print` goes: to the server, as it comes. `stream` is the text file the code sees."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.stream = io.TextIOWrapper(
            io.BufferedWriter(self, OUTPUT_BUFFER), encoding="utf-8", errors="backslashreplace", newline="\n"
        )

    def writable(self) -> bool:
        return True

    def write(self, chunk: Any) -> int:
        self._peer.notify("output", {"text": self._decoder.decode(bytes(chunk))})
        return len(chunk)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except (RuntimeError, ValueError):
            pass  # the code closed it, or was cut off in the middle of writing to it


def _line_of(error: BaseException) -> int | None:
    """The line of the sent text at which it happened: the innermost one, or where the syntax is wrong."""
    if isinstance(error, SyntaxError) and error.filename == FILENAME:
        return error.lineno
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == FILENAME:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def main(argv: list[str]) -> None:
    """Start as a process of its own, where there is no zygote: the pipes arrive as descriptors 0 and 1."""
    import json

    from ot_child.zygote import Options, confine_zygote, prepare_cell

    reader, writer = os.dup(0), os.dup(1)
    options = Options(**json.loads(argv[0]))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    layers = confine_zygote(options)
    layers = prepare_cell(options, argv[1], layers, keep=(reader, writer))
    serve(reader, writer, {"layers": layers})
