"""The steps of the demonstration: the code that a model would write, and whether it is meant to succeed.

`{handle}` in the code of a step is replaced by the handle of the last large result.
"""

import re
from dataclasses import dataclass, field

from onetool.runner.answer import Answer

HANDLE = re.compile(r'"handle":"(\w+)"')
PYPI = "this step needs network access, because uv downloads the package humanize from PyPI"
LOOPBACK = "this step needs a web server on 127.0.0.1"
PROGRAM = "this step needs to start an MCP server as a separate process"


@dataclass(frozen=True, slots=True)
class Step:
    """A step. `expects_error` means that an error is expected, `needs` names a feature that a machine may lack.

    `meanwhile` is the progress message.
    """

    title: str
    code: str
    expects_error: bool = False
    needs: str = ""
    meanwhile: str = "running"

    def problem(self, answer: Answer) -> str:
        """Return why the step had another result than expected; empty if it had not."""
        if answer.is_error == self.expects_error:
            return ""
        return f"Skipped: {self.needs or 'unexpected result'}.\n{answer.text}"


@dataclass(slots=True)
class StepResult:
    """The result of a step. `problem` is the reason if it could not be shown."""

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
    Step("The model searches for tools.", "ot.search(query='orders of a customer', limit=2)"),
    Step("It writes a short script: three tool calls, one response with only the fields it needs.", SEVERAL),
    Step("Code is full Python and can compute.", COMPUTING),
    Step("Code is sandboxed: it has no access to files, network or programs.", "open('/etc/passwd').read()", True),
    Step(
        "A custom tool is a function in a file; uv installs its dependencies.",
        "hello.since(day='2024-02-29')",
        needs=PYPI,
        meanwhile="uv is preparing an environment with the package humanize",
    ),
    Step("An upstream MCP server is a pack; code filters its results.", OLD_TICKETS, needs=PROGRAM),
    Step("An HTTP API is a pack too, imported from an OpenAPI document.", UNPAID, needs=LOOPBACK),
    Step(
        "A large result stays out of the context; the model gets a summary and a handle.",
        "tickets.export_log(days=30)",
        needs=PROGRAM,
    ),
    Step(
        "The model reads part of the result by its handle.",
        "ot.result(handle='{handle}', search='ERROR')",
        needs=PROGRAM,
    ),
    Step(
        "A large value is passed between tools without going through the model.",
        "orders.archive_log(text=tickets.export_log(days=30))",
        needs=LOOPBACK,
    ),
    Step(
        "A call without permission is rejected, with the setting that would allow it.",
        "fs.write('notes.md', 'Call Ada back')",
        expects_error=True,
    ),
    Step("An error message suggests the correct name.", "machine.dsk()", expects_error=True),
)
