"""What the demonstration shows, step by step: what a model would write, and what is meant to come of it.

Later steps may need what earlier ones gave: the handle of a large result stands in for `{handle}`.
"""

import re
from dataclasses import dataclass, field

from onetool.runner.answer import Answer

HANDLE = re.compile(r'"handle":"(\w+)"')
PYPI = "it needs the network once: uv fetches the package humanize from PyPI"
LOOPBACK = "it needs a web server on this machine's own address, 127.0.0.1"
PROGRAM = "it needs a second program, the MCP server, started beside this one"


@dataclass(frozen=True, slots=True)
class Step:
    """`is_refused` where an error is what it is to show; `needs` says what may be missing on a machine.

    `meanwhile` is what a person reads who has to wait.
    """

    title: str
    code: str
    is_refused: bool = False
    needs: str = ""
    meanwhile: str = "running"

    def problem(self, answer: Answer) -> str:
        """Why it did not show what it was to show; empty where it did."""
        if answer.is_error == self.is_refused:
            return ""
        return f"Not shown here: {self.needs or 'something is wrong'}.\n{answer.text}"


@dataclass(slots=True)
class Seen:
    """A step as it went. `problem` says why it could not be shown; empty where it could."""

    title: str
    code: str
    answer: str
    is_error: bool
    ms: int
    calls: list[str] = field(default_factory=list)
    problem: str = ""


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
    Step("The model asks for what it needs.", "ot.search(query='orders of a customer', limit=2)"),
    Step("It writes a little Python: three tools, one answer, and only what it wants of it.", SEVERAL),
    Step("Code may compute: it is full Python.", COMPUTING),
    Step("Only tools may act: code has no files, no network, no programs.", "open('/etc/passwd').read()", True),
    Step(
        "A tool of your own is a function in a file; uv brings the package it needs.",
        "hello.since(day='2024-02-29')",
        needs=PYPI,
        meanwhile="uv is preparing an environment with the package humanize",
    ),
    Step("Another MCP server is a pack: its answers are filtered in code.", OLD_TICKETS, needs=PROGRAM),
    Step("An HTTP API is a pack too: `onetool import` made it of an OpenAPI document.", UNPAID, needs=LOOPBACK),
    Step(
        "A large result stays out of the context: the model gets a summary and a handle.",
        "tickets.export_log(days=30)",
        needs=PROGRAM,
    ),
    Step(
        "It looks into it by the handle, for as much as it wants to see.",
        "ot.result(handle='{handle}', search='ERROR')",
        needs=PROGRAM,
    ),
    Step(
        "A large value goes from one tool to another, and never through the model.",
        "orders.archive_log(text=tickets.export_log(days=30))",
        needs=LOOPBACK,
    ),
    Step(
        "What was not granted is refused, with the line that would grant it.",
        "fs.write('notes.md', 'Call Ada back')",
        is_refused=True,
    ),
    Step("A mistake says what to write instead.", "machine.dsk()", is_refused=True),
)
