"""Run a short demonstration with real runs and tools, and print the responses that a model would
see.

The demonstration uses a temporary directory, which is removed at the end.
"""

import asyncio
import json
import os
import re
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from textwrap import wrap
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from onetool.app import OneTool
from onetool.cli.command import Command
from onetool.cli.exit_status import SignalHandler
from onetool.cli.terminal import Progress, bold, dim, green, yellow
from onetool.errors import ToolError
from onetool.runs.answer import Answer
from onetool.runs.run_output import RunOutput
from onetool.settings import paths, scaffold
from onetool.settings.settings_reader import read_settings
from onetool.sources.bundles import importer
from onetool.util.context import Caller
from onetool.util.render import render
from onetool.util.text import pluralize
from onetool.util.version import __version__
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from onetool.state.stats.summary import StatsSummary

TICKETS_SERVER = Path(__file__).with_name("demo_tickets.py")
TIMEOUT_SECONDS = 10  # for the network and slow disks
STOPPED = 128  # plus the signal number, as in shells
WIDTH = 100
MAX_LINES = 3
MAX_ERROR_LINES = 6
TITLE = (
    f"OneTool {__version__}: the model has one tool, run, and writes Python for it. These are real"
    " runs."
)
NEXT = """\
Next steps
  onetool init                  Create a tool of your own
  onetool connect claude-code   Connect an assistant (see `onetool connect --help` for others)
  onetool serve --http          Start the admin UI, REST API and MCP over HTTP: http://127.0.0.1:8765
"""


# --- the steps ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """A step with the code that a model would write.

    `needs` names a feature that a machine may lack.

    `{handle}` in the code is replaced by the handle of the last large result. `meanwhile` is the
    progress message.
    """

    title: str
    code: str
    expects_error: bool = False
    needs: str = ""
    meanwhile: str = "running"


@dataclass(slots=True)
class StepResult:
    """The result of a step. `problem` is the reason if it was not the expected one."""

    title: str
    code: str
    answer: str
    is_error: bool
    ms: int
    calls: list[str] = field(default_factory=list)
    problem: str = ""


NEEDS_PYPI = "this step needs network access, because uv downloads the package humanize from PyPI"
NEEDS_LOOPBACK = "this step needs a web server on 127.0.0.1"
NEEDS_PROGRAM = "this step needs to start an MCP server as a separate process"
SEVERAL = """\
cpu, disk, now = machine.cpu(), machine.disk(), machine.now(utc=True)
{'cores': cpu['cores'], 'disk_free': disk['free'], 'at': now}\
"""
COMPUTING = """\
from statistics import mean, stdev
squares = [n * n for n in range(10)]
f'{mean(squares)} +- {stdev(squares):.2f}'\
"""
OLD_TICKETS = """\
old = [one for one in tickets.list_tickets(state='open') if one['days_open'] > 36]
[tickets.get_ticket(number=one['number'])['title'] for one in old]\
"""
UNPAID = """\
sum(order['total'] for order in orders.list_orders(customer='Ada') if not order['paid'])\
"""
STEPS = (
    Step("The model searches for tools.", "ot.search(query='orders of a customer', limit=2)"),
    Step(
        "It writes a short script: three tool calls, one response with only the fields it needs.",
        SEVERAL,
    ),
    Step("Code is full Python and can compute.", COMPUTING),
    Step(
        "Code is sandboxed: it has no access to files, network or programs.",
        "open('/etc/passwd').read()",
        True,
    ),
    Step(
        "A custom tool is a function in a file; uv installs its dependencies.",
        "hello.since(day='2024-02-29')",
        needs=NEEDS_PYPI,
        meanwhile="uv is preparing an environment with the package humanize",
    ),
    Step(
        "An upstream MCP server is a pack; code filters its results.",
        OLD_TICKETS,
        needs=NEEDS_PROGRAM,
    ),
    Step(
        "An HTTP API is a pack too, imported from an OpenAPI document.",
        UNPAID,
        needs=NEEDS_LOOPBACK,
    ),
    Step(
        "A large result stays out of the context; the model gets a summary and a handle.",
        "tickets.export_log(days=30)",
        needs=NEEDS_PROGRAM,
    ),
    Step(
        "The model reads part of the result by its handle.",
        "ot.result(handle='{handle}', search='ERROR')",
        needs=NEEDS_PROGRAM,
    ),
    Step(
        "A large value is passed between tools without going through the model.",
        "orders.archive_log(text=tickets.export_log(days=30))",
        needs=NEEDS_LOOPBACK,
    ),
    Step(
        "A call without permission is rejected, with the setting that would allow it.",
        "fs.write('notes.md', 'Call Ada back')",
        expects_error=True,
    ),
    Step("An error message suggests the correct name.", "machine.dsk()", expects_error=True),
)


# --- the runs -------------------------------------------------------------------------------------


def main(options: Namespace) -> int:
    with SignalHandler() as signals:
        try:
            with create_environment() as environment:
                return asyncio.run(_demonstrate(environment, signals, is_shown=not options.json))
        except asyncio.CancelledError:
            return STOPPED + signals.signal


async def _demonstrate(
    environment: "DemoEnvironment", signals: SignalHandler, *, is_shown: bool
) -> int:
    async with environment.make_app() as app:
        with signals.cancellable():
            if is_shown:
                print_title()
            with Progress("starting an MCP server and a web server"):
                await asyncio.to_thread(environment.import_api, app)
                await app.discover()
            results = await _run_steps(app, is_shown=is_shown)
            summary = await _summarize_savings(app)
            isolation = (await app.health())["isolation"]
            if is_shown:
                print_savings(
                    summary, ", ".join(f"{key} {value}" for key, value in isolation.items())
                )
            else:
                steps = [asdict(result) for result in results]
                print(
                    render(
                        {"steps": steps, "saved": _list_savings(summary), "isolation": isolation},
                        "json",
                    )
                )
            return _report_skipped(results)


async def _run_steps(app: OneTool, *, is_shown: bool) -> list[StepResult]:
    results: list[StepResult] = []
    handle = ""
    for number, step in enumerate(STEPS, 1):
        code = step.code.replace("{handle}", handle)
        if is_shown:
            print_code(number, step.title, code)
        result = await _run_step(app, step, code)
        if is_shown:
            print_response(result)
        if match := re.search(r'"handle":"(\w+)"', result.answer):
            handle = match[1]
        results.append(result)
    return results


async def _run_step(app: OneTool, step: Step, code: str) -> StepResult:
    """Run the code with a timeout, so that no slow network blocks the demonstration."""
    run_output = RunOutput()
    started = time.perf_counter()
    with Progress(step.meanwhile) as progress:
        run_output.channel.listener = progress.on_event
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                answer = await app.runs.run(code, Caller(), run_output)
        except TimeoutError:
            answer = Answer((f"no response within {TIMEOUT_SECONDS} s",), is_error=True)
    ms = round((time.perf_counter() - started) * 1000)
    problem = ""
    if answer.is_error != step.expects_error:
        problem = f"Skipped: {step.needs or 'unexpected result'}.\n{answer.text}"
    calls = [name for name, _ in run_output.calls]
    return StepResult(step.title, code, answer.text, answer.is_error, ms, calls, problem)


async def _summarize_savings(app: OneTool) -> "StatsSummary":
    """Return statistics of these runs, within a session so that definitions count too."""
    from onetool.server.mcp.mcp_server import OneToolServer, record_session
    from onetool.state.stats.summary import summarize

    with closing(OneToolServer(app)) as server:
        await record_session(app, server.own_tokens)
    await asyncio.to_thread(app.state.recorder.flush)
    trip = app.settings.stats.round_trip_ms
    return await asyncio.to_thread(
        partial(summarize, app.state.recorder.database, round_trip_ms=trip)
    )


def _list_savings(summary: "StatsSummary") -> JsonObject:
    return {
        "calls": summary["total_calls"],
        "runs": summary["runs"]["total"],
        "context_saved": summary["context_saved"],
        "time_saved_ms": summary["time_saved_ms"],
        **summary["savings"],
    }


def _report_skipped(results: list[StepResult]) -> int:
    """Return the exit status. A missing feature of the machine is reported but is not a failure."""
    skipped = [str(number) for number, result in enumerate(results, 1) if result.problem]
    if skipped:
        which = f"step{'s' if len(skipped) > 1 else ''} {', '.join(skipped)}"
        print(f"onetool: cannot show {which}. Run `onetool doctor` for details", file=sys.stderr)
    return int(
        any(result.problem and not step.needs for step, result in zip(STEPS, results, strict=True))
    )


# --- the output -----------------------------------------------------------------------------------


def print_title() -> None:
    print(bold(TITLE), end="\n\n")


def print_code(number: int, title: str, code: str) -> None:
    print(f"{dim(f'{number:2}')}  {bold(title)}")
    print("\n".join(f"    {dim('>>>')} {line}" for line in code.splitlines()), flush=True)


def print_response(result: StepResult) -> None:
    if result.problem:
        lines = [yellow(line) for line in _shorten(result.problem, MAX_ERROR_LINES)]
    else:
        notes_last = sorted(result.answer.splitlines(), key=lambda line: line.startswith("Note: "))
        lines = _shorten("\n".join(notes_last), MAX_ERROR_LINES if result.is_error else MAX_LINES)
    print("\n".join(f"    {line}" for line in lines))
    print(dim(f"    ({result.ms:,} ms)"), end="\n\n", flush=True)


def _shorten(text: str, max_lines: int) -> list[str]:
    """Wrap the text and return at most `max_lines` lines, with the number of omitted characters."""
    lines: list[str] = []
    for line in text.splitlines():
        lines += wrap(line, WIDTH, subsequent_indent="  ") or [""]
    if len(lines) <= max_lines:
        return lines
    omitted = sum(map(len, lines[max_lines:]))
    return [*lines[:max_lines], dim(f"... {pluralize(omitted, 'more character')}")]


def print_savings(summary: "StatsSummary", isolation: str) -> None:
    savings = summary["savings"]
    seconds = summary["time_saved_ms"] / 1000
    made = (
        f"{pluralize(summary['total_calls'], 'call')} in"
        f" {pluralize(summary['runs']['total'], 'run')}"
    )
    tools = f"{savings['definition_tokens']:,} tokens if each tool were connected directly"
    print(bold("Savings of these runs (a token is about four bytes)"))
    print(f"    definitions  {tools}, {savings['own_tokens']:,} for the one tool")
    print(
        f"    results      {savings['result_tokens']:,} tokens processed by code and not read by"
        " the model"
    )
    print(
        f"    round trips  {round(savings['round_trips']):,} fewer, with {made}: about"
        f" {seconds:,.0f} s saved"
    )
    print(green(f"    total        {summary['context_saved']:,} tokens of context"))
    print(dim(f"    Code ran in isolated processes: {isolation}"), end="\n\n")
    print(NEXT, end="")


# --- the environment: a home directory, an MCP server and a web server ----------------------------


@dataclass(frozen=True, slots=True)
class DemoEnvironment:
    """A temporary home directory with all files of the demonstration.

    The user's settings are not read.

    The cache of uv is also there, so the package of the example is downloaded each time.
    """

    home: Path
    api: str  # URL

    def make_app(self) -> OneTool:
        """Return an application with this cache for uv, this Python and short timeouts."""
        variables = {
            **os.environ,
            "UV_CACHE_DIR": str(self.home / "uv"),
            "TMPDIR": str(self.home / "tmp"),
            "UV_PYTHON": sys.executable,
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_HTTP_TIMEOUT": str(TIMEOUT_SECONDS),
            "UV_HTTP_RETRIES": "1",
        }
        read = partial(read_settings, {}, self.home / "work", home=self.home)
        return OneTool(read=read, environment=variables)

    def import_api(self, app: OneTool) -> None:
        """Import the API as `onetool import orders.json --write` does. Blocks on the disk."""
        importer.import_bundle(app.bundles.store, importer.read(_describe_api(self.api)))


@contextmanager
def create_environment() -> Iterator[DemoEnvironment]:
    with _temporary_directory() as home, _run_web_server() as api:
        settings = {
            "servers": {
                "tickets": {
                    "command": sys.executable,
                    "args": ["-P", str(TICKETS_SERVER)],
                    "timeout": TIMEOUT_SECONDS,
                }
            },
            "http": {"allowedHosts": [urlsplit(api).netloc], "allowPrivateAddresses": True},
            "workers": {"start_timeout": TIMEOUT_SECONDS},
        }
        directory = home / paths.FOLDER
        try:
            for path in (home / "work", home / "tmp", directory):
                path.mkdir()
            (directory / paths.CONFIG).write_text(json.dumps(settings, indent=2), encoding="utf-8")
            scaffold.write_settings_directory(directory)
        except OSError as error:
            raise ToolError(f"cannot write to {home}: {error.strerror or error}") from None
        yield DemoEnvironment(home, api)


@contextmanager
def _temporary_directory() -> Iterator[Path]:
    try:
        directory = tempfile.TemporaryDirectory(prefix="onetool-demo-", ignore_cleanup_errors=True)
    except OSError as error:
        raise ToolError(
            f"no usable directory for temporary files: {error.strerror or error}",
            hint="set TMPDIR to a writable directory",
        ) from None
    with directory as name:
        yield Path(name).resolve()


# --- the web server: the orders of a small shop ---------------------------------------------------

ORDERS = [
    {
        "id": number,
        "customer": ("Ada", "Alan", "Grace")[number % 3],
        "total": 12.5 + number,
        "paid": number % 4 != 0,
    }
    for number in range(1, 25)
]
UNUSED_URL = "http://127.0.0.1:9"


def _describe_api(url: str) -> bytes:
    """Return the OpenAPI document of the web server."""
    text = {"type": "string"}
    list_orders = {
        "operationId": "list-orders",
        "summary": "List the orders of a customer.",
        "parameters": [{"name": "customer", "in": "query", "required": True, "schema": text}],
        "responses": {"200": {"description": "The orders"}},
    }
    body = {"type": "object", "required": ["text"], "properties": {"text": text}}
    archive_log = {
        "operationId": "archive-log",
        "summary": "Keep the text of a log.",
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {"200": {"description": "How much was kept"}},
    }
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Orders", "version": "1.0", "description": "The orders of a small shop."},
        "servers": [{"url": url}],
        "paths": {"/orders": {"get": list_orders}, "/archive": {"post": archive_log}},
    }
    return json.dumps(document).encode()


@contextmanager
def _run_web_server() -> Iterator[str]:
    """Start the server on loopback and yield its URL, or an unused URL if it cannot listen."""
    try:
        server = _WebServer(("127.0.0.1", 0), _OrdersHandler)
    except OSError:
        yield UNUSED_URL
        return
    thread = Thread(target=server.serve_forever, args=(0.05,), name="demo-orders", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _WebServer(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Ignore errors of connections."""


class _OrdersHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        customers = parse_qs(urlsplit(self.path).query).get("customer", [])
        self._answer([order for order in ORDERS if order["customer"] in customers])

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        lines = json.loads(body)["text"].splitlines()
        self._answer({"kept_lines": len(lines), "kept_bytes": len(body)})

    def _answer(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing, because the demonstration uses the terminal."""


COMMANDS = {"demo": Command(__doc__, main=main, json="print the complete results as JSON")}
