"""The one list of checks: `ot.health()`, `/api/health` and `onetool doctor` report what is found here.

Nothing is started or changed: upstream servers and extensions are judged by their recorded state. `onetool doctor`
starts them first, and shows also what is in order.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ot.checks import assistants, extensions, kept, names, places, servers, settings
from ot.checks.finding import NO_ADVICE, OK, PROBLEM, Finding, shortened, told
from ot.config.load import Examined, Loaded
from ot.extensions.packs import Extensions
from ot.proxy.servers import Servers
from ot.redact import Redactor
from ot.registry import Registry
from ot.secret_finder import secrets_in

NEW_LINE = "\n"


@dataclass(frozen=True, slots=True)
class Subject:
    """What is checked: settings as the files are now, and what runs. `messages` are problems that were recorded."""

    read: Examined
    registry: Registry
    servers: Servers
    extensions: Extensions
    bundle_problems: tuple[str, ...]
    messages: tuple[str, ...]
    checks_clients: bool = True  # a program that embeds OneTool is not asked about the machine's MCP clients


def check(subject: Subject, seconds: float | None = None) -> list[Finding]:
    """Return each problem and warning once, without secrets. Databases are checked for `seconds` at most.

    It reads files, so call it in a thread.
    """
    read = subject.read
    placed = places.findings(read)
    files = kept.findings(read.loaded, seconds)
    stored = [*files, *unsaid(kept.bundle_findings(subject.bundle_problems), files)]
    found = [
        *settings.wrong(read),
        *stored,
        *extensions.findings(subject.extensions, subject.registry, read.loaded),
        *unsaid(servers.findings(subject.servers, read, subject.registry), stored),
        *settings.findings(subject.registry, read),
        *names.findings(subject.registry, read),
        *(assistants.findings(read.loaded.folders) if subject.checks_clients else ()),
    ]
    reported = [*placed, *places.outside(placed, found)]
    consequences = unsaid([told(PROBLEM, message) for message in subject.messages], reported)
    return without_secrets([*reported, *places.outside(placed, consequences)], read.loaded)


def messages(findings: Iterable[Finding], recorded: Iterable[str]) -> list[str]:
    """Return problems and warnings as one message each, then what was recorded and is not among them."""
    reported = [_message(each) for each in findings if each.level != OK]
    return [*reported, *(line for line in recorded if not any(told(PROBLEM, line).what in each for each in reported))]


def _message(found: Finding) -> str:
    if found.advice in {"", NO_ADVICE}:
        return found.what
    return f"{found.what.rstrip('.')}{NEW_LINE if NEW_LINE in found.what else '. '}Hint: {found.advice}"


def unsaid(findings: Iterable[Finding], reported: list[Finding]) -> list[Finding]:
    """Leave out those that name a file of which something was reported: they follow from it."""
    said = "\n".join(each.what for each in reported)
    return [each for each in findings if each.what not in said and not any(file in said for file in _files(each.what))]


def _files(message: str) -> list[str]:
    return [word.rstrip(":,.;") for word in message.split() if word.startswith("/")]


def without_secrets(findings: list[Finding], loaded: Loaded) -> list[Finding]:
    """Return each finding once, with the values of secrets redacted."""
    redact = Redactor([*loaded.secret_values, *_secrets_of_servers(loaded)])
    clean = (Finding(each.level, shortened(redact(each.what)), shortened(redact(each.advice))) for each in findings)
    return list(dict.fromkeys(clean))


def _secrets_of_servers(loaded: Loaded) -> Iterator[str]:
    """Those that stand in the environment, or in the file itself: servers repeat them in what they print."""
    for server in loaded.settings.servers.values():
        yield from secrets_in({"env": dict(server.env), "headers": dict(server.headers), "args": list(server.args)})
