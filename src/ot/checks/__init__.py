"""The one list of checks: `ot.health()`, `/api/health` and `onetool doctor` report what is found here.

Nothing is started or changed: upstream servers and extensions are judged by their recorded state. `onetool doctor`
starts them first, and shows also what is in order.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import PurePath

from ot.checks import assistants, extensions, kept, places, servers, settings
from ot.config.load import Examined, Loaded
from ot.extensions.packs import Extensions
from ot.problem import OK, PROBLEM, STORAGE, WARNING, Location, Problem
from ot.proxy.servers import Servers
from ot.redact import Redactor
from ot.registry import Registry
from ot.util.secret_finder import secrets_in

LEVELS = (PROBLEM, WARNING, OK)
MAX_LENGTH = 2000
# Codes of problems that may follow from another one: a file in a directory that cannot be used cannot be used either.
CONSEQUENCES = frozenset({STORAGE, "busy"})


@dataclass(frozen=True, slots=True)
class Subject:
    """What is checked: settings as the files are now, and what runs. `recorded` is what running parts noticed."""

    read: Examined
    registry: Registry
    servers: Servers
    extensions: Extensions
    bundles: list[Problem]
    recorded: tuple[Problem, ...]
    checks_clients: bool = True  # a program that embeds OneTool is not asked about the machine's MCP clients


def check(subject: Subject, seconds: float | None = None, stored: Iterable[Problem] = ()) -> list[Problem]:
    """Return what is wrong, then what is in order. Databases are checked for `seconds` at most.

    `stored` is what was found about kept files before anything ran. It reads files, so call it in a thread.
    """
    read = subject.read
    found = [
        *places.problems(read),
        *read.errors,
        *read.loaded.problems,
        *stored,
        *kept.problems(read.loaded, seconds),
        *subject.bundles,
        *extensions.problems(subject.extensions, read.loaded),
        *servers.problems(subject.servers, read, subject.registry, subject.extensions),
        *settings.problems(subject.registry, read),
        *(assistants.problems(read.loaded.folders) if subject.checks_clients else ()),
        *subject.recorded,
    ]
    return in_order(found, read.loaded)


def in_order(problems: Iterable[Problem], loaded: Loaded) -> list[Problem]:
    """Return each problem once, the worst first, without consequences of others and without secrets."""
    redact = Redactor([*loaded.secret_values, *_secrets_of_servers(loaded)])
    causes: list[Location] = []
    found: dict[Problem, None] = {}
    for each in problems:
        place = each.location
        if place is not None and each.code in CONSEQUENCES:
            if any(PurePath(place.file).is_relative_to(cause.file) for cause in causes):
                continue
            causes.append(place)
        hint = each.hint
        if not hint and place is not None and place.line:
            hint = f"correct line {place.line} of {place.file}"
        found[replace(each, message=_shortened(redact(each.message)), hint=_shortened(redact(hint)))] = None
    return sorted(found, key=lambda each: LEVELS.index(each.level))


def _shortened(text: str) -> str:
    """For a person to read: what is wrong may be a value of any length."""
    return text if len(text) <= MAX_LENGTH else f"{text[:MAX_LENGTH]}… ({len(text):,} characters)"


def _secrets_of_servers(loaded: Loaded) -> Iterator[str]:
    """Those that stand in the environment, or in the file itself: servers repeat them in what they print."""
    for server in loaded.settings.servers.values():
        yield from secrets_in({"env": dict(server.env), "headers": dict(server.headers), "args": list(server.args)})
