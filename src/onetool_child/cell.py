"""A cell: the process of one run. It waits for code, runs it like a module, answers and exits.

The zygote forks it, or it starts as a separate process without fork. Everything after `serve` is
controlled by the code of the model: the security boundary is the kernel (see `confine`) and the
server, not this module. As much as possible is prepared before the fork, because a cell has to copy
every page that it writes to.
"""

import _signal as signals  # type: ignore[import-not-found]  # `signal` wraps these in enums, which touch many pages
import builtins
import codecs
import contextvars
import io
import json
import linecache
import os
import select
import sys
from _thread import (
    start_new_thread,
)  # imported by name, because a deterministic run replaces them in their modules
from contextlib import suppress
from time import monotonic, sleep
from types import FrameType, ModuleType
from typing import Any

from onetool_child import data, media, messages
from onetool_child.capture import (
    NO_VALUE,
    Namespace,
    describe_failed_value,
    describe_shape,
    execute,
    find_value_line,
    split_lines,
)
from onetool_child.data import render_value
from onetool_child.errors import (
    TIMEOUT_HINT,
    TREE,
    ToolError,
    ToolNotFound,
    ToolTimeout,
    describe,
    error_type,
    get_message,
    report_causes,
)
from onetool_child.json_types import JsonObject
from onetool_child.names import FILENAME, OWN_PACK, PROJECTS
from onetool_child.pack_proxy import (
    HelpFunction,
    OtProxy,
    PackFinder,
    PackProxy,
    ToolProxy,
    UnknownResult,
)
from onetool_child.project_path import ProjectsProxy
from onetool_child.rpc import ConnectionLost, Peer
from onetool_child.summary import (
    SNIPPET_FILE,
    describe_file,
    describe_missing_name,
    find_line,
    find_snippet_line,
    summary,
)

OUTPUT_BUFFER_BYTES = 8192
FLUSH_SECONDS = 0.04  # maximum delay of printed output
RETRY_SECONDS = 0.01
REHEARSAL = "rehearsal.call()"
MAX_WRITE_BYTES = messages.MAX_PIECE_BYTES // 4  # a replaced byte takes three in UTF-8
MAX_SNIPPET_DEPTH = 20
MAX_NAMES = 1000  # of unknown names in one run
OWN_PID = "own-pid"  # placeholder in the first line for the process ID
MAX_MESSAGE_CHARS = MAX_SOURCE_CHARS = 10_000
SNIPPET_DEPTH = contextvars.ContextVar("snippet_depth", default=0)
RUN_RESULT = "ot.run_result"  # returns data of the user, unlike other tools of `ot`
HAS_TIMER = hasattr(signals, "setitimer")


class Cell:
    def __init__(
        self, peer: Peer | None = None, buffer_type: type[io.BufferedWriter] = io.BufferedWriter
    ) -> None:
        self._peer = peer or Peer(-1, -1, data.encode)
        self._output = _Output(self._peer, buffer_type)
        self._id = 0
        self._params: JsonObject = {}
        self._from_ot: list[Any] = []
        self._main: Namespace = {}
        self._finder = PackFinder(self._import_pack)
        self._deadline = self._paused_for = 0.0
        self._on_clock: Any = None  # called with the times of calls in a deterministic run
        self._media_count = 0
        self._last_shape = ""  # of the value of the last call
        # `site` is not loaded, but people and models expect what it adds.
        vars(builtins).update(exit=sys.exit, quit=sys.exit, help=HelpFunction(self._call))
        if HAS_TIMER:
            signals.signal(signals.SIGALRM, self._on_alarm)

    def serve(self, reader: int, writer: int, ready: str) -> None:
        """Report the active isolation, run one piece of code and exit. Never returns."""
        self._peer.connect(reader, writer)
        try:
            self._peer.send_line(ready.replace(OWN_PID, str(os.getpid())))
            sys.stdout = sys.stderr = self._output.stream
            sys.stdin = io.StringIO()
            # On Windows, `select` accepts only sockets.
            if sys.platform == "win32" or not select.select([reader], [], [], 0)[0]:
                self.rehearse()
            request = self._peer.receive()
            self._id = request["id"]
            self._params = request["params"]
            self._run()
        except (ConnectionLost, OSError):
            pass  # the server is gone, or has ended this run
        finally:
            os._exit(0)

    def rehearse(self) -> None:
        """Run once without effects, so that the memory pages exist when the real run comes."""
        names: JsonObject = {"packs": {"rehearsal": ["call"]}, "tools": {}}
        self._params = {
            "code": REHEARSAL,
            "names": names,
            "format": None,
            "max_output": OUTPUT_BUFFER_BYTES,
        }
        with self._peer.disconnected('"2000-01-01T00:00:00"'):
            self._encode_success(execute(REHEARSAL, self._create_namespace()))

    def _run(self) -> None:
        if used_elsewhere := self._params.get("used_memory"):
            from onetool_child import confine  # WebAssembly sandboxes do not have it

            confine.give_up_memory(used_elsewhere)
        replay = self._params.get("replay")
        is_pausable = self._params.get("pausable")
        if replay or is_pausable:
            self._peer.on_answer = self._handle_answer
        if replay:
            from onetool_child import deterministic

            self._on_clock = deterministic.start(
                replay["seed"].encode(), replay["clock"], replay["until"]
            )
        elif (
            "random" in sys.modules
        ):  # every cell is a copy of the zygote, including its random state
            sys.modules["random"].seed()
        is_executed = False
        try:
            self._start_clock()
            sys.meta_path.append(self._finder)  # not before: the zygote imports modules too
            value = execute(
                self._params["code"], self._create_namespace(), find=self._request_names
            )
            is_executed = True
            self._check_sanitize()
            answer = self._encode_success(value)
        except BaseException as error:  # noqa: BLE001 - the answer reports whatever the code raised
            answer = self._encode_failure(error, is_executed=is_executed)
        self._output.flush()
        self._peer.send_line(answer)

    # --- the answer -------------------------------------------------------------------------------

    def _encode_success(self, value: Any) -> str:
        chosen = self._main.get("__format__")
        chosen = chosen if isinstance(chosen, str) and chosen in data.FORMATS else None
        result = {
            "value": None if value is NO_VALUE else str(value) if chosen == "raw" else value,
            "has_value": value is not NO_VALUE,
            "format": chosen,
            "sanitize": self._get_sanitize(),
            "from_ot": any(value is result for result in self._from_ot),
        }
        line = data.encode({"jsonrpc": "2.0", "id": self._id, "result": result}, self._store_media)
        if messages.fits(line):
            return line
        # YAML takes a second per megabyte, and JSON is valid YAML.
        is_indented = chosen in {"json_h", "yml_h"} and not data.has_too_much_indentation(
            result["value"]
        )
        text, parsed = render_value(result["value"], line, 2 if is_indented else None)
        limit = self._params["max_output"]
        if len(text) > limit:
            raise ToolError(
                f"the value has {len(text)} characters, the limit is {limit}; return a part of it"
            )
        # It is sent as rendered text, so that the server never parses it.
        self._peer.send_pieces("value", messages.split_text(text))
        about = {"value": None, "is_json": not isinstance(parsed, str), "about": summary(parsed)}
        return data.encode({"jsonrpc": "2.0", "id": self._id, "result": {**result, **about}})

    def _store_media(self, value: Any) -> JsonObject | None:
        """Send an image or audio to the server and return its description, if it is one."""
        # `isinstance` would read `__class__`, which an unknown result of a plan does not have.
        is_binary = (
            issubclass(type(value), bytes | bytearray) and self._media_count < media.MAX_MEDIA
        )
        content = media.find_media(value, self._params["max_output"]) if is_binary else None
        if content is None:
            return None
        self._media_count += 1
        return media.send_media(self._peer, content, self._id)

    def _check_sanitize(self) -> None:
        chosen = self._main.get("__sanitize__")
        if chosen is not None and not isinstance(chosen, bool):
            raise ToolError(
                f"invalid __sanitize__ of type {type(chosen).__name__}: expected True or False"
            )

    def _get_sanitize(self) -> bool | None:
        chosen = self._main.get("__sanitize__")
        return chosen if isinstance(chosen, bool) else None

    def _encode_failure(self, error: BaseException, *, is_executed: bool) -> str:
        """Return the answer for an error. After the code was executed, its value raised the error."""
        if isinstance(error, SystemExit) and (error.code is None or error.code == 0):
            return self._encode_success(NO_VALUE)
        line = find_line(error)
        if line is None and is_executed:
            line = find_value_line(self._params["code"])
        return self._encode_failure_at(error, line)

    def _encode_failure_at(self, error: BaseException, line: int | None) -> str:
        lines = split_lines(self._params["code"])
        source = lines[line - 1][:MAX_SOURCE_CHARS] if line and line <= len(lines) else None
        name = getattr(error, "name", None) if isinstance(error, NameError | ImportError) else None
        is_in_run = (
            isinstance(error, SyntaxError) and error.filename == FILENAME
        )  # `str(error)` repeats the line
        text = (
            str(error.msg) if isinstance(error, SyntaxError) and is_in_run else get_message(error)
        )
        message = f"{text[:MAX_MESSAGE_CHARS]}{find_snippet_line(error)}"
        kind = {"type": error_type(error), "class": type(error).__name__, "message": message}
        about = {
            **kind,
            "line": line,
            "source": source,
            "name": name,
            "sanitize": self._get_sanitize(),
        }
        details = {**describe_missing_name(error), **describe_file(error)}
        if shape := describe_failed_value(error, FILENAME, self._last_shape):
            details["shape"] = shape
        fields = _describe_fields(error)
        if causes := report_causes(error, FILENAME):
            trace = fields.get("trace")
            details["trace"] = f"{trace}\n{causes}" if trace else causes
        answer = self._encode_error({**fields, **about, **details})
        # Its fields may not be serializable, or be too large.
        return answer or self._encode_error({**about, "name": None}) or ""

    def _encode_error(self, about: JsonObject) -> str | None:
        detail = {"code": -32000, "message": "", "data": about}
        try:
            answer = data.encode({"jsonrpc": "2.0", "id": self._id, "error": detail})
        except ValueError:
            return None
        return answer if messages.fits(answer) else None

    # --- the namespace ----------------------------------------------------------------------------

    def _create_namespace(self) -> Namespace:
        """Create a real module, in which classes and pickle find themselves by name."""
        code = self._params["code"]
        linecache.cache[FILENAME] = (
            len(code),
            None,
            [f"{line}\n" for line in split_lines(code)],
            FILENAME,
        )
        module = ModuleType("__main__")
        module.__dict__["__builtins__"] = builtins
        if self._params["format"]:
            module.__dict__["__format__"] = self._params["format"]
        module.__dict__.update(self._bind_names(code, self._params["names"]))
        sys.modules["__main__"] = module
        self._main = module.__dict__
        return self._main

    def _bind_names(self, code: str, names: JsonObject) -> Namespace:
        """Return the errors, packs, aliases and projects whose names occur in the code."""
        bindings: Namespace = {name: TREE[name] for name in TREE if name in code}
        spelled = names.get("spelled", {})  # packs by the names in the code, which differ in case
        for pack, tools in names["packs"].items():
            bindings[pack] = self._make_pack(spelled.get(pack, pack), tools)
        for name, target in names["tools"].items():
            bindings[name] = ToolProxy(target, self._call, self._peer.request)
        if "projects" in names:
            bindings["proj"] = ProjectsProxy(
                names["projects"], lambda name, kwargs: self._call(name, (), kwargs)
            )
        return bindings

    def _make_pack(self, pack: str, tools: list[str]) -> PackProxy:
        if pack == OWN_PACK:
            return OtProxy(pack, tools, self._call, self._peer.request, self._run_snippet)
        return PackProxy(pack, tools, self._call, self._peer.request)

    def _import_pack(self, name: str) -> Any:
        """Return the pack, or `proj`, that code imports; None if there is none."""
        bound = self._main.get(name)
        if isinstance(bound, PackProxy | ProjectsProxy):
            return bound
        if name == PROJECTS:
            return self._request_names([name], []).get(name)
        try:
            return self._make_pack(self._peer.request("pack", {"name": name}), [])
        except ToolNotFound:
            return None

    def _request_names(self, unknown: list[str], used: list[str]) -> JsonObject:
        """Request packs, aliases and tools that the server did not send with the code."""
        params = {"names": unknown[:MAX_NAMES], "used": used[:MAX_NAMES]}
        return self._bind_names("", self._peer.request("names", params))

    def _call(self, name: str, args: tuple[Any, ...], kwargs: JsonObject, account: str = "") -> Any:
        self._output.flush()  # send printed output before waiting for the call
        params = {
            "name": name,
            "args": args,
            "kwargs": kwargs,
            **({"account": account} if account else {}),
        }
        value = self._peer.request("call", params)
        self._last_shape = describe_shape(value)
        if type(value) is dict and value.keys() == {self._params.get("placeholder")}:
            return self._make_placeholder(value)
        if name.startswith("ot.") and name != RUN_RESULT and isinstance(value, dict | list):
            self._from_ot.append(value)
        return value

    def _make_placeholder(self, data: JsonObject) -> Any:
        """Return a placeholder for the result of a call that a plan did not make."""
        return UnknownResult(
            data, lambda line: self._peer.request("inspect", {"data": data, "line": line})
        )

    def _run_snippet(self, name: str, values: JsonObject) -> Any:
        """Run a snippet in its own namespace, like a function."""
        if SNIPPET_DEPTH.get() >= MAX_SNIPPET_DEPTH:
            raise ToolError(
                f"snippets are nested more than {MAX_SNIPPET_DEPTH} levels deep, the last is"
                f" ${name}"
            )
        expansion = self._peer.request("snippet", {"name": name, "values": values})
        code = expansion["code"]
        namespace = {"__builtins__": builtins, **self._bind_names(code, expansion["names"])}
        outer = SNIPPET_DEPTH.set(SNIPPET_DEPTH.get() + 1)
        try:
            value = execute(
                code,
                {"__name__": "__main__", **namespace},
                f"{SNIPPET_FILE}{name}>",
                self._request_names,
            )
        finally:
            SNIPPET_DEPTH.reset(outer)
        return None if value is NO_VALUE else value

    # --- time -------------------------------------------------------------------------------------

    def _start_clock(self) -> None:
        """Start the timer. Only longer runs get a thread that flushes printed output."""
        seconds = self._params["seconds_left"]
        self._deadline = monotonic() + seconds
        if HAS_TIMER:
            signals.setitimer(signals.ITIMER_REAL, min(FLUSH_SECONDS, seconds))
        else:
            self._output.start_flushing()

    def _on_alarm(self, signal: int, frame: FrameType | None) -> None:
        left = self._deadline + self._paused_for - monotonic()
        if left <= 0 and self._params.get("pausable") and self._peer.unanswered:
            left = FLUSH_SECONDS  # a person may be asked; the server ends the run if nobody is
        if left <= 0:
            self._handle_timeout(signal, frame)
            return
        self._output.start_flushing()
        signals.setitimer(signals.ITIMER_REAL, left)

    def _handle_answer(self, answer: JsonObject) -> None:
        """Read how long the server says the run was paused, and when a call ended."""
        self._paused_for = max(self._paused_for, answer.get("paused_for", 0.0))
        if "clock" in answer and self._on_clock is not None:
            self._on_clock(answer["clock"], answer.get("replayed", False))

    def _handle_timeout(self, _signal: int, frame: FrameType | None) -> None:
        """Report the line that was running.

        The server kills the cell shortly afterwards in any case.
        """
        if not self._peer.writing.acquire(blocking=False):  # a line is being written: wait for it
            signals.setitimer(signals.ITIMER_REAL, RETRY_SECONDS)
            return
        self._peer.writing.release()
        while frame is not None and frame.f_code.co_filename != FILENAME:
            frame = frame.f_back
        message = f"the run took longer than {self._params['timeout']:g} s"
        error = ToolTimeout(message, hint=TIMEOUT_HINT)
        answer = self._encode_failure_at(error, frame.f_lineno if frame else None)
        try:
            self._output.flush()
            self._peer.send_line(answer)
        finally:
            os._exit(0)


class _Output(io.RawIOBase):
    """The standard output of the code, which is sent to the server.

    `stream` is the text file the code sees.
    """

    def __init__(self, peer: Peer, buffer_type: type[io.BufferedWriter]) -> None:
        self._peer = peer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._buffer = buffer_type(self, OUTPUT_BUFFER_BYTES)
        self._is_flushing = False
        # With `write_through`, everything pending is in the buffer, whose lock keeps flushes of two
        # threads in order.
        self.stream = io.TextIOWrapper(
            self._buffer,
            encoding="utf-8",
            errors="backslashreplace",
            newline="\n",
            write_through=True,
        )

    def writable(self) -> bool:
        return True

    def write(self, chunk: Any) -> int:
        written = bytes(chunk[:MAX_WRITE_BYTES])  # the caller writes the rest again
        self._peer.send_pieces("output", messages.split_text(self._decoder.decode(written)))
        return len(written)

    def flush(self) -> None:
        with suppress(RuntimeError, ValueError):  # closed, or interrupted during a write
            self.stream.flush()

    def start_flushing(self) -> None:
        """Flush printed output periodically. Without a thread, it is sent at the end."""
        if not self._is_flushing:
            self._is_flushing = True
            with suppress(RuntimeError):
                start_new_thread(self._flush_periodically, ())

    def _flush_periodically(self) -> None:
        with suppress(OSError, RuntimeError, ValueError):  # the run is over, or closed its output
            while True:
                self._buffer.flush()
                sleep(FLUSH_SECONDS)


def _describe_fields(error: BaseException) -> JsonObject:
    try:
        return describe(error)
    except Exception:  # noqa: BLE001 - a class of the code may do anything
        return {}


def main(argv: list[str]) -> None:
    """Start as a separate process without a zygote. The pipes are descriptors 0 and 1."""
    from onetool_child import confine
    from onetool_child.zygote import Options, confine_cell, confine_zygote, ready

    os.environ.pop("PYTHONHASHSEED", None)
    confine.die_with_parent(os.getppid())
    reader = os.dup(0)
    writer = os.dup(1)
    options = Options(**json.loads(argv[0]))
    scratch = argv[1]
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(2, 1)
    os.chdir(scratch)
    cell = Cell()
    confinement = confine_zygote(options)
    confine_cell(confinement, confinement.ruleset(scratch), keep=(reader, writer))
    cell.serve(reader, writer, ready(confinement))
