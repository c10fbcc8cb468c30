"""Test every message that a model or a user can get against the snapshot in `messages.md`.

Each message states what is wrong, what is valid and what to type. To update the file after a
change:

    uv run python -m tests.e2e.test_messages --write

and review the difference. A name in capitals replaces text that depends on the machine.
"""

import platform
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import unified_diff
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from mcp import MCPError
from tests.runs_support import make_call, store_run
from tests.support import PROGRAM, App, Connection, configure, connect, get_texts, open_app, run_cli

from onetool.core.schema import Schema
from onetool.core.tool import tool
from onetool.errors import ToolError, ToolTimeout
from onetool.runs.answer import Answer
from onetool.state.run_records import Decision
from onetool.util.token_ids import hash_token
from onetool.util.version import __version__

SNAPSHOT = Path(__file__).with_name("messages.md")
UPDATE_COMMAND = "uv run python -m tests.e2e.test_messages --write"
HEAD = f"""\
# Messages of OneTool

Every message that a model or a user can get. Written by `{UPDATE_COMMAND}`, compared by
`tests/e2e/test_messages.py`. A name in capitals (HOME, HANDLE, TIME) replaces text that depends on the machine.
"""
NAMES = (
    (re.compile(r"\b[0-9a-f]{32}\b"), "HANDLE"),
    (re.compile(r"\br_(?:[0-9a-f]{32}|[0-9a-f]{8})\b"), "RUN"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:[+-]\d\d:\d\d|Z)"), "TIME"),
    (re.compile(r"\.damaged-\w+"), ".damaged-TIME"),
    (re.compile(rf"\b{re.escape(__version__)}\b"), "VERSION"),
    (re.compile(rf"\b{re.escape(platform.python_version())}\b"), "PYTHON"),
    (re.compile(r"sandbox: [\w+-]+"), "sandbox: LAYERS"),
    (re.compile(r"tool_count: \d+"), "tool_count: COUNT"),
    (re.compile(r"test_messages.py, line \d+"), "test_messages.py, line NUMBER"),
    (re.compile(r"\bot_[\w-]{43}"), "TOKEN"),
)
MAX_SHOWN_CHARS = 400


@dataclass(frozen=True)
class Entry:
    title: str
    sent: str
    answer: str
    kind: str = "answer"
    language: str = "python"

    def __str__(self) -> str:
        sent = (
            self.sent
            if len(self.sent) <= MAX_SHOWN_CHARS
            else f"{self.sent[:60]}… ({len(self.sent)} characters)"
        )
        return (
            f"### {self.title}\n\n~~~ {self.language}\n{sent}\n~~~\n~~~"
            f" {self.kind}\n{self.answer}\n~~~\n"
        )


Chapter = Callable[[Path], Iterable[Entry]]
Cases = Iterable[tuple[str, str]]


# --- tools ----------------------------------------------------------------------------------------


@tool("demo.add")
def add(first: int, second: int = 0) -> int:
    """Add two numbers."""
    return first + second


@tool("demo.fails")
def fails() -> None:
    """Fail, as a function fails that nobody has thought about."""
    raise RuntimeError("the printer is out of paper")


@tool("demo.refuses")
def refuses(path: str) -> None:
    """Fail, as a function fails whose author thought of whoever calls it."""
    raise ToolError(f"there is no {path}; demo.add(first=1) needs no file")


@tool("demo.denied")
def denied() -> None:
    """Fail because the server itself may not."""
    raise PermissionError(13, "Permission denied", "/var/lib/demo")


@tool("demo.lacks")
def lacks() -> None:
    """Fail because the server lacks something."""
    raise ModuleNotFoundError("No module named 'demo_library'", name="demo_library")


@tool("demo.slow")
def slow() -> None:
    """Give up waiting."""
    raise ToolTimeout("demo.slow waited 30 s for example.org; try again later")


@tool("demo.writes", permissions=["write"])
def writes() -> None:
    """Write something."""


@tool("demo.off", enabled=False)
def off() -> None:
    """Nothing, since it is disabled."""


@tool("demo.lies", output=Schema.from_json({"type": "integer"}))
def lies() -> Any:
    """Promise a number."""
    return "many"


@tool("demo.leaves")
def leaves() -> None:
    """End the process."""
    sys.exit("enough")


TOOLS = (add, fails, refuses, denied, lacks, slow, writes, off, lies, leaves)


# --- transports -----------------------------------------------------------------------------------


def to_entry(title: str, sent: str, answer: Answer, directory: Path | None = None) -> Entry:
    return Entry(
        title,
        sent,
        replace_names("\n".join(answer.blocks), directory),
        "error" if answer.is_error else "answer",
    )


def run_in_app(app: App, cases: Cases, agent: str = "default") -> Iterator[Entry]:
    directory = app.onetool.directories.data
    for title, command in cases:
        yield to_entry(title, command, app.run(command, agent=agent), directory)


def run_over_mcp(client: Connection, cases: Iterable[tuple[str, object]]) -> Iterator[Entry]:
    for title, command in cases:
        result = client.run(command)
        text = replace_names("\n".join(get_texts(result)), client.home)
        yield Entry(
            title,
            command if isinstance(command, str) else f"command={command!r}",
            text,
            _kind(result),
        )


def _kind(result: Any) -> str:
    return "error" if result.is_error else "answer"


def run_command(home: Path, title: str, *arguments: str) -> Entry:
    done = run_cli(home, *arguments)
    text = replace_names(
        "\n".join(part.rstrip("\n") for part in (done.stdout, done.stderr) if part), home
    )
    sent = replace_names(shlex.join(["onetool", *arguments]), home)
    return Entry(title, sent, text, f"status {done.returncode}", "shell")


def replace_names(text: str, directory: Path | None) -> str:
    """Replace text that depends on the machine by names."""
    text = text.replace(str(directory), "HOME") if directory else text
    text = text.replace(str(Path.cwd()), "FOLDER")
    for pattern, name in NAMES:
        text = pattern.sub(name, text)
    return text.rstrip()


# --- chapters -------------------------------------------------------------------------------------


def invalid_requests(home: Path) -> Iterator[Entry]:
    configure(home, "execution: {max_command_bytes: 500}")
    with connect(home) as client:
        for title, name, arguments in NO_COMMANDS:
            result = client.call(name, arguments)
            yield Entry(
                title,
                f"{name}({arguments})",
                replace_names("\n".join(get_texts(result)), home),
                _kind(result),
            )
        yield from run_over_mcp(client, COMMANDS)


NO_COMMANDS: tuple[tuple[str, str, dict[str, Any] | None], ...] = (
    ("Missing command", "run", {}),
    ("Unknown argument of run", "run", {"command": "1", "timeout": 5}),
    ("Unknown MCP tool", "ot.tools", {}),
)
COMMANDS: tuple[tuple[str, object], ...] = (
    ("Not a string", ["ot.tools()"]),
    ("Empty command", ""),
    ("Empty code fence", "```python\n```"),
    ("Command over the size limit", "x = '" + "a" * 500 + "'"),
    ("Unknown prefix", "!onetool ot.tools()"),
    ("Prefix of another server", "mcp__ot__run ot.tools()"),
)


def invalid_code(_home: Path) -> Iterator[Entry]:
    with open_app(tools=TOOLS) as app:
        yield from run_in_app(app, WRONG_CODE)


WRONG_CODE = (
    ("A syntax error", "x = 1\ny = (2 +"),
    ("Prose instead of code", "Please list the files"),
    ("Missing indentation", "for n in range(3):\nprint(n)"),
    ("Unexpected indentation", "x = 1\n  y = 2\nz = 3"),
    ("Runtime error", "rows = [1, 2]\ntotal = sum(rows)\nrows[5]"),
    ("Runtime error after calls", "demo.add(1)\ndemo.add(2)\n1 / 0"),
    ("Misspelled pack", "machin.disk()"),
    ("Tool without its pack", "disk()"),
    ("Tool with a wrong separator", "machine_disk()"),
    ("Unknown name", "qqq(1)"),
    ("An unknown pack", "brave.search(query='x')"),
    ("Unknown pack in ot.call", "ot.call('brave.search', query='x')"),
    ("Pack used as a function", "machine()"),
    ("Tool that is not called", "machine.disk"),
    ("Awaited tool", "await machine.disk()"),
    ("Attribute of a dict", "machine.disk().free"),
    ("Missing module", "import requests"),
    ("No value", "x = 1"),
    ("None", "None"),
    ("Circular value", "x = []\nx.append(x)\nx"),
    ("An unknown format", "__format__ = 'xml'\n{'a': 1}"),
    ("ot.parallel with calls instead of functions", "ot.parallel([demo.add(1), demo.add(2)])"),
    ("ot.parallel with one function", "ot.parallel(demo.fails)"),
    ("ot.parallel with a failing function", "ot.parallel([lambda: demo.add(1), demo.fails])"),
)


def invalid_calls(_home: Path) -> Iterator[Entry]:
    with open_app(tools=TOOLS) as app:
        yield from run_in_app(app, WRONG_CALLS)


WRONG_CALLS = (
    ("Misspelled tool", "machine.dsk()"),
    ("Unknown tool of a pack", "demo.multiply(2, 3)"),
    ("Missing argument", "demo.add()"),
    ("Unknown argument", "demo.add(1, third=3)"),
    ("Repeated argument", "demo.add(1, first=2)"),
    ("Too many arguments", "demo.add(1, 2, 3)"),
    ("An argument of the wrong type", "demo.add(first='one')"),
    ("Invalid choice", "machine.disk(unit='TB')"),
    ("Misspelled argument of ot", "ot.tools(patern='disk')"),
    ("No permission", "demo.writes()"),
    ("A disabled tool", "demo.off()"),
    ("A tool that fails", "demo.fails()"),
    ("Tool that raises ToolError", "demo.refuses('notes.txt')"),
    ("Tool that raises PermissionError", "demo.denied()"),
    ("Tool with a missing library", "demo.lacks()"),
    ("Tool that times out", "demo.slow()"),
    ("Tool with an invalid result", "demo.lies()"),
    ("Tool that calls sys.exit", "demo.leaves()"),
)


def exceeded_limits(_home: Path) -> Iterator[Entry]:
    with open_app({"execution": {"memory_mb": 256}}) as app:
        yield from run_in_app(app, TOO_MUCH)
    narrow = {"timeout": 2, "max_tool_calls": 3, "max_output_bytes": 10_000}
    with open_app({"execution": narrow}) as app:
        yield from run_in_app(app, NARROW)


SMALL_THREADS = """\
import threading, time
threading.stack_size(32768)
while True:
    threading.Thread(target=time.sleep, args=(60,)).start()
    time.sleep(0.0002)"""
TOO_MUCH = (
    ("Memory", "x = bytearray(1 << 30)"),
    ("Nesting", "def f(): return f()\nf()"),
    (
        "Threads",
        (
            "import threading, time\nwhile True:\n    threading.Thread(target=time.sleep,"
            " args=(60,)).start()"
        ),
    ),
    ("Threads with a small stack", SMALL_THREADS),
    ("exit()", "machine.now()\nexit()"),
    ("sys.exit with a message", "import sys\nsys.exit('nothing to do')"),
    ("os._exit", "import os\nmachine.now()\nos._exit(3)"),
    ("SIGKILL", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"),
    ("System file", "open('/etc/passwd').read()"),
    ("File in the working directory", "open('README.md').read()"),
    ("Writing a file", "open('/tmp/mine', 'w')"),
    ("The network", "import urllib.request\nurllib.request.urlopen('http://example.org/')"),
    ("A socket", "import socket\nsocket.create_connection(('127.0.0.1', 80))"),
    ("A program", "import subprocess\nsubprocess.run(['ls'])"),
    ("A process", "import os\nos.fork()"),
    ("input()", "input('Your name? ')"),
)
NARROW = (
    ("Time", "machine.now()\nwhile True:\n    pass"),
    (
        "Time, with blocked signals",
        (
            "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])\nwhile"
            " True:\n    pass"
        ),
    ),
    ("Tool calls", "for _ in range(4):\n    machine.now()"),
    ("Printed text", "print('a' * 20_000)"),
    ("A value", "'a' * 2_000_000"),
)


def large_results(_home: Path) -> Iterator[Entry]:
    with open_app({"output": {"max_inline_size": 1500, "preview_lines": 2}}) as app:
        yield from run_in_app(app, LARGE)
        handle = re.findall(
            r"[0-9a-f]{32}", app.run("[{'file': 'a.py', 'line': n} for n in range(100)]").text
        )[0]
        for title, command in RESULT_CALLS:
            yield to_entry(title, command, app.run(command.replace("HANDLE", handle)))
    with open_app({"output": {"max_inline_size": 400, "result_ttl": 0.01}}) as app:
        handle = re.findall(r"[0-9a-f]{32}", app.run("'x' * 1000").text)[0]
        for title, command in EXPIRED:
            yield to_entry(title, command, app.run(command.replace("HANDLE", handle)))
    with open_app({"output": {"max_inline_size": 400}}) as app:
        (app.onetool.directories.data / "tmp").write_text("", encoding="utf-8")
        yield from run_in_app(app, UNSTORED)


LARGE = (
    ("Rows", "[{'file': f'{n % 7}.py', 'line': n} for n in range(100)]"),
    ("Text", "'\\n'.join(f'line {n}' for n in range(300))"),
    ("Printed text, and a short value", "print('line\\n' * 1000)\n42"),
)
RESULT_CALLS = (
    ("Part of a result", "ot.result('HANDLE', offset=2, limit=10)"),
    ("Search without matches", "ot.result('HANDLE', search='nothing like that')"),
    ("Missing handle", "ot.result()"),
    ("Unknown handle", "ot.result('abc123')"),
    ("Path as a handle", "ot.result(handle='../../etc/passwd')"),
    ("Handle of the wrong type", "ot.result(handle=5)"),
    ("An offset below one", "ot.result('HANDLE', offset=0)"),
    ("A limit below one", "ot.result('HANDLE', limit=0)"),
    ("Offset past the end", "ot.result('HANDLE', offset=5000)"),
    ("Invalid regular expression", "ot.result('HANDLE', search='(')"),
    ("A lookaround", "ot.result('HANDLE', search='(?=x)')"),
    ("An unknown unit", "ot.result('HANDLE', unit='pages')"),
    ("A fuzzy search that is too long", "ot.result('HANDLE', search='x' * 300, fuzzy=True)"),
    ("Complete result", "len(ot.load('HANDLE'))"),
    ("Unknown complete result", "ot.load('abc123')"),
)
EXPIRED = (
    ("Part of an expired result", "import time\ntime.sleep(0.05)\not.result('HANDLE')"),
    ("Complete expired result", "ot.load('HANDLE')"),
)
UNSTORED = (("Large result that cannot be stored", "'x' * 1000"),)


def discovery(_home: Path) -> Iterator[Entry]:
    with open_app(SHORTCUTS, tools=TOOLS) as app:
        yield from run_in_app(app, FINDING)


FINDING = (
    ("Help without a query", "ot.help()"),
    ("Help on a tool", "ot.help('demo.add')"),
    ("Help on keywords", "ot.help('free space on the disk')"),
    ("Help on a misspelled tool", "ot.help('machine.dsik')"),
    ("Help without matches", "ot.help('xylophone zzz')"),
    ("Tools without matches", "ot.tools(pattern='xylophone')"),
    ("Packs without matches", "ot.packs(pattern='xylophone', info='full')"),
    ("Snippets without matches", "ot.snippets(pattern='xylophone', info='full')"),
    ("Empty search", "ot.search('')"),
    ("Unknown info level", "ot.tools(info='some')"),
)

SHORTCUTS: Mapping[str, Any] = {
    "aliases": {"plus": "demo.add", "ping": "pong", "pong": "ping", "old": "demo.gone"},
    "projects": {"shop": "/srv/shop"},
    "snippets": {
        "greet": {
            "description": "Greet somebody",
            "params": {"who": {"description": "whom"}, "loud": {"default": False}},
            "body": "'Hello {{ who }}' + ('!' if {{ loud }} else '')",
        },
        "round": {"body": "$trip"},
        "trip": {"body": "$round"},
        "broken": {"body": "x = (1 +"},
        "torn": {"body": "{% if x %}1"},
        "undeclared": {"body": "{{ topic }}"},
        "endless": {"body": "ot.snippet('endless')"},
        "late": {"body": "1 / 0"},
    },
}


def shortcuts(_home: Path) -> Iterator[Entry]:
    with open_app(SHORTCUTS, tools=TOOLS) as app:
        yield from run_in_app(app, SHORTCUT_CALLS)


SHORTCUT_CALLS = (
    ("A snippet", "$greet who='dear reader' loud=true"),
    ("An unknown snippet", "$greeet who=me"),
    ("Missing snippet name", "$ who=me"),
    ("Missing parameter", "$greet"),
    ("Unknown parameter", "$greet who=me volume=11"),
    ("Repeated parameter", "$greet who=me who=you"),
    ("A value without a name", "$greet me"),
    ("Unclosed quote", "$greet who='me"),
    ("Invalid lines", "$greet\nwho: me\nand you"),
    ("Circular snippets", "$round"),
    ("Body with a syntax error", "$broken"),
    ("Body with an invalid template", "$torn"),
    ("A body with an unknown name", "$undeclared"),
    ("A body that fails", "$late"),
    ("From code: unknown", "ot.snippet('greeet', who='me')"),
    ("From code: missing parameter", "ot.snippet('greet')"),
    ("From code: syntax error", "x = 1\not.snippet('broken')"),
    ("From code: a body that fails", "x = 1\not.snippet('late')"),
    ("From code: endless recursion", "ot.snippet('endless')"),
    ("An alias", "plus(1, 2)"),
    ("An alias with wrong arguments", "plus()"),
    ("Circular aliases", "ping()"),
    ("Alias of an unknown tool", "old()"),
    ("An unknown project", "proj.shoop"),
    ("Unknown project in proj.path", "proj.path('blog')"),
    ("Path outside of its project", "proj.shop / '../../etc'"),
)


def notifications_and_statistics(_home: Path) -> Iterator[Entry]:
    topics = [
        {"pattern": "notes", "file": "notes.yaml"},
        {"pattern": "taken:*", "file": "taken.yaml"},
    ]
    writer = {"permissions": ["read", "write"]}
    with open_app({"notify": {"topics": topics}, "agents": {"writer": writer}}) as app:
        (app.onetool.directories.data / "taken.yaml").mkdir()
        yield from run_in_app(app, NOTES)
        yield from run_in_app(app, REPORTS, "writer")
    with open_app({"stats": {"enabled": False}}) as app:
        yield from run_in_app(app, [("Disabled statistics", "ot.stats()")])
    with open_app() as app:
        file = app.onetool.directories.data / "stats" / "stats.db"
        file.parent.mkdir(parents=True)
        file.write_bytes(b"no database, and never was one" * 100)
        yield from run_in_app(app, DAMAGED)


NOTES = (
    ("Notification", "ot.notify(topic='notes', message='Review PR #123')"),
    ("Notification without a matching topic", "ot.notify(topic='weather', message='It rains')"),
    ("Notification that cannot be written", "ot.notify(topic='taken:1', message='Hello')"),
    ("A topic that is too long", "ot.notify(topic='x' * 600, message='Hello')"),
    ("An unknown period", "ot.stats(period='year')"),
    ("A report without permission", "ot.stats(output='report.html')"),
)
REPORTS = (
    ("Report outside of the working directory", "ot.stats(output='/etc/report.html')"),
    ("Report in a missing directory", "ot.stats(output='missing/report.html')"),
)
DAMAGED = (
    ("Damaged statistics", "ot.stats()['total_calls']"),
    ("Statistics after a reset", "ot.stats(period='month')['total_calls']"),
    ("Problems after a reset", "ot.health()['problems']"),
)


def configuration(home: Path) -> Iterator[Entry]:
    configure(home, "execution:\n  timout: 5\nalias: {}\nlog_level: loud\n")
    with connect(home) as client:
        yield from run_over_mcp(client, [("Invalid configuration at startup", "machine.now()")])
        yield from run_over_mcp(
            client,
            [
                ("Health with an invalid configuration", "ot.health()"),
                ("Reload of an invalid configuration", "ot.reload()"),
            ],
        )
        configure(home, "aliases: {d: machine.disk}\n")
        yield from run_over_mcp(client, [("Reload of a valid configuration", "ot.reload()")])
        configure(home, "aliases: [d\n")
        yield from run_over_mcp(client, [("Reload of a file with a syntax error", "ot.reload()")])
        configure(home, "tools: {demo: {token: '${DEMO_TOKEN}'}}\n")
        yield from run_over_mcp(client, [("Reload with a missing secret", "ot.reload()")])
    yield from untrusted_project(home / "stranger")


def resources_and_prompts(home: Path) -> Iterator[Entry]:
    configure(home, yaml.safe_dump({"snippets": SHORTCUTS["snippets"]}, sort_keys=False))
    with connect(home) as client:
        for title, method, arguments in REQUESTS:
            yield request(client, title, method, arguments)


def request(client: Connection, title: str, method: str, arguments: Mapping[str, Any]) -> Entry:
    sent = f"{method}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
    try:
        client.portal.call(partial(getattr(client.client, method), **arguments))
    except MCPError as error:
        return Entry(title, sent, replace_names(str(error), client.home), f"error {error.code}")
    raise AssertionError(f"{sent} did not fail")


REQUESTS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("An unknown resource", "read_resource", {"uri": "ot://packs"}),
    ("The resource of an unknown tool", "read_resource", {"uri": "ot://tool/machine.dsk"}),
    ("The cursor of another list", "list_resources", {"cursor": "MTIz"}),
    ("An unknown prompt", "get_prompt", {"name": "greeet", "arguments": {"who": "me"}}),
    ("A prompt without an argument", "get_prompt", {"name": "greet"}),
    (
        "A prompt with an unknown argument",
        "get_prompt",
        {"name": "greet", "arguments": {"who": "me", "volume": "1"}},
    ),
)


def untrusted_project(home: Path) -> Iterator[Entry]:
    configure(home / "project", "aliases: {t: machine.now}\n")
    with connect(home, command=("env", f"OT_CWD={home / 'project'}", PROGRAM)) as client:
        yield from run_over_mcp(
            client, [("Untrusted project", "1 + 1"), ("Untrusted project, second run", "1 + 1")]
        )
        yield from run_over_mcp(
            client, [("Untrusted project in health", "ot.health()['problems']")]
        )


def command_lines(home: Path) -> Iterator[Entry]:
    (home / "latin.py").write_bytes(b"'\xe9'")
    yield run_command(home, "Empty statistics", "stats")
    yield run_command(home, "Nothing to trust", "trust")
    for title, arguments in COMMAND_LINES:
        yield run_command(home, title, *arguments)
    configure(home, "stats: {enabled: false}\n")
    yield run_command(home, "Disabled statistics", "stats")
    configure(home, "executon: {}\noutput: {preview_lines: many}\n")
    yield run_command(home, "Command with an invalid configuration", "tools")
    yield keep_problems(run_command(home, "The doctor with a problem", "doctor"))


def keep_problems(entry: Entry) -> Entry:
    """Keep only the problems: the other findings depend on the machine."""
    read_chapter = [
        line for line in entry.answer.splitlines() if not line.startswith(("ok", "warn"))
    ]
    return Entry(entry.title, entry.sent, "\n".join(read_chapter), entry.kind, entry.language)


COMMAND_LINES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("An unknown command", ("tolls",)),
    ("An unknown option", ("--prot", "8000")),
    ("Missing code", ("run",)),
    ("Code and a file", ("run", "1", "-f", "code.py")),
    ("Missing file", ("run", "-f", "missing.py")),
    ("Directory instead of a file", ("run", "-f", ".")),
    ("File that is not UTF-8", ("run", "-f", "latin.py")),
    ("Unknown format option", ("run", "--format", "xml", "1")),
    ("Unknown agent", ("run", "--agent", "boss", "1")),
    ("A run that fails", ("run", "1 / 0")),
    ("Call without a tool", ("call",)),
    ("A call of an unknown tool", ("call", "machine.dsk")),
    ("A call without an argument", ("call", "ot.search")),
    ("A call with an unknown argument", ("call", "machine.disk", "units=GiB")),
    ("A call with a wrong value", ("call", "machine.disk", "unit=TB")),
    ("Call with an argument without a value", ("call", "machine.disk", "GiB")),
    ("Call with a repeated argument", ("call", "machine.disk", "unit=GiB", "unit=MiB")),
    ("A call that fails, as JSON", ("call", "--json", "machine.disk", "unit=TB")),
    ("Call with an unknown agent", ("call", "--agent", "boss", "machine.disk")),
    ("Tools without matches", ("tools", "xylophone")),
    ("Help without matches", ("help", "xylophone", "zzz")),
    ("Search without matches", ("search", "xylophone", "zzz")),
    ("Empty search", ("search", " ")),
    ("Search for no hits", ("search", "disk", "--limit", "0")),
    ("Status without a shared server", ("daemon", "status")),
    ("Log of no shared server", ("daemon", "logs")),
    ("Missing configuration", ("tools", "--config", "missing.yaml")),
    ("Trust of the user directory", ("trust",)),
    ("Statistics of an unknown period", ("stats", "--period", "year")),
    ("Statistics of a tool without calls", ("stats", "--tool", "machine.cpu", "--period", "week")),
    ("Report in a missing directory", ("stats", "--html", "missing/report.html")),
)

DOCUMENT = """\
openapi: 3.0.3
info: {title: Petstore, version: VERSION}
servers: [{url: SERVER}]
components: {securitySchemes: {key: {type: apiKey, in: header, name: X-Key}}}
paths:
  /pets: {get: {operationId: listPets, security: [{key: []}]}}
  /log: {trace: {}}
"""


def bundles_and_tokens(home: Path) -> Iterator[Entry]:
    def document(version: str, server: str = "https://pets.example.com") -> None:
        text = DOCUMENT.replace("VERSION", version).replace("SERVER", server)
        (home / "pets.yaml").write_text(text, encoding="utf-8")

    yield run_command(home, "No bundles", "bundles")
    document("1.0", "/v1")
    yield run_command(home, "Document without a server URL", "import", "pets.yaml")
    document("1.0")
    yield run_command(home, "A document", "import", "pets.yaml")
    yield run_command(home, "The same document", "import", "pets.yaml")
    document("1.0", "https://elsewhere.example.com")
    yield run_command(home, "Another document of the same version", "import", "pets.yaml")
    document("2.0")
    yield run_command(home, "A newer document", "import", "pets.yaml", "--write")
    for title, arguments in BUNDLE_COMMANDS:
        yield run_command(home, title, *arguments)


BUNDLE_COMMANDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("URL instead of a file", ("import", "https://example.com/openapi.json")),
    ("Bundles", ("bundles", "list", "--all")),
    ("Unknown bundle", ("bundles", "enable", "petstor")),
    ("Unknown tool of a bundle", ("bundles", "disable", "petstore.list-pet")),
    ("Unknown version", ("bundles", "disable", "petstore.list-pets@3")),
    ("Invalid name", ("bundles", "disable", "petstore@3")),
    ("Export of a bundle", ("bundles", "export", "petstore")),
    ("Existing file", ("bundles", "export", "petstore")),
    ("Import of a bundle", ("bundles", "import", "petstore.zip", "--name", "pets")),
    ("Disabling a version", ("bundles", "disable", "petstore.list-pets@2.0")),
    ("Call of a disabled version", ("call", "petstore.list-pets@2.0")),
    ("Disabling a bundle", ("bundles", "disable", "petstore")),
    ("Call of a disabled bundle", ("call", "petstore.list-pets")),
    ("Enabling a tool of a disabled bundle", ("bundles", "enable", "petstore.list-pets")),
    ("A call without a secret", ("call", "pets.list-pets")),
    ("No tokens", ("token", "list")),
    ("A token", ("token", "create", "laptop")),
    ("A token of the same name", ("token", "create", "laptop")),
    ("Token of an unknown agent", ("token", "create", "phone", "--agent", "boss")),
    ("Token with an invalid name", ("token", "create", "my phone")),
    ("Token with an invalid expiry", ("token", "create", "phone", "--expires", "soon")),
    ("Tokens", ("token", "list")),
    ("Unknown token", ("token", "revoke", "phone")),
    ("Revoking a token", ("token", "revoke", "laptop")),
)

POLICIES = {
    "default": {"permissions": ["read", "write"], "policy": "ask-writes"},
    "reader": {"permissions": ["read", "write"], "policy": "read-only"},
    "nobody": {"permissions": ["read", "write"], "policy": "ask-writes", "approvals": {"via": []}},
}
WRITE = "fs.write('notes.md', 'Call Ada')"
TOKEN = "ot_phone"


def approvals(home: Path) -> Iterator[Entry]:
    with open_app({"agents": POLICIES, "approvals": {"wait": 0}}) as app:
        yield from run_in_app(app, [("A run that waits", WRITE)])
        yield from run_in_app(app, [("A policy that denies", WRITE)], "reader")
        yield from run_in_app(app, [("Nobody may approve", WRITE)], "nobody")
        yield from run_in_app(app, [("The result of an unknown run", "ot.run_result('r_1')")])
        run = re.findall(r"r_[0-9a-f]{32}", app.run(WRITE).text)[0]
        yield to_entry("The result of a run that waits", *ask_for_result(app, run, 0))
        decision = Decision(is_approved=False, by="token phone", reason="Ada is away")
        app.portal.call(partial(app.onetool.runs.decide, run, decision, via="ui", transport="http"))
        yield to_entry("The result of a rejected run", *ask_for_result(app, run, 20))
    configure(
        home, f"auth: {{tokens: [{{name: phone, hash: {hash_token(TOKEN)}, scope: approve}}]}}\n"
    )
    yield run_command(home, "Nothing waits", "approvals")
    run = store_run(home / ".onetool", make_call(1, "gh.create_issue", repo="me/app"))
    for title, (command, *arguments) in APPROVAL_COMMANDS:
        yield run_command(home, title, command, run, *arguments)
    yield run_command(home, "An unknown run", "approve", "r_12345678", "--token", TOKEN)


def ask_for_result(app: App, run: str, seconds: int) -> tuple[str, Answer]:
    code = f"ot.run_result('{run}', wait={seconds})"
    return code.replace(run, "RUN"), app.run(code)


APPROVAL_COMMANDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("An unknown token", ("approve", "--token", "ot_wrong")),
    ("A call that does not wait", ("approve", "--call", "2", "--token", TOKEN)),
    ("An invalid pattern", ("approve", "--grant", "gh.create_issue('me/*')", "--token", TOKEN)),
    ("A rejection", ("reject", "--reason", "Ada is away", "--token", TOKEN)),
    ("A call that was answered", ("approve", "--token", TOKEN)),
)

CHAPTERS: Mapping[str, Chapter] = {
    "Invalid requests": invalid_requests,
    "Invalid code": invalid_code,
    "Invalid calls": invalid_calls,
    "Exceeded limits": exceeded_limits,
    "Large results": large_results,
    "Discovery": discovery,
    "Snippets, aliases, projects": shortcuts,
    "Notifications and statistics": notifications_and_statistics,
    "Configuration": configuration,
    "Resources and prompts": resources_and_prompts,
    "The command line": command_lines,
    "Bundles and tokens": bundles_and_tokens,
    "Approvals": approvals,
}


# --- the snapshot ---------------------------------------------------------------------------------


def render_chapter(title: str) -> str:
    with TemporaryDirectory() as home:
        return "\n".join([f"## {title}\n", *map(str, CHAPTERS[title](Path(home)))])


def read_chapter(title: str) -> str:
    """Read a chapter from the snapshot."""
    _, _, rest = SNAPSHOT.read_text("utf-8").partition(f"\n## {title}\n")
    ends = [rest.find(f"\n## {other}\n") for other in CHAPTERS]
    end = min((end for end in ends if end >= 0), default=len(rest))
    return f"## {title}\n{rest[:end]}"


@pytest.mark.slow
@pytest.mark.parametrize("title", CHAPTERS)
def test_messages_match_the_snapshot(title: str) -> None:
    now, before = render_chapter(title), read_chapter(title)
    changes = unified_diff(
        before.splitlines(), now.splitlines(), "messages.md", "current messages", lineterm=""
    )
    assert now == before, "\n".join(
        [f"Review this, and if it is intended run: {UPDATE_COMMAND}", *changes]
    )


def main(arguments: list[str]) -> None:
    if arguments != ["--write"]:
        sys.exit(f"Usage: {UPDATE_COMMAND}")
    SNAPSHOT.write_text("\n".join([HEAD, *map(render_chapter, CHAPTERS)]), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
