"""The HTTP server under load: 1,000 busy connections, no errors, constant memory.

Five seconds, or ten minutes in the nightly profile. The client implements HTTP on asyncio streams,
so that it uses few resources, and counts only correct responses.
"""

import asyncio
import hashlib
import json
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from tests.cells_support import NIGHTLY
from tests.rest_support import serve_process
from tests.support import TIMEOUT_SECONDS, configure

CONNECTIONS: Final = 1000
SECONDS: Final = 600.0 if NIGHTLY else 5.0
WARM_UP_SECONDS: Final = 60.0 if NIGHTLY else 2.5
AGENTS: Final = tuple(
    f"agent-{number}" for number in range(10)
)  # so that no agent exceeds its queue
RUNNERS_EACH: Final = 20
MAX_GROWTH: Final = 1.10
SLACK_MEGABYTES: Final = 8.0


@dataclass
class Tally:
    """Counts of requests by outcome."""

    right: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    warm: asyncio.Event = field(
        default_factory=asyncio.Event
    )  # set after two responses per connection on average


def token(agent: str) -> str:
    return f"ot_token-of-{agent}"


def settings() -> str:
    tokens = [
        {"name": agent, "agent": agent, "hash": hashlib.sha256(token(agent).encode()).hexdigest()}
        for agent in AGENTS
    ]
    return json.dumps(
        {
            "agents": {agent: {"permissions": ["read"]} for agent in AGENTS},
            "auth": {"tokens": tokens},
        }
    )


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 120)
def test_a_thousand_connections_get_no_errors_and_memory_stays_constant(tmp_path: Path) -> None:
    configure(tmp_path, settings())
    with serve_process(tmp_path) as (server, info):
        tally, before, after = asyncio.run(_run_load(info["port"], server.pid))
        server.send_signal(signal.SIGTERM)
        _, err = server.communicate(timeout=TIMEOUT_SECONDS * 3)
    assert tally.wrong == []
    assert all(tally.right[kind] for kind in ("run", "call", "read")), tally.right
    assert tally.right.total() > CONNECTIONS
    assert after < before * MAX_GROWTH + SLACK_MEGABYTES, (before, after)
    assert "Traceback" not in err


async def _run_load(port: int, pid: int) -> tuple[Tally, float, float]:
    """Keep all connections open, and measure the memory after the warm-up and at the end."""
    tally, stop = Tally(), asyncio.Event()
    clients = [
        asyncio.ensure_future(_run_client(number, port, stop, tally))
        for number in range(CONNECTIONS)
    ]
    await asyncio.sleep(WARM_UP_SECONDS)
    await asyncio.wait_for(tally.warm.wait(), 60)
    before = _measure_megabytes(pid)
    await asyncio.sleep(SECONDS - WARM_UP_SECONDS)
    after = _measure_megabytes(pid)
    stop.set()
    await asyncio.wait_for(asyncio.gather(*clients), 60)
    return tally, before, after


async def _run_client(number: int, port: int, stop: asyncio.Event, tally: Tally) -> None:
    agent = AGENTS[number % len(AGENTS)]
    index = number // len(AGENTS)
    kind = "run" if index < RUNNERS_EACH else "call" if index < 2 * RUNNERS_EACH else "read"
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        request = _build_request(kind, number, agent)
        while not stop.is_set():
            writer.write(request)
            status, body = await asyncio.wait_for(_read_response(reader), 60)
            if status == 200 and _is_correct(kind, number, body):
                tally.right[kind] += 1
            else:
                tally.wrong.append(f"{kind}: {status} {body[:200]!r}")
            if tally.right.total() + len(tally.wrong) >= 2 * CONNECTIONS:
                tally.warm.set()
            await asyncio.sleep(0.5)
        writer.close()
    except (OSError, EOFError, TimeoutError) as error:
        tally.wrong.append(f"{kind}: {error!r} after {time.process_time():.0f} s")


def _build_request(kind: str, number: int, agent: str) -> bytes:
    path, body = {
        "run": ("POST /api/run", {"command": f"{number} + 1"}),
        "call": ("POST /api/tools/json.parse/call", {"args": {"json": str(number)}}),
        "read": ("GET /api/tools/machine.now", None),
    }[kind]
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token(agent)}\r\n"
    about = (
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n" if content else ""
    )
    return f"{head}{about}\r\n".encode() + content


async def _read_response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    fields = {
        name.lower(): value
        for name, _, value in (line.partition(": ") for line in head.split("\r\n"))
    }
    return int(head.split(" ", 2)[1]), await reader.readexactly(int(fields["content-length"]))


def _is_correct(kind: str, number: int, body: bytes) -> bool:
    answer = json.loads(body)
    match kind:
        case "run":
            return bool(answer["blocks"] == [str(number + 1)])
        case "call":
            return bool(answer == {"ok": True, "value": number})
    return bool(answer["name"] == "machine.now")


def _measure_megabytes(pid: int) -> float:
    """Return the private memory of the server."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    sizes = {
        name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)
    }
    return (sizes["Private_Clean"] + sizes["Private_Dirty"]) / 1024
