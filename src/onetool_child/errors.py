"""The error tree: every way in which a call can be refused or can fail.

It stands here, in the standard-library-only package, because cells and workers raise the same errors that the server
does. The server imports it as `onetool.errors`. Each class has a `type`, the word that REST bodies and logs use.

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
    ├── BundleError               bundle_error        (its field `code` says which rule of the store)
    └── ConfigError               config_error
"""

from __future__ import annotations

import builtins

TYPE_CHECKING = False  # to load `typing` takes a worker longer than all of its own modules
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


TIMEOUT_HINT = "do less in one run, or raise execution.timeout in onetool.yaml"
_PARTS = frozenset({"hint", "location", "code"})  # fields that count only where they say something


class ToolError(Exception):
    """`hint` says what to do about it, `location` where it is, `code` is a word for programs."""

    type: str = "execution_error"

    def __init__(self, message: str = "", **fields: Any) -> None:
        """`type`, where given, takes the place of the class's own; other fields are kept as they are."""
        super().__init__(message)
        self.message = message
        if "type" in fields:
            self.type = str(fields.pop("type"))
        self.fields = {name: value for name, value in fields.items() if value or name not in _PARTS}

    @property
    def hint(self) -> str:
        fields = self.__dict__.get("fields")
        return str(fields.get("hint") or "") if isinstance(fields, dict) else ""  # code may set it to anything

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


class ConfigError(ToolError):
    type = "config_error"


# All of the above: what code in a cell can catch, and what comes back over a pipe as itself.
_ALL: list[type[ToolError]] = [ToolError, *ToolError.__subclasses__()]
TREE = {kind.__name__: kind for kind in _ALL}


def error_type(error: BaseException) -> str:
    return error.type if isinstance(error, ToolError) else ToolError.type


def describe(error: BaseException) -> dict[str, Any]:
    """The error as data: `type` and `message` always, its class, and its own fields."""
    fields = error.fields if isinstance(error, ToolError) else {}
    place = {"location": str(fields["location"])} if "location" in fields else {}
    own = {"type": error_type(error), "class": type(error).__name__, "message": message_of(error)}
    return {**fields, **place, **own}


def message_of(error: BaseException) -> str:
    """What the error says, without its hint. A hostile `__str__` may raise anything, even SystemExit."""
    try:
        has_hint = isinstance(error, ToolError) and error.hint
        return (Exception.__str__(error) if has_hint else str(error)) or type(error).__name__
    except BaseException:  # noqa: BLE001 - the object came from code that nobody trusts
        return "an error that cannot be shown"


def restore(data: Mapping[str, Any]) -> Exception:
    """The exception that `describe` wrote down; an unknown class comes back as a ToolError that names it."""
    name, message = str(data.get("class", "")), str(data.get("message", ""))
    fields = {key: value for key, value in data.items() if key not in {"type", "class", "message"}}
    if name in TREE:
        kind = str(data.get("type") or TREE[name].type)
        return TREE[name](message, **fields, **({} if kind == TREE[name].type else {"type": kind}))
    known = getattr(builtins, name, None)
    if isinstance(known, type) and issubclass(known, Exception):
        return _builtin(known, message)
    return ToolError(f"{name}: {message}" if name else message, **fields)


def _builtin(kind: type[Exception], message: str) -> Exception:
    try:
        return kind(_key(message) if issubclass(kind, KeyError) else message)
    except TypeError:  # UnicodeDecodeError and its like want more than a message
        return ToolError(f"{kind.__name__}: {message}")


def _key(message: str) -> Any:
    """Return the key of a KeyError, whose message is the `repr` of it."""
    from ast import literal_eval

    try:
        key = literal_eval(message)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return _Verbatim(message)
    return key if repr(key) == message else _Verbatim(message)


class _Verbatim(str):
    """A text that an error shows as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
