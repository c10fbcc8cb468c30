"""Errors of programs on a bus fail closed with a reason: validation, errors, budgets, permissions
and names.
"""

from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from onetool.core.bus.bus import ToolBus
from onetool.core.python_backend import function_tool
from onetool.core.tool import Tool, tool
from onetool.errors import PermissionDenied, StorageError, ToolError, describe, error_type
from onetool.state.counters import BudgetGuard, Limits
from onetool.util.context import Permission, Result, ToolContext
from onetool.util.problem import NewerVersion
from onetool_child.errors import restore


def call(
    thing: object, params: Mapping[str, Any] | None = None, context: ToolContext | None = None
) -> Result:
    bus = ToolBus()
    name = bus.register_tool(thing).name
    return anyio.run(bus.call_tool, name, params or {}, context)


def get_error_type(result: Result) -> str:
    assert result.error is not None
    return error_type(result.error)


class Validated:
    name = "demo.validated"
    permissions = ()

    def __init__(self, outcome: Any) -> None:
        self._outcome, self.ran = outcome, False

    def validate_params(self, _params: Mapping[str, Any]) -> Any:
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome() if callable(self._outcome) else self._outcome

    async def call(self, _params: Mapping[str, Any], _context: ToolContext) -> str:
        self.ran = True
        return "ran"


async def _late() -> None: ...


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (False, "rejected the arguments"),
        (("error", "path is required"), "path is required"),
        ((False, "path is required"), "path is required"),
        (["error", "path is required"], "path is required"),
        ({"error": "path is required"}, "path is required"),
        ({"ok": False}, "returned dict"),
        (Result(ok=False, error=ToolError("path is required")), "path is required"),
        (Result(ok=False), "rejected the arguments"),
        ("path is required", "path is required"),
        ("", "rejected the arguments"),
        (0, "returned int"),
        (("error",), "returned tuple"),
        (object(), "returned object"),
        (_late, "coroutine"),
        (KeyError("path"), "path"),
        (TypeError("path is required"), "path is required"),
    ],
)
def test_a_tool_that_fails_validation_does_not_run(outcome: Any, message: str) -> None:
    thing = Validated(outcome)
    result = call(thing)
    assert not result.ok
    assert not thing.ran
    assert get_error_type(result) == "validation_error"
    assert message in str(result.error)


def test_arguments_are_validated_only_for_agents_that_may_call_the_tool() -> None:
    thing = Validated("path is required")
    result = call(thing, {"other": 1}, ToolContext(agent_id="nobody", tools=()))
    assert get_error_type(result) == "permission_denied"
    assert "Signature" not in str(result.error)


@pytest.mark.parametrize(
    "outcome", [None, True, ("ok", {}), (True, None), Result(ok=True), {"ok": True}]
)
def test_a_tool_that_passes_validation_runs(outcome: Any) -> None:
    assert call(Validated(outcome)).value == "ran"


@pytest.mark.parametrize(
    ("error", "kind", "message", "fields"),
    [
        ("it is empty", "execution_error", "it is empty", {}),
        (
            {"type": "not_found", "message": "no such page", "page": 3},
            "not_found",
            "no such page",
            {"page": 3},
        ),
        ({"type": "quota", "message": "used up", "left": 0}, "quota", "used up", {"left": 0}),
        (ToolError("used up", type="quota", left=0), "quota", "used up", {"left": 0}),
        (None, "execution_error", "demo.fails failed without a message", {}),
    ],
)
def test_a_failed_result_keeps_type_and_fields(
    error: Any, kind: str, message: str, fields: dict[str, Any]
) -> None:
    @tool("demo.fails")
    async def fails() -> Result:
        return Result(ok=False, error=error)

    found = call(fails).error
    assert isinstance(found, ToolError)
    assert (error_type(found), found.message, found.fields) == (kind, message, fields)


def test_the_type_of_an_error_survives_serialization() -> None:
    sent = ToolError("used up", type="quota", left=0)
    back = restore(describe(sent))
    assert isinstance(back, ToolError)
    assert (back.type, back.message, back.fields) == ("quota", "used up", {"left": 0})
    assert error_type(restore(describe(PermissionDenied("no")))) == "permission_denied"


def test_an_error_that_code_does_not_know_becomes_the_one_that_it_extends() -> None:
    sent = NewerVersion("written by a newer version")
    back = restore(describe(sent))
    assert type(back) is StorageError
    assert (back.type, back.message) == (sent.type, sent.message)
    own = type("Busy", (ToolError,), {})
    assert str(restore(describe(own("try later")))) == "Busy: try later"


def test_a_token_budget_is_enforced_on_a_bare_bus() -> None:
    @tool("demo.long")
    async def long() -> str:
        return "word " * 400

    guard = BudgetGuard(Limits(tokens=100))
    result = call(long, context=ToolContext(budget_guard=guard))
    assert get_error_type(result) == "budget_exceeded"
    assert guard.spent["tokens"] == 500


@pytest.mark.parametrize("kind", ["time_seconds", "calls", "tokens", "cost"])
@pytest.mark.parametrize("limit", [-1, float("nan"), "10", True])
def test_an_invalid_limit_is_rejected(kind: str, limit: Any) -> None:
    with pytest.raises(ValueError, match=kind):
        Limits(**{kind: limit})


def test_permissions_may_be_strings_and_unknown_ones_are_errors(tmp_path: Path) -> None:
    context = ToolContext(permissions={":read", "write"}, working_dir=tmp_path)  # type: ignore[arg-type]
    assert context.permissions == {Permission.READ, Permission.WRITE}
    for wrong in ({"fly"}, {":fly"}, {"READ"}):
        with pytest.raises(ValueError, match="unknown permission"):
            ToolContext(permissions=wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="invalid permissions"):
        ToolContext(permissions="read")  # type: ignore[arg-type]


def test_permissions_given_as_strings_are_required() -> None:
    def noted() -> str:
        return "done"

    made = function_tool(noted, "demo.noted", permissions=frozenset({":write"}))
    assert get_error_type(call(made)) == "permission_denied"
    assert (
        call(made, context=ToolContext(permissions=frozenset({Permission.WRITE}))).value == "done"
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: function_tool(lambda: 1), "a lambda has no name"),
        (lambda: function_tool(lambda: 1, "demo.<lambda>"), "a lambda has no name"),
        (
            lambda: function_tool(len_of, "demo.x", permissions=frozenset({"fly"})),
            "unknown permission 'fly'",
        ),
        (lambda: function_tool(len_of, "demo.x", timeout=-1), "invalid timeout -1"),
        (lambda: function_tool(len_of, "demo.x", timeout=float("nan")), "invalid timeout"),
    ],
)
def test_an_object_that_is_not_a_tool_is_rejected(make: Any, message: str) -> None:
    with pytest.raises(ToolError, match=message):
        ToolBus().register_tool(make())


def len_of(text: str) -> int:
    return len(text)


def test_a_generator_function_returns_a_list() -> None:
    @tool("demo.numbers")
    async def numbers() -> Any:
        for number in range(3):
            yield number

    @tool("demo.lazy")
    def lazy(*, upto: int) -> Any:
        yield from range(upto)

    assert call(numbers).value == [0, 1, 2]
    assert call(lazy, {"upto": 2.0}).value == [0, 1]


def test_a_named_tool_is_registered() -> None:
    assert isinstance(ToolBus().register_tool(function_tool(lambda: 1, "demo.one")), Tool)


# --- parameters -----------------------------------------------------------------------------------


class Price(BaseModel):
    amount: Decimal


class Order(BaseModel):
    price: Price
    parts: list["Order"] = []


def test_variadic_parameters_and_nested_models_get_their_types() -> None:
    def total(order: Order, /, factor: int = 2, *days: date, **more: Decimal) -> list[str]:
        return [repr(order.parts[0].price.amount), repr(factor), repr(days), repr(more)]

    price = {"amount": "1.50"}
    params = {
        "order": {"price": price, "parts": [{"price": price}]},
        "days": ["2024-02-29"],
        "x": 3,
    }
    expected = ["Decimal('1.50')", "2", "(datetime.date(2024, 2, 29),)", "{'x': Decimal('3')}"]
    assert call(total, params).unwrap() == expected
    assert call(total, {**params, "order": {"price": {}}}).error is not None
