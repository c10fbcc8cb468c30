"""Cells, workers and upstream servers that send too much: they are stopped, and others are not
delayed.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cells_support import NIGHTLY
from tests.e2e.test_hostile_results import FORGE
from tests.support import ISOLATION, Connection, configure, connect, get_texts, run_attack
from tests.workers_support import write_pack

FLOODING = Path(__file__).parent / "servers" / "flooding.py"
PAUSE = "\ntime.sleep(30)"
TOO_LONG = "it sent more than 1048576 bytes in one message"
TOO_MANY = "it sent more than 120000 values in one message"
NO_MESSAGE = "it sent an invalid message"
MANY = 5000 if ISOLATION == "auto" else 500  # a call from a WebAssembly sandbox takes longer
LISTS = "b','.join([b'[]'] * {count})"
CALL = (
    """b'{"id":%d,"method":"call","params":{"name":"ot.version","args":[],"kwargs":{"x":[' % n + """
)

# The code of a run, and part of its error message.
CELL_FLOODS = {
    "too many values": (f"n = 7\nsend({CALL}{LISTS.format(count=300_000)} + b']}}}}}}')", TOO_MANY),
    "keys": ("send({'id': 7, 'method': 'find', 'params': {f'{n:x}': 0 for n in range(210_000)}})", TOO_LONG),
    "deep nesting": ("send(b'[' * 1_000_000)", TOO_MANY),
    "quotes": ("send(b'\"' * 1_000_000)", "it sent"),
    "long numbers": ("send(b'{\"id\":' + b'1' * 1_000_000 + b'}')", NO_MESSAGE),
    "an endless line": ("while True: send(b'x' * 100_000, end=b'')", TOO_LONG),
    "output with extra parameters": (
        """send(b'{"method":"output","params":{"text":"","x":[' + b'[],' * 5_000_000 + b'[]]}}')""", TOO_LONG),
    "unknown notifications": ("""while True: send(b'{"method":"x","params":{}}')""", NO_MESSAGE),
    "unknown pieces": ("while True: piece('x', 'y')", NO_MESSAGE),
    "a large id": ("send({'id': 'x' * 1_000_000, 'method': 'find', 'params': {'name': 'x'}})", NO_MESSAGE),
    "unrequested responses": ("""while True: send(b'{"id":99,"result":{}}')""", NO_MESSAGE),
    "tiny pieces": ("while True: send(b'=output 1\\nx' * 10_000, end=b'')", "it sent more than 200000 messages"),
    "empty pieces": ("while True: send(b'=strings 0\\n' * 10_000, end=b'')", "it sent more than 200000 messages"),
    "unrequested strings": ("while True: piece('strings', 'x' * 200_000)", "arguments with more than 8388608 bytes"),
    "an endless value": ("while True: piece('value', 'x' * 200_000)", "the value is larger than"),
    "endless output": ("while True: piece('output', 'x' * 200_000)", "the run printed more than"),
}  # fmt: skip

# A run may send these without a limit: they do not delay other runs.
ALLOWED_FLOODS = {
    "as many values as allowed": (
        f"values = {LISTS.format(count=55_000)}\nfor n in range(2, 12): send({CALL}values +"
        " b']}}}')\n'sent'"
    ),
    "large strings": (
        "for n in range(9):\n    try: ot.call('ot.version', x='é' * 600_000)\n    except TypeError:"
        " pass\n'sent'"
    ),
    "oversized calls": (
        "for n in range(2):\n    try: ot.call('ot.version', x=[[]] * 2_600_000)\n    except"
        " TypeError as error: said = str(error)\nassert '120000 values' in said, said\n'sent'"
    ),
    "many messages": (
        f"for n in range({MANY}):\n    try: ot.call('x.y')\n    except ToolError: pass\n'sent'"
    ),
}

# In a worker, the frames above the tool hold the descriptor that answers are written to.
HOSTILE_PACK = """
import os, sys

def _writer():
    frame = sys._getframe()
    while "self" not in frame.f_locals or not hasattr(frame.f_locals["self"], "_peer"):
        frame = frame.f_back
    return frame.f_locals["self"]._peer._writer

def _send(data):
    left = memoryview(data)
    while left: left = left[os.write(_writer(), left):]

def _call():
    frame = sys._getframe()
    while "ident" not in frame.f_locals: frame = frame.f_back
    return frame.f_locals["ident"]

FLOODS = {
    "values": lambda: b'{"id":%d,"result":{"value":[' % _call() + b'[],' * 300_000 + b'[]]}}\\n',
    "bytes": lambda: b'{"id":%d,"result":{"value":"' % _call() + b'x' * 2_000_000 + b'"}}\\n',
    "deep": lambda: b'{"id":%d,"result":' % _call() + b'[' * 900_000 + b'\\n',
    "notifications": lambda: b'{"method":"x","params":{"y":1}}\\n' * 1000,
    "answers": lambda: b'{"id":123456,"result":{}}\\n',
    "pieces": lambda: b'=%d 99999999\\n' % _call(),
    "kinds": lambda: b'=x 1\\ny',
}

def flood(kind: str):
    _send(FLOODS[kind]())
    return "sent"

def give(count: int):
    return [[]] * count

def broken():
    _send(b'=%d 9\\n[1, 2]\\n{"' % _call() + b'{"id":%d,"result":{"pieces":true}}\\n' % _call())
    return 1

def give_text(size: int):
    return {"text": "é" * size}

def key():
    return {}["k"]

def take(rows: list, text: str = ""):
    return [len(rows), len(text)]
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    home = tmp_path_factory.mktemp("home")
    http = subprocess.Popen([sys.executable, FLOODING, "0"], stdout=subprocess.PIPE, text=True)
    assert http.stdout is not None
    url = f"http://127.0.0.1:{http.stdout.readline().strip()}/mcp"
    piped = {"command": sys.executable, "args": [str(FLOODING)], "timeout": 60}
    servers = {"piped": piped, "web": {"url": url, "timeout": 60}}
    execution = {"timeout": 40, "max_output_bytes": 20 << 20}
    configure(home, json.dumps({"servers": servers, "execution": execution}))
    write_pack(home / ".onetool", "hostile", HOSTILE_PACK)
    try:
        with connect(home) as client:
            client.run(
                "web.flood(kind='?')"
            )  # modules loaded at the first use delay other runs once
            yield client
    finally:
        http.kill()
        http.communicate()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("flood", CELL_FLOODS)
def test_a_flooding_run_is_ended_and_does_not_delay_others(client: Connection, flood: str) -> None:
    code, reason = CELL_FLOODS[flood]
    assert reason in run_attack(client, f"{FORGE}{code}{PAUSE}")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("flood", ALLOWED_FLOODS)
def test_the_largest_allowed_messages_do_not_delay_others(client: Connection, flood: str) -> None:
    assert run_attack(client, f"{FORGE}{ALLOWED_FLOODS[flood]}") == "sent"


# --- workers --------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "kind", ["values", "bytes", "deep", "notifications", "answers", "pieces", "kinds"]
)
def test_a_flooding_worker_is_replaced_and_does_not_delay_others(
    client: Connection, kind: str
) -> None:
    assert "failed: it sent" in run_attack(client, f"hostile.flood(kind={kind!r})")
    assert get_texts(client.run("hostile.give(count=1)")) == ["[[]]"]


def test_a_large_worker_result_arrives_and_does_not_delay_others(client: Connection) -> None:
    assert run_attack(client, "len(hostile.give(count=3_000_000))") == "3000000"
    assert run_attack(client, "len(hostile.give_text(size=2_500_000)['text'])") == "2500000"


def test_a_large_worker_result_with_invalid_json_is_an_error(client: Connection) -> None:
    assert get_texts(
        client.run(
            "try: hostile.broken()\nexcept ToolError as error: said = str(error)\n[said, 1 + 1]"
        )
    ) == ['["the tool returned a result that is not valid JSON",2]']


def test_large_arguments_arrive(client: Connection) -> None:
    code = "hostile.take(rows=[['x' * 2000, n] for n in range(2000)], text='é' * 600_000)"
    assert get_texts(client.run(code)) == ["[2000,600000]"]
    assert (
        "ArgumentError: the arguments have"
        in get_texts(client.run("hostile.take(rows=[], text='x' * 9_000_000)"))[0]
    )


def test_a_key_error_of_a_worker_is_shown_as_python_shows_it(client: Connection) -> None:
    assert get_texts(client.run("hostile.key()"))[0].startswith("KeyError: 'k'\n")
    assert get_texts(
        client.run("try: hostile.key()\nexcept KeyError as error: key = error.args[0]\nkey")
    ) == ["k"]


# --- upstream servers -----------------------------------------------------------------------------

TOO_LARGE = {
    "large": "bytes, the limit is 8388608",
    "escapes": "bytes, the limit is 8388608",
    "values": "the message has more than 120000 values",
    "keys": "the message has more than 120000 values",
    "blocks": "the message has a list with more than 10000 items",
    "deep": "the message has more than 120000 values",
    "deeper than parsers go": "",
    "quotes": "the message has more than 120000 values",
    "id last": "bytes, the limit is 8388608",
}


# Not nightly: each kind over one transport and a few over all.
TRANSPORTS = ["piped.flood(kind=':", "web.flood(kind='json:", "web.flood(kind='events:"]
FLOODS = [
    (server, kind)
    for at, kind in enumerate(TOO_LARGE)
    for to, server in enumerate(TRANSPORTS)
    if NIGHTLY or kind in {"large", "values"} or at % len(TRANSPORTS) == to
]


@pytest.mark.parametrize(("server", "kind"), FLOODS if NIGHTLY else FLOODS[::2])
def test_a_flooding_server_fails_one_call_and_does_not_delay_others(
    client: Connection, server: str, kind: str
) -> None:
    assert TOO_LARGE[kind] in run_attack(client, f"{server}{kind}')")
    assert get_texts(client.run(f"{server}small')")) == ["small"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("server", TRANSPORTS)
def test_large_server_results_arrive_and_do_not_delay_others(
    client: Connection, server: str
) -> None:
    assert run_attack(client, f"len({server}text'))") == str(5 << 20)
    assert run_attack(client, f"{server}json')[-1]") == '{"id":199999,"name":"x"}'
    assert run_attack(client, f"{server}almost json')[:4]") == "[1,1"
    assert run_attack(client, f"{server}large noise')") == "after the noise"


def test_lines_that_are_not_messages_are_ignored(client: Connection) -> None:
    assert run_attack(client, "piped.flood(kind=':noise')") == "after the noise"


def test_an_unrequested_response_ends_the_connection_and_the_next_call_works(
    client: Connection,
) -> None:
    assert "NetworkError: connection to piped lost" in run_attack(
        client, "piped.flood(kind=':no id')"
    )
    assert get_texts(client.run("piped.flood(kind=':small')")) == ["small"]


def test_a_compressed_response_is_rejected(client: Connection) -> None:
    assert "compressed" in run_attack(client, "web.flood(kind='gzip:small')")
    assert get_texts(client.run("web.flood(kind='json:small')")) == ["small"]
