"""What all parts of `/api` stand on: the product, what it has been doing, and threads for what waits for the disk."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread
from starlette.datastructures import QueryParams

from ot.activity import Activity
from ot.app import OneTool
from ot.bundles.rules import invalid
from ot.faces.http import paging
from ot.faces.http.refusals import Refusal

T = TypeVar("T")
THREADS: Final = 16
MOST_DIGITS: Final = 15


@dataclass(frozen=True, slots=True)
class Api:
    app: OneTool
    activity: Activity
    threads: anyio.CapacityLimiter = field(default_factory=partial(anyio.CapacityLimiter, THREADS))

    async def in_thread(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work, limiter=self.threads)

    def refuse_without_settings(self) -> None:
        """Where they are wrong, everything would be kept elsewhere."""
        error = self.app.config_error
        if error is not None:
            raise Refusal("busy", f"the configuration is wrong, so nothing works until it is right:\n{error}")


def only(body: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """The body, which has nothing else in it."""
    unknown = [name for name in body if name not in names]
    if unknown:
        raise invalid(f"the body has {unknown[0]!a}, which nobody asked for; it may have {', '.join(names)}")
    return body


def switch(query: QueryParams, name: str) -> bool | None:
    """`true` or `false`; None where it is not given."""
    text = paging.single(query, name)
    if text is None:
        return None
    if text not in paging.SWITCHES:
        raise Refusal("invalid", f"{name} is {text!a}; write true or false", {"parameter": name})
    return paging.SWITCHES[text]


def choice(query: QueryParams, name: str, choices: tuple[str, ...]) -> str | None:
    text = paging.single(query, name)
    if text is not None and text not in choices:
        raise Refusal("invalid", f"{name} is {text!a}; write one of {', '.join(choices)}", {"parameter": name})
    return text


def number(query: QueryParams, name: str, default: int) -> int:
    """A whole number from 1 on."""
    text = paging.single(query, name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal()) or not text.strip("0"):
        raise Refusal("invalid", f"{name} is {text!a}; give a number from 1 on", {"parameter": name})
    return int(text) if len(text) <= MOST_DIGITS else 10**MOST_DIGITS
