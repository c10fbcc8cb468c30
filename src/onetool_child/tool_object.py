"""Tools as objects, which have `call(params, context)` and may have `validate_params(params)`."""

from __future__ import annotations

from types import CoroutineType

from onetool_child.errors import ArgumentError, ToolError, get_message, make_error
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
    name = str(thing.name() if callable(thing.name) else thing.name)

    def call(call_context: Context, /, **params: Any) -> Any:
        if validate is not None:
            check_params(validate, params)
        value = thing.call(params, call_context)
        return (
            _unwrap_later(value, name) if isinstance(value, CoroutineType) else unwrap(value, name)
        )

    return call


def check_params(validate: Callable[[Any], object], params: Any) -> None:
    """Raise ArgumentError if `validate_params` rejects the arguments: it raises, or returns an
    error.
    """
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


def unwrap(value: Any, name: str) -> Any:
    """Return the value of a `Result` or of `("ok", value)`.

    Raise the error of one, or of `("error", reason)`.
    """
    match value:
        case ("ok", inner) if type(value) is tuple:
            return inner
        case ("error", reason) if type(value) is tuple:
            raise make_error(reason, name)
    is_result = all(hasattr(value, part) for part in ("ok", "value", "error", "unwrap"))
    if is_result and value.ok is not True:
        raise make_error(value.error, name)
    return value.value if is_result else value


async def _unwrap_later(value: Any, name: str) -> Any:
    return unwrap(await value, name)
