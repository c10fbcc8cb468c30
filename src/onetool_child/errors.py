"""The errors of tool calls.

They are defined in this package, which only uses the standard library, because cells and workers
raise the same errors as the server, which imports them as `onetool.errors`. Each class has a
`type`, used in REST responses and logs.

    ToolError                     execution_error
    ├── ToolNotFound              not_found           (an AttributeError, so that hasattr() works on packs)
    ├── ArgumentError             validation_error    (a TypeError, as Python raises for a wrong call)
    ├── PermissionDenied          permission_denied
    ├── SandboxDenied             sandbox_denied
    ├── BudgetExceeded            budget_exceeded
    ├── ToolTimeout               timeout
    ├── NetworkError              network
    ├── HttpStatusError           http_status
    ├── OutputInvalid             output_validation
    ├── Cancelled                 cancelled
    ├── AuditUnavailable          audit_unavailable   (the call was not made)
    ├── StorageError              storage_unavailable (a full or read-only disk, a quota)
    ├── BundleError               bundle_error        (the field `code` has the reason)
    ├── ApprovalRequired          approval_required   (a person must approve the call; `run` identifies it)
    ├── CallRejected              rejected            (a person rejected the call)
    ├── Interrupted               interrupted         (its process ended; what happened is in the message)
    ├── CannotAsk                 cannot_ask          (a tool has a question, and no client can show it)
    └── ConfigError               config_error
"""

from __future__ import annotations

import builtins
import os

TYPE_CHECKING = False  # importing `typing` would double the start-up time of a worker
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Any

    from onetool_child.json_types import JsonMapping, JsonObject

TIMEOUT_HINT = "do less in one run, or raise execution.timeout in onetool.yaml"
_PARTS = frozenset({"hint", "location", "code"})  # fields that are dropped if empty
ENDS_OF_ITERATION = (
    StopIteration,
    StopAsyncIteration,
)  # Python takes them as the end of a loop, or replaces them
MAX_FRAMES = 3  # of one exception, the innermost
MAX_CAUSES = 3
MAX_NOTES = 5
MAX_LINE_CHARS = 300
OWN_DIRECTORY = os.path.dirname(__file__)  # noqa: PTH120 - importing pathlib is slow


class ToolError(Exception):
    """An error of a tool call.

    `hint` says how to fix it, `location` where it is, `code` identifies it.
    """

    type: str = "execution_error"

    def __init__(self, message: str = "", **fields: Any) -> None:
        """Create an error with fields; `type` overrides the type of the class."""
        super().__init__(message)
        self.message = message
        if "type" in fields:
            self.type = str(fields.pop("type"))
        self.fields = {name: value for name, value in fields.items() if value or name not in _PARTS}

    @property
    def hint(self) -> str:
        fields = self.__dict__.get("fields")
        return (
            str(fields.get("hint") or "") if isinstance(fields, dict) else ""
        )  # code may set it to anything

    def __str__(self) -> str:
        return f"{super().__str__()}\nHint: {self.hint}" if self.hint else super().__str__()

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["fields"][name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no field {name!r}") from None


class ToolNotFound(ToolError, AttributeError):
    type = "not_found"


class ArgumentError(ToolError, TypeError):
    type = "validation_error"


class PermissionDenied(ToolError):
    type = "permission_denied"


class SandboxDenied(ToolError):
    type = "sandbox_denied"


class BudgetExceeded(ToolError):
    type = "budget_exceeded"


class ToolTimeout(ToolError):
    type = "timeout"


class NetworkError(ToolError):
    type = "network"


class HttpStatusError(ToolError):
    type = "http_status"


class OutputInvalid(ToolError):
    type = "output_validation"


class Cancelled(ToolError):
    type = "cancelled"


class AuditUnavailable(ToolError):
    type = "audit_unavailable"


class StorageError(ToolError):
    type = "storage_unavailable"


class BundleError(ToolError):
    type = "bundle_error"


class ApprovalRequired(ToolError):
    type = "approval_required"


class CallRejected(ToolError):
    type = "rejected"


class Interrupted(ToolError):
    type = "interrupted"


class SignInRequired(ToolError):
    type = "sign_in_required"


class CannotAsk(ToolError):
    type = "cannot_ask"


class ConfigError(ToolError):
    type = "config_error"


# The errors that code can catch and that keep their class when they cross a pipe.
_ALL: list[type[ToolError]] = [ToolError, *ToolError.__subclasses__()]
TREE = {kind.__name__: kind for kind in _ALL}


def error_type(error: BaseException) -> str:
    return error.type if isinstance(error, ToolError) else ToolError.type


def describe(error: BaseException) -> JsonObject:
    """Return the error as data: type, class, message, fields, and where a tool failed."""
    fields = error.fields if isinstance(error, ToolError) else _get_trace(error)
    place = {"location": str(fields["location"])} if "location" in fields else {}
    basics = {
        "type": error_type(error),
        "class": _name_class(type(error)),
        "message": get_message(error),
    }
    return {**fields, **place, **basics}


def _name_class(kind: type[BaseException]) -> str:
    """Return the name of the error that code can catch, or that of the class itself."""
    names = (base.__name__ for base in kind.__mro__ if base is not ToolError)
    return next((name for name in names if name in TREE), kind.__name__)


def _get_trace(error: BaseException) -> JsonObject:
    trace = getattr(error, "__dict__", {}).get("trace")
    return {"trace": trace} if isinstance(trace, str) else {}


def get_message(error: BaseException) -> str:
    """Return the message without the hint. A hostile `__str__` may raise anything, even SystemExit."""
    try:
        return _get_text(error) or type(error).__name__
    except BaseException:  # noqa: BLE001 - the object comes from untrusted code
        return "error without a printable message"


def _get_text(error: BaseException) -> str:
    if isinstance(error, ToolError) and error.hint:
        return Exception.__str__(error)
    if type(error) is RuntimeError and isinstance(
        error.__cause__, ENDS_OF_ITERATION
    ):  # replaced by Python
        return f"{error}: {error.__cause__}"
    return str(error)


def restore(data: JsonMapping) -> Exception:
    """Return the exception for data of `describe`; unknown classes become ToolError."""
    name = str(data.get("class", ""))
    message = str(data.get("message", ""))
    fields = {key: value for key, value in data.items() if key not in {"type", "class", "message"}}
    if name in TREE:
        kind = str(data.get("type") or TREE[name].type)
        return TREE[name](message, **fields, **({} if kind == TREE[name].type else {"type": kind}))
    builtin = getattr(builtins, name, None)
    if (
        isinstance(builtin, type)
        and issubclass(builtin, Exception)
        and not issubclass(builtin, ENDS_OF_ITERATION)
    ):
        error = _restore_builtin(builtin, message)
        if "trace" in data:
            (error.fields if isinstance(error, ToolError) else error.__dict__)["trace"] = data[
                "trace"
            ]
        return error
    return ToolError(f"{name}: {message}" if name else message, **fields)


def make_error(reason: object, name: str) -> Exception:
    """Return the error for a failed result's exception, text, type or dict."""
    if isinstance(reason, Exception):
        return reason
    if isinstance(reason, str) and reason[:1] == ":" and reason[1:].isidentifier():
        reason = {"type": reason, "message": reason[1:].replace("_", " ")}
    if not isinstance(reason, dict) or not reason:
        return ToolError(str(reason) if reason else f"{name} failed without a message")
    fields = {str(key): value for key, value in reason.items() if key not in {"message", "class"}}
    if "type" in fields:
        fields["type"] = str(fields["type"]).removeprefix(":")
    kind = next(
        (
            error_class.__name__
            for error_class in TREE.values()
            if error_class.type == fields.get("type")
        ),
        ToolError.__name__,
    )
    return restore({**fields, "class": kind, "message": reason.get("message") or reason})


def _restore_builtin(kind: type[Exception], message: str) -> Exception:
    try:
        return kind(_parse_key(message) if issubclass(kind, KeyError) else message)
    except TypeError:  # UnicodeDecodeError and others need more arguments
        return ToolError(f"{kind.__name__}: {message}")


def _parse_key(message: str) -> Any:
    """Return the key of a KeyError, whose message is the `repr` of the key."""
    from ast import literal_eval

    try:
        key = literal_eval(message)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return _Verbatim(message)
    return key if repr(key) == message else _Verbatim(message)


class _Verbatim(str):
    """A string whose `repr` is itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


# --- reports of failed tools ----------------------------------------------------------------------


def report_error(error: BaseException, directory: str) -> str:
    """Return where the error occurred in the files of this directory.

    Empty for a ToolError: its message says all.
    """
    return "" if isinstance(error, ToolError) else _join(_report(error, directory, MAX_CAUSES))


def report_causes(error: BaseException, file: str) -> str:
    """Return the notes, the members and the causes of an error, with their lines in this file."""
    return _join(_report_causes(error, file, MAX_CAUSES))


def _join(lines: Iterator[str]) -> str:
    try:
        return "\n".join(line[:MAX_LINE_CHARS] for line in lines)
    except Exception:  # noqa: BLE001 - the attributes of an exception may be anything
        return ""


def _report(error: BaseException, place: str, causes_left: int) -> Iterator[str]:
    yield from _list_frames(error, place)
    yield from _report_causes(error, place, causes_left)


def _report_causes(error: BaseException, place: str, causes_left: int) -> Iterator[str]:
    for note in list(getattr(error, "__notes__", ()))[:MAX_NOTES]:
        yield f"note: {str(note).strip()}".replace("\n", "\n  ")
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    related = [("contains", member) for member in members]
    if error.__cause__ is not None:  # an implicit context is usually a detail of the implementation
        related.append(("caused by", error.__cause__))
    for relation, other in related[:MAX_CAUSES] if causes_left else ():
        message = get_message(other).partition("\n")[0]
        yield f"{relation} {type(other).__name__}: {message}"
        yield from _report(other, place, causes_left - 1)


def _list_frames(error: BaseException, place: str) -> list[str]:
    """Return the innermost lines of the error in this directory or file."""
    import linecache

    frames = []
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        line = trace.tb_lineno
        if file == place:
            frames.append(f"line {line}: {linecache.getline(file, line).strip()}")
        elif file.startswith(f"{place}{os.sep}"):
            source = linecache.getline(file, line).strip()
            frames.append(
                f"{_shorten(file, place)}, line {line}, in {trace.tb_frame.f_code.co_name}:"
                f" {source}"
            )
        trace = trace.tb_next
    return frames[-MAX_FRAMES:]


def _shorten(file: str, directory: str) -> str:
    """Return the path from the directory that contains the pack."""
    return file.removeprefix(f"{os.path.dirname(directory)}{os.sep}")  # noqa: PTH120 - importing pathlib is slow


def strip_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the frames of OneTool at its beginning."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(OWN_DIRECTORY):
        trace = trace.tb_next
    return trace
