"""The same calls to the same small tools, built once for every backend: whoever carries a call out, it is alike."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.contract.calls import BACKENDS, Call
from tests.support import App, opened

from ot import Result, ToolContext, ToolError, tool
from ot.bus.adapt import function_tool
from ot.errors import ToolTimeout, describe
from ot.schema import Schema
from ot.tool import Tool

SETTINGS = {"agents": {"helper": {"permissions": ["read"]}}}
NEEDS = {"guarded": ["read"], "forbidden": ["read", "exec"]}


# --- the tools -----------------------------------------------------------------------------------------------


def echo(value: Any = None) -> Any:
    return value


def add(left: int, right: int = 2) -> int:
    return left + right


def who(context: ToolContext) -> list[str]:
    return [context.agent_id, "corr-1" if context.correlation_id else "none"]


def result(ok: bool) -> Result:
    return Result(ok=True, value="fine") if ok else Result(ok=False, error=ToolError("no", attempts=3))


def fail(kind: str) -> None:
    if kind == "value":
        raise ValueError("a value is wrong")
    raise ToolTimeout("too slow", timeout_ms=5) if kind == "timeout" else ToolError("no", attempts=3)


def guarded() -> str:
    return "allowed"


def forbidden() -> str:
    raise AssertionError("it must not be called")


FUNCTIONS: tuple[Callable[..., Any], ...] = (echo, add, who, result, fail, guarded, forbidden)
