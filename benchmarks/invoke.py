"""Overhead of a stored HTTP tool over a bare httpx2 request to the same server on loopback."""

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.lib import Row, WrongAnswer, interleave_async
from tests.http_support import page, serve_site

from onetool.core.bus.bus import ToolBus
from onetool.core.schema import Schema
from onetool.core.tool import Tool
from onetool.net import HostRules, Net
from onetool.settings.model import Http
from onetool.sources.http.backend import HttpBackend
from onetool.sources.http.definition import HttpImpl
from onetool.util.context import Permission, ToolContext

CALLS = 50
CONTEXT = ToolContext(permissions=frozenset({Permission.NETWORK}))


def measure(rounds: int) -> list[Row]:
    with serve_site() as site:
        site.pages["/weather/Oslo"] = page(b'{"degrees": 7}', ("content-type", "application/json"))
        samples = asyncio.run(measure_all(rounds, site.url("")))
    return [
        Row(
            "call of a stored HTTP tool, against bare httpx2",
            samples["tool"],
            samples["bare"],
            "us",
            target=1.3,
        )
    ]


async def measure_all(rounds: int, base: str) -> dict[str, list[float]]:
    import httpx2

    net = Net(HostRules(("127.0.0.1",), allow_private_addresses=True))
    bus = ToolBus()
    bus.register_tool(store_tool(base, net))
    async with httpx2.AsyncClient(trust_env=False) as client:
        contestants = {
            "bare": partial(time_call, partial(time_bare, client, f"{base}/weather/Oslo")),
            "tool": partial(time_call, partial(time_tool, bus)),
        }
        samples = await interleave_async(rounds, contestants)
    await net.close()
    return samples


def store_tool(base: str, net: Net) -> Tool:
    impl = HttpImpl.model_validate({"method": "GET", "urlTemplate": base + "/weather/${city}"})
    backend = HttpBackend(impl, lambda: net, Http, lambda _origin, _name: None)
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    needed = frozenset({Permission.NETWORK})
    return Tool(
        name="weather.now", backend=backend, input=Schema.from_json(schema), permissions=needed
    )


async def time_tool(bus: ToolBus) -> None:
    result = await bus.call_tool("weather.now", {"city": "Oslo"}, CONTEXT)
    if not result.ok or result.value != {"degrees": 7}:
        raise WrongAnswer(str(result.error or result.value))


async def time_bare(client: object, url: str) -> None:
    answer = await client.get(url)  # type: ignore[attr-defined]
    if answer.json() != {"degrees": 7}:
        raise WrongAnswer(answer.text)


async def time_call(call: Callable[[], Awaitable[None]]) -> float:
    seconds = []
    for _ in range(CALLS):
        started = time.perf_counter()
        await call()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds) * 1e6
