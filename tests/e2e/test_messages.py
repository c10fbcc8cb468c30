"""Every message that a model or a person can get, produced for real and kept in `messages.md`, to be read like prose.

Each message is to say what was wrong, what is right and what to type. To renew the file after a change of words:

    uv run python -m tests.e2e.test_messages --write

and read the difference as an editor would. What depends on the machine stands there as a name in capitals.
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
from tests.support import PROGRAM, App, Connection, configure, connect, get_texts, open_app, run_cli

from onetool._tool import tool
from onetool.errors import ToolError, ToolTimeout
from onetool.runner.answer import Answer
from onetool.schema import Schema
from onetool.version import __version__

SNAPSHOT = Path(__file__).with_name("messages.md")
RENEW = "uv run python -m tests.e2e.test_messages --write"
HEAD = f"""\
# What OneTool says

Every message that a model or a person can get, as it really is. Written by `{RENEW}`, compared by
`tests/e2e/test_messages.py`. A name in capitals (HOME, HANDLE, TIME) stands for what differs from machine to machine.
"""
NAMES = (
    (re.compile(r"\b[0-9a-f]{32}\b"), "HANDLE"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:[+-]\d\d:\d\d|Z)"), "TIME"),
    (re.compile(r"\.damaged-\w+"), ".damaged-TIME"),
    (re.compile(rf"\b{re.escape(__version__)}\b"), "VERSION"),
    (re.compile(rf"\b{re.escape(platform.python_version())}\b"), "PYTHON"),
    (re.compile(r"sandbox: [\w+-]+"), "sandbox: LAYERS"),
    (re.compile(r"tool_count: \d+"), "tool_count: COUNT"),
    (re.compile(r"\bot_[\w-]{43}"), "TOKEN"),
)
LONGEST_SHOWN = 400


@dataclass(frozen=True)
class Entry:
    title: str
    sent: str
    answer: str
    kind: str = "answer"
    language: str = "python"

    def __str__(self) -> str:
        sent = self.sent if len(self.sent) <= LONGEST_SHOWN else f"{self.sent[:60]}… ({len(self.sent)} characters)"
        return f"### {self.title}\n\n~~~ {self.language}\n{sent}\n~~~\n~~~ {self.kind}\n{self.answer}\n~~~\n"


Chapter = Callable[[Path], Iterable[Entry]]
Cases = Iterable[tuple[str, str]]


# --- the tools that are called ---------------------------------------------------------------------------------------


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


# --- doors -----------------------------------------------------------------------------------------------------------


def answered(title: str, sent: str, answer: Answer, folder: Path | None = None) -> Entry:
    return Entry(title, sent, named("\n".join(answer.blocks), folder), "error" if answer.is_error else "answer")


def through(app: App, cases: Cases, agent: str = "default") -> Iterator[Entry]:
    folder = app.onetool.directories.data
    for title, command in cases:
        yield answered(title, command, app.run(command, agent=agent), folder)


def over(client: Connection, cases: Iterable[tuple[str, object]]) -> Iterator[Entry]:
    for title, command in cases:
        result = client.run(command)
        text = named("\n".join(get_texts(result)), client.home)
        yield Entry(title, command if isinstance(command, str) else f"command={command!r}", text, _kind(result))


def _kind(result: Any) -> str:
    return "error" if result.is_error else "answer"


def typed(home: Path, title: str, *arguments: str) -> Entry:
    done = run_cli(home, *arguments)
    text = named("\n".join(part.rstrip("\n") for part in (done.stdout, done.stderr) if part), home)
    return Entry(title, shlex.join(["onetool", *arguments]), text, f"status {done.returncode}", "shell")


def named(text: str, folder: Path | None) -> str:
    """The text with names in place of what differs from machine to machine."""
    text = text.replace(str(folder), "HOME") if folder else text
    text = text.replace(str(Path.cwd()), "FOLDER")
    for pattern, name in NAMES:
        text = pattern.sub(name, text)
    return text.rstrip()


# --- chapters --------------------------------------------------------------------------------------------------------


def what_was_sent(home: Path) -> Iterator[Entry]:
    configure(home, "execution: {max_command_bytes: 500}")
    with connect(home) as client:
        for title, name, arguments in NO_COMMANDS:
            result = client.call(name, arguments)
            yield Entry(title, f"{name}({arguments})", named("\n".join(get_texts(result)), home), _kind(result))
        yield from over(client, COMMANDS)


NO_COMMANDS: tuple[tuple[str, str, dict[str, Any] | None], ...] = (
    ("No command", "run", {}),
    ("An argument that run does not have", "run", {"command": "1", "timeout": 5}),
    ("Another tool than run", "ot.tools", {}),
)
COMMANDS: tuple[tuple[str, object], ...] = (
    ("Not a string", ["ot.tools()"]),
    ("Nothing", ""),
    ("A fence with nothing in it", "```python\n```"),
    ("Too long", "x = '" + "a" * 500 + "'"),
    ("A prefix that was never ours", "!onetool ot.tools()"),
    ("A prefix of another server", "mcp__ot__run ot.tools()"),
)


def code_that_is_wrong(_home: Path) -> Iterator[Entry]:
    with open_app(tools=TOOLS) as app:
        yield from through(app, WRONG_CODE)


WRONG_CODE = (
    ("A syntax error", "x = 1\ny = (2 +"),
    ("Prose instead of code", "Please list the files"),
    ("A block that is not indented", "for n in range(3):\nprint(n)"),
    ("A line that is indented for no reason", "x = 1\n  y = 2\nz = 3"),
    ("An error of the code itself", "rows = [1, 2]\ntotal = sum(rows)\nrows[5]"),
    ("An error after some calls", "demo.add(1)\ndemo.add(2)\n1 / 0"),
    ("A name near a pack", "machin.disk()"),
    ("A name that is a tool without its pack", "disk()"),
    ("A tool with another mark behind its pack", "machine_disk()"),
    ("A name that means nothing here", "qqq(1)"),
    ("An unknown pack", "brave.search(query='x')"),
    ("An unknown pack by name", "ot.call('brave.search', query='x')"),
    ("A pack that is called", "machine()"),
    ("A tool that is not called", "machine.disk"),
    ("A tool that is waited for", "await machine.disk()"),
    ("An attribute of a dict", "machine.disk().free"),
    ("A module that is not there", "import requests"),
    ("No value", "x = 1"),
    ("None", "None"),
    ("A value that is no data", "x = []\nx.append(x)\nx"),
    ("An unknown format", "__format__ = 'xml'\n{'a': 1}"),
    ("ot.parallel with calls instead of functions", "ot.parallel([demo.add(1), demo.add(2)])"),
    ("ot.parallel with one function", "ot.parallel(demo.fails)"),
    ("ot.parallel with one that fails", "ot.parallel([lambda: demo.add(1), demo.fails])"),
)


def calls_that_are_wrong(_home: Path) -> Iterator[Entry]:
    with open_app(tools=TOOLS) as app:
        yield from through(app, WRONG_CALLS)


WRONG_CALLS = (
    ("A misspelt tool of a pack", "machine.dsk()"),
    ("A tool that the pack does not have", "demo.multiply(2, 3)"),
    ("An argument is missing", "demo.add()"),
    ("An argument that the tool does not have", "demo.add(1, third=3)"),
    ("An argument given twice", "demo.add(1, first=2)"),
    ("Too many arguments", "demo.add(1, 2, 3)"),
    ("An argument of the wrong type", "demo.add(first='one')"),
    ("An argument that is not among the choices", "machine.disk(unit='TB')"),
    ("A misspelt argument of ot", "ot.tools(patern='disk')"),
    ("No permission", "demo.writes()"),
    ("A disabled tool", "demo.off()"),
    ("A tool that fails", "demo.fails()"),
    ("A tool that refuses", "demo.refuses('notes.txt')"),
    ("A tool that is not permitted itself", "demo.denied()"),
    ("A tool that lacks a library itself", "demo.lacks()"),
    ("A tool that gives up waiting", "demo.slow()"),
    ("A tool that breaks its own promise", "demo.lies()"),
    ("A tool that tries to end the server", "demo.leaves()"),
)


def more_than_a_run_may(_home: Path) -> Iterator[Entry]:
    with open_app({"execution": {"memory_mb": 256}}) as app:
        yield from through(app, TOO_MUCH)
    narrow = {"timeout": 2, "max_tool_calls": 3, "max_output_bytes": 10_000}
    with open_app({"execution": narrow}) as app:
        yield from through(app, NARROW)


SMALL_THREADS = """\
import threading, time
threading.stack_size(32768)
while True:
    threading.Thread(target=time.sleep, args=(60,)).start()
    time.sleep(0.0002)"""
TOO_MUCH = (
    ("Memory", "x = bytearray(1 << 30)"),
    ("Nesting", "def f(): return f()\nf()"),
    ("Threads", "import threading, time\nwhile True:\n    threading.Thread(target=time.sleep, args=(60,)).start()"),
    ("Threads that are small", SMALL_THREADS),
    ("Leaving", "machine.now()\nexit()"),
    ("Leaving with a word", "import sys\nsys.exit('nothing to do')"),
    ("Leaving without a goodbye", "import os\nmachine.now()\nos._exit(3)"),
    ("Being killed", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"),
    ("A file of the machine", "open('/etc/passwd').read()"),
    ("A file of the working folder", "open('README.md').read()"),
    ("A file that is written", "open('/tmp/mine', 'w')"),
    ("The network", "import urllib.request\nurllib.request.urlopen('http://example.org/')"),
    ("A socket", "import socket\nsocket.create_connection(('127.0.0.1', 80))"),
    ("A program", "import subprocess\nsubprocess.run(['ls'])"),
    ("A process", "import os\nos.fork()"),
    ("Input that nobody types", "input('Your name? ')"),
)
NARROW = (
    ("Time", "machine.now()\nwhile True:\n    pass"),
    (
        "Time, and no ear for it",
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])\nwhile True:\n    pass",
    ),
    ("Tool calls", "for _ in range(4):\n    machine.now()"),
    ("Printed text", "print('a' * 20_000)"),
    ("A value", "'a' * 2_000_000"),
)


def large_results(_home: Path) -> Iterator[Entry]:
    with open_app({"output": {"max_inline_size": 1500, "preview_lines": 2}}) as app:
        yield from through(app, LARGE)
        handle = re.findall(r"[0-9a-f]{32}", app.run("[{'file': 'a.py', 'line': n} for n in range(100)]").text)[0]
        for title, command in LOOKS:
            yield answered(title, command, app.run(command.replace("HANDLE", handle)))
    with open_app({"output": {"max_inline_size": 400, "result_ttl": 0.01}}) as app:
        handle = re.findall(r"[0-9a-f]{32}", app.run("'x' * 1000").text)[0]
        for title, command in EXPIRED:
            yield answered(title, command, app.run(command.replace("HANDLE", handle)))
    with open_app({"output": {"max_inline_size": 400}}) as app:
        (app.onetool.directories.data / "tmp").write_text("", encoding="utf-8")
        yield from through(app, NOWHERE)


LARGE = (
    ("Rows", "[{'file': f'{n % 7}.py', 'line': n} for n in range(100)]"),
    ("Text", "'\\n'.join(f'line {n}' for n in range(300))"),
    ("Printed text, and a short value", "print('line\\n' * 1000)\n42"),
)
LOOKS = (
    ("A window", "ot.result('HANDLE', offset=2, limit=10)"),
    ("A search that finds nothing", "ot.result('HANDLE', search='nothing like that')"),
    ("No handle", "ot.result()"),
    ("A handle that nobody gave", "ot.result('abc123')"),
    ("A handle that is a path", "ot.result(handle='../../etc/passwd')"),
    ("A handle that is no text", "ot.result(handle=5)"),
    ("An offset below one", "ot.result('HANDLE', offset=0)"),
    ("A limit below one", "ot.result('HANDLE', limit=0)"),
    ("An offset behind the end", "ot.result('HANDLE', offset=5000)"),
    ("A broken regular expression", "ot.result('HANDLE', search='(')"),
    ("A lookaround", "ot.result('HANDLE', search='(?=x)')"),
    ("An unknown unit", "ot.result('HANDLE', unit='pages')"),
    ("A fuzzy search that is too long", "ot.result('HANDLE', search='x' * 300, fuzzy=True)"),
    ("All of it", "len(ot.load('HANDLE'))"),
    ("All of what is not there", "ot.load('abc123')"),
)
EXPIRED = (
    ("A part of what has expired", "import time\ntime.sleep(0.05)\not.result('HANDLE')"),
    ("All of what has expired", "ot.load('HANDLE')"),
)
NOWHERE = (("A large result that cannot be kept", "'x' * 1000"),)


def finding_things(_home: Path) -> Iterator[Entry]:
    with open_app(SHORTCUTS, tools=TOOLS) as app:
        yield from through(app, FINDING)


FINDING = (
    ("Help on nothing", "ot.help()"),
    ("Help on a tool", "ot.help('demo.add')"),
    ("Help on words", "ot.help('free space on the disk')"),
    ("Help on a typo", "ot.help('machine.dsik')"),
    ("Help on what is not there", "ot.help('xylophone zzz')"),
    ("Tools that are not there", "ot.tools(pattern='xylophone')"),
    ("Packs that are not there", "ot.packs(pattern='xylophone', info='full')"),
    ("Snippets that are not there", "ot.snippets(pattern='xylophone', info='full')"),
    ("A search for nothing", "ot.search('')"),
    ("An unknown amount of detail", "ot.tools(info='some')"),
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
        yield from through(app, SHORT)


SHORT = (
    ("A snippet", "$greet who='dear reader' loud=true"),
    ("An unknown snippet", "$greeet who=me"),
    ("No name", "$ who=me"),
    ("A parameter is missing", "$greet"),
    ("A parameter that the snippet does not have", "$greet who=me volume=11"),
    ("A parameter given twice", "$greet who=me who=you"),
    ("A value without a name", "$greet me"),
    ("A quote that is never closed", "$greet who='me"),
    ("Lines that are none", "$greet\nwho: me\nand you"),
    ("Snippets in a circle", "$round"),
    ("A body that is no Python", "$broken"),
    ("A body that is no template", "$torn"),
    ("A body with an unknown name", "$undeclared"),
    ("A body that fails", "$late"),
    ("From code: unknown", "ot.snippet('greeet', who='me')"),
    ("From code: a parameter is missing", "ot.snippet('greet')"),
    ("From code: no Python", "x = 1\not.snippet('broken')"),
    ("From code: a body that fails", "x = 1\not.snippet('late')"),
    ("From code: without end", "ot.snippet('endless')"),
    ("An alias", "plus(1, 2)"),
    ("An alias with wrong arguments", "plus()"),
    ("Aliases in a circle", "ping()"),
    ("An alias of what is gone", "old()"),
    ("An unknown project", "proj.shoop"),
    ("No project of this name", "proj.path('blog')"),
    ("A path that leaves its project", "proj.shop / '../../etc'"),
)


def notes_and_numbers(_home: Path) -> Iterator[Entry]:
    topics = [{"pattern": "notes", "file": "notes.yaml"}, {"pattern": "taken:*", "file": "taken.yaml"}]
    writer = {"permissions": ["read", "write"]}
    with open_app({"notify": {"topics": topics}, "agents": {"writer": writer}}) as app:
        (app.onetool.directories.data / "taken.yaml").mkdir()
        yield from through(app, NOTES)
        yield from through(app, REPORTS, "writer")
    with open_app({"stats": {"enabled": False}}) as app:
        yield from through(app, [("Statistics that are disabled", "ot.stats()")])
    with open_app() as app:
        file = app.onetool.stores.stats_file
        file.parent.mkdir(parents=True)
        file.write_bytes(b"no database, and never was one" * 100)
        yield from through(app, DAMAGED)


NOTES = (
    ("A note", "ot.notify(topic='notes', message='Review PR #123')"),
    ("A note on what nobody asked for", "ot.notify(topic='weather', message='It rains')"),
    ("A note that cannot be written", "ot.notify(topic='taken:1', message='Hello')"),
    ("A topic that is too long", "ot.notify(topic='x' * 600, message='Hello')"),
    ("An unknown period", "ot.stats(period='year')"),
    ("A report without permission", "ot.stats(output='report.html')"),
)
REPORTS = (
    ("A report outside of the working folder", "ot.stats(output='/etc/report.html')"),
    ("A report where no folder is", "ot.stats(output='missing/report.html')"),
)
DAMAGED = (
    ("Statistics that were damaged", "ot.stats()['total_calls']"),
    ("They are begun anew", "ot.stats()['total_calls']"),
    ("What became of them", "ot.health()['problems']"),
)


def configuration(home: Path) -> Iterator[Entry]:
    configure(home, "execution:\n  timout: 5\nalias: {}\nlog_level: loud\n")
    with connect(home) as client:
        yield from over(client, [("A wrong configuration at the start", "machine.now()")])
        yield from over(client, [("What is wrong", "ot.health()"), ("Read again and still wrong", "ot.reload()")])
        configure(home, "aliases: {d: machine.disk}\n")
        yield from over(client, [("Read again and right", "ot.reload()")])
        configure(home, "aliases: [d\n")
        yield from over(client, [("A reload with a wrong file", "ot.reload()")])
        configure(home, "tools: {demo: {token: '${DEMO_TOKEN}'}}\n")
        yield from over(client, [("A reload without a secret that is needed", "ot.reload()")])
    yield from untrusted(home / "stranger")


def resources_and_prompts(home: Path) -> Iterator[Entry]:
    configure(home, yaml.safe_dump({"snippets": SHORTCUTS["snippets"]}, sort_keys=False))
    with connect(home) as client:
        for title, method, arguments in ASKED:
            yield asked(client, title, method, arguments)


def asked(client: Connection, title: str, method: str, arguments: Mapping[str, Any]) -> Entry:
    sent = f"{method}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
    try:
        client.portal.call(partial(getattr(client.client, method), **arguments))
    except MCPError as error:
        return Entry(title, sent, named(str(error), client.home), f"error {error.code}")
    raise AssertionError(f"{sent} was no error")


ASKED: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("An unknown resource", "read_resource", {"uri": "ot://packs"}),
    ("The resource of an unknown tool", "read_resource", {"uri": "ot://tool/machine.dsk"}),
    ("The cursor of another list", "list_resources", {"cursor": "MTIz"}),
    ("An unknown prompt", "get_prompt", {"name": "greeet", "arguments": {"who": "me"}}),
    ("A prompt without an argument", "get_prompt", {"name": "greet"}),
    ("A prompt with an unknown argument", "get_prompt", {"name": "greet", "arguments": {"who": "me", "volume": "1"}}),
)


def untrusted(home: Path) -> Iterator[Entry]:
    configure(home / "project", "aliases: {t: machine.now}\n")
    with connect(home, command=("env", f"OT_CWD={home / 'project'}", PROGRAM)) as client:
        yield from over(client, [("A folder that nobody has trusted", "1 + 1"), ("Said once", "1 + 1")])
        yield from over(client, [("And found again", "ot.health()['problems']")])


def command_lines(home: Path) -> Iterator[Entry]:
    (home / "latin.py").write_bytes(b"'\xe9'")
    yield typed(home, "Statistics of nothing", "stats")
    yield typed(home, "Nothing to trust", "trust")
    for title, arguments in TYPED:
        yield typed(home, title, *arguments)
    configure(home, "stats: {enabled: false}\n")
    yield typed(home, "Statistics that are disabled", "stats")
    configure(home, "executon: {}\noutput: {preview_lines: many}\n")
    yield typed(home, "A command with a wrong configuration", "tools")
    yield problems_of(typed(home, "The doctor with a problem", "doctor"))


def problems_of(entry: Entry) -> Entry:
    """The doctor also says what is fine, which is another text on every machine."""
    kept = [line for line in entry.answer.splitlines() if not line.startswith(("ok", "warn"))]
    return Entry(entry.title, entry.sent, "\n".join(kept), entry.kind, entry.language)


TYPED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("An unknown command", ("tolls",)),
    ("An unknown option", ("--prot", "8000")),
    ("No code", ("run",)),
    ("Code and a file", ("run", "1", "-f", "code.py")),
    ("A file that is not there", ("run", "-f", "missing.py")),
    ("A file that is a folder", ("run", "-f", ".")),
    ("A file that is no UTF-8", ("run", "-f", "latin.py")),
    ("A format that is none", ("run", "--format", "xml", "1")),
    ("An agent that is none", ("run", "--agent", "boss", "1")),
    ("A run that fails", ("run", "1 / 0")),
    ("A call of nothing", ("call",)),
    ("A call of an unknown tool", ("call", "machine.dsk")),
    ("A call without an argument", ("call", "ot.search")),
    ("A call with an unknown argument", ("call", "machine.disk", "units=GiB")),
    ("A call with a wrong value", ("call", "machine.disk", "unit=TB")),
    ("A call with half an argument", ("call", "machine.disk", "GiB")),
    ("A call with an argument twice", ("call", "machine.disk", "unit=GiB", "unit=MiB")),
    ("A call that fails, as JSON", ("call", "--json", "machine.disk", "unit=TB")),
    ("A call by an agent that is none", ("call", "--agent", "boss", "machine.disk")),
    ("Tools that are not there", ("tools", "xylophone")),
    ("Help on what is not there", ("help", "xylophone", "zzz")),
    ("A configuration that is not there", ("tools", "--config", "missing.yaml")),
    ("One's own folder, which needs no trust", ("trust",)),
    ("Statistics of an unknown period", ("stats", "--period", "year")),
    ("Statistics of what was never called", ("stats", "--tool", "machine.cpu", "--period", "week")),
    ("A report where no folder is", ("stats", "--html", "missing/report.html")),
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

    yield typed(home, "No bundles", "bundles")
    document("1.0", "/v1")
    yield typed(home, "A document that does not say where the API is", "import", "pets.yaml")
    document("1.0")
    yield typed(home, "A document", "import", "pets.yaml")
    yield typed(home, "The same document", "import", "pets.yaml")
    document("1.0", "https://elsewhere.example.com")
    yield typed(home, "Another document of the same version", "import", "pets.yaml")
    document("2.0")
    yield typed(home, "A newer document", "import", "pets.yaml", "--write")
    for title, arguments in KEPT:
        yield typed(home, title, *arguments)


KEPT: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("An address instead of a file", ("import", "https://example.com/openapi.json")),
    ("Bundles", ("bundles", "list", "--all")),
    ("A bundle that is none", ("bundles", "enable", "petstor")),
    ("A tool that is none", ("bundles", "disable", "petstore.list-pet")),
    ("A version that is none", ("bundles", "disable", "petstore.list-pets@3")),
    ("A name that is none", ("bundles", "disable", "petstore@3")),
    ("A bundle goes out", ("bundles", "export", "petstore")),
    ("A file that is there already", ("bundles", "export", "petstore")),
    ("A bundle comes in", ("bundles", "import", "petstore.zip", "--name", "pets")),
    ("A version is switched off", ("bundles", "disable", "petstore.list-pets@2.0")),
    ("A call of a version that is off", ("call", "petstore.list-pets@2.0")),
    ("A bundle is switched off", ("bundles", "disable", "petstore")),
    ("A call of a bundle that is off", ("call", "petstore.list-pets")),
    ("A tool of a bundle that is off", ("bundles", "enable", "petstore.list-pets")),
    ("A call without a secret", ("call", "pets.list-pets")),
    ("No tokens", ("token", "list")),
    ("A token", ("token", "create", "laptop")),
    ("A token of the same name", ("token", "create", "laptop")),
    ("A token of an agent that is none", ("token", "create", "phone", "--agent", "boss")),
    ("A token without a proper name", ("token", "create", "my phone")),
    ("Tokens", ("token", "list")),
    ("A token that is none", ("token", "delete", "phone")),
    ("A token is deleted", ("token", "delete", "laptop")),
)

CHAPTERS: Mapping[str, Chapter] = {
    "What was sent": what_was_sent,
    "Code that is wrong": code_that_is_wrong,
    "Calls that are wrong": calls_that_are_wrong,
    "More than a run may": more_than_a_run_may,
    "Large results": large_results,
    "Finding things": finding_things,
    "Snippets, aliases, projects": shortcuts,
    "Notes and numbers": notes_and_numbers,
    "Configuration": configuration,
    "Resources and prompts": resources_and_prompts,
    "The command line": command_lines,
    "Bundles and tokens": bundles_and_tokens,
}


# --- the snapshot ----------------------------------------------------------------------------------------------------


def written(title: str) -> str:
    with TemporaryDirectory() as home:
        return "\n".join([f"## {title}\n", *map(str, CHAPTERS[title](Path(home)))])


def kept(title: str) -> str:
    """The chapter as the file has it."""
    _, _, rest = SNAPSHOT.read_text("utf-8").partition(f"\n## {title}\n")
    ends = [rest.find(f"\n## {other}\n") for other in CHAPTERS]
    end = min((end for end in ends if end >= 0), default=len(rest))
    return f"## {title}\n{rest[:end]}"


@pytest.mark.slow
@pytest.mark.parametrize("title", CHAPTERS)
def test_messages_are_those_of_the_snapshot(title: str) -> None:
    now, before = written(title), kept(title)
    changes = unified_diff(before.splitlines(), now.splitlines(), "messages.md", "what it says now", lineterm="")
    assert now == before, "\n".join([f"Read this, and if it is better: {RENEW}", *changes])


def main(arguments: list[str]) -> None:
    if arguments != ["--write"]:
        sys.exit(f"Type: {RENEW}")
    SNAPSHOT.write_text("\n".join([HEAD, *map(written, CHAPTERS)]), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
