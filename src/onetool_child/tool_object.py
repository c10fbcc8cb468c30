"""Tools as objects, which have `call(params, context)` and may have `validate_params(params)`."""

from __future__ import annotations

from types import CoroutineType

from onetool_child.errors import ArgumentError, ToolError, get_message
from onetool_child.interface import Context  # noqa: TC001 - the worker resolves annotations

TYPE_CHECKING = False  # importing `typing` would double the start-up time of a worker
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

VALIDATION_FAILED = "validate_params rejected the arguments"


def make_function(kind: Callable[[], Any]) -> Callable[..., Any]:
    """Return a function that calls an instance of a tool class."""
    thing = kind()
    validate = getattr(thing, "validate_params", None)

    def call(call_context: Context, /, **params: Any) -> Any:
        if validate is not None:
            check_params(validate, params)
        value = thing.call(params, call_context)
        return _unwrap_later(value) if isinstance(value, CoroutineType) else _unwrap(value)

    return call


def check_params(validate: Callable[[Any], object], params: Any) -> None:
    """Raise ArgumentError if `validate_params` rejects the arguments: it raises, or returns an error."""
    try:
        outcome = validate(params)
    except Exception as error:
        fields = error.fields if isinstance(error, ToolError) else {}
        raise ArgumentError(get_message(error), **fields) from error
    if (problem := _find_problem(outcome)) is not None:
        raise ArgumentError(problem)


def _find_problem(outcome: Any) -> str | None:
    """Return the problem that `validate_params` reports. Anything but a clear success is a problem."""
    if hasattr(outcome, "ok") and hasattr(outcome, "error"):  # a `Result`
        outcome = {"ok": outcome.ok} if outcome.ok is True else {"error": outcome.error}
    match outcome:
        case None | True | ("ok" | True, *_) | {"ok": True}:
            return None
        case str(error) | ("error" | False, str(error)) | {"error": error}:
            return str(error or VALIDATION_FAILED)
        case False:
            return VALIDATION_FAILED
        case CoroutineType():
            outcome.close()
            return "validate_params must not be a coroutine function"
    return f"validate_params returned {type(outcome).__name__}, expected None or an error"


def _unwrap(value: Any) -> Any:
    """Return the value of a `Result`, or raise its error."""
    is_result = all(hasattr(value, name) for name in ("ok", "value", "error", "unwrap"))
    return value.unwrap() if is_result else value


async def _unwrap_later(value: Any) -> Any:
    return _unwrap(await value)
