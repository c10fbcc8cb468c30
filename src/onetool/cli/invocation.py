"""A command that is executed: its application, its options, its output, and its person.

A command runs in the shared server (`onetool.cli.remote`) or in this process: `run_here` opens
OneTool with the settings of this machine, on one event loop. Ctrl+C and SIGTERM cancel the work, so
that everything is closed however it ends.
"""

import os
from argparse import Namespace
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from onetool.cli.exit_status import run_cancellable
from onetool.cli.terminal import CommandOutput
from onetool.errors import ToolError
from onetool.util.invisible import escape_invisible

if TYPE_CHECKING:
    from onetool.admin.action import Action, Person
    from onetool.admin.settings_edits import EditQuery, EditResult
    from onetool.app import OneTool
    from onetool.cli.command import Command
    from onetool.util.context import Caller

P = ParamSpec("P")
T = TypeVar("T")
MAX_PAGE_SIZE = 200
Work = Callable[["OneTool"], Awaitable[T]]
# ONETOOL_STORE chooses the runs as well as the tokens, so it approves nothing in another store.
GUARDED_VARIABLES = frozenset(
    {"ONETOOL_CONFIG", "ONETOOL_DEBUG", "ONETOOL_KEY", "ONETOOL_STORE", "ONETOOL_TRUST"}
)


@dataclass(frozen=True, slots=True)
class Invocation:
    """A command that is executed."""

    app: "OneTool"
    options: Namespace
    output: CommandOutput

    @property
    def person(self) -> "Person":
        """The person who types commands on this machine: the owner."""
        return identify_owner()

    async def do(self, action: "Action[P, T]", *args: P.args, **options: P.kwargs) -> T:
        """Do something that REST can do, too, as the owner."""
        return await action(self.app, self.person, *args, **options)

    def show(self, data: object, lines: Iterable[str], empty: str = "") -> None:
        """Print data as JSON with `--json`, else as lines; without any, print `empty`."""
        if self.options.json:
            self.output.write_json(self.app.redact.redact_data(data))
            return
        text = "".join(f"{line}\n" for line in lines) or f"{empty}\n"
        self.output.write(escape_invisible(self.app.redact(text)))

    async def list_all(
        self, action: "Action[Any, Any]", query: Any, limit: int | None = None, **options: Any
    ) -> list[Any]:
        """Return the items of a list that has pages, at most `limit`."""
        items: list[Any] = []
        token: str | None = ""
        while token is not None and (limit is None or len(items) < limit):
            size = MAX_PAGE_SIZE if limit is None else min(MAX_PAGE_SIZE, limit - len(items))
            page = await self.do(
                action, query.model_copy(update={"page_size": size, "page_token": token}), **options
            )
            items += next(value for _, value in page if isinstance(value, list))
            token = page.next_page_token or None
        return items

    def write_json_lines(self, items: Iterable[object]) -> None:
        from onetool_child.data import text

        self.output.write("".join(f"{text(self.app.redact.redact_data(item))}\n" for item in items))

    def check_settings(self) -> None:
        """Raise if the settings are invalid, and print notices to standard error."""
        check_settings(self.app, self.output)

    # --- changes of settings ----------------------------------------------------------------------

    @property
    def edit_query(self) -> "EditQuery":
        from onetool.admin.settings_edits import EditQuery

        return EditQuery.model_construct(dry_run=self.options.dry_run)

    @property
    def directory(self) -> Path | None:
        """The directory of new entries; None for the usual one."""
        return self.app.directories.user if self.options.user else None

    def show_edit(self, edited: "EditResult", **more: Any) -> None:
        """Print the difference of an edit, and when it takes effect."""
        notes = [
            *edited.notes,
            *(f"Missing secret: onetool secret set {name}" for name in edited.missing),
        ]
        ending = "Nothing was written (--dry-run)." if edited.difference else "Nothing to change."
        if edited.id is not None:
            undo = f" Undo it with `onetool settings undo {edited.id}`." if edited.can_undo else ""
            ending = f"{self.app.state.settings.when_effective}{undo}"
        data = {"id": edited.id, "difference": edited.difference, "notes": notes, **more}
        self.show(data, [*filter(None, [edited.difference, *notes]), ending])


# --- where a command runs -------------------------------------------------------------------------


async def execute(command: "Command", invocation: Invocation) -> int:
    """Execute a command, or the action in its options, and return the exit status."""
    if command.checks_settings:
        invocation.check_settings()
    work = getattr(invocation.options, "work", None) or command.execute
    assert work is not None
    return await work(invocation) or 0


def run_here(command: "Command", options: Namespace) -> int:
    """Execute a command in this process and print to its standard streams."""

    async def execute_with(app: "OneTool") -> int:
        return await execute(command, Invocation(app, options, CommandOutput()))

    return run_with_app(options, execute_with, is_guarded=command.is_guarded)


def run_with_app(options: Namespace, work: Work[T], *, is_guarded: bool = False) -> T:
    """Run a coroutine function with OneTool, even if the settings are invalid."""

    async def open_and_work() -> T:
        async with open_app(options, is_guarded=is_guarded) as app:
            return await work(app)

    return run_cancellable(open_and_work)


@asynccontextmanager
async def open_app(options: Namespace, *, is_guarded: bool = False) -> "AsyncIterator[OneTool]":
    """Open OneTool, even if the settings are invalid.

    Guarded, it is for a decision of a person. The caller sets the environment of the command:
    settings there must not decide who may approve.
    """
    from onetool.app import OneTool

    variables = dict(os.environ)
    if is_guarded:
        for name in variables.keys() - GUARDED_VARIABLES:
            if name.startswith("ONETOOL_"):
                del variables[name]
    async with OneTool.from_files(options.config, environment=variables) as app:
        yield app


def check_settings(app: "OneTool", output: CommandOutput | None = None) -> None:
    """Raise if the settings are invalid, and print notices to standard error."""
    if app.config_error is not None:
        raise ToolError(f"invalid settings:\n{app.config_error}")
    (output or CommandOutput()).notify(app.problems)


# --- the person -----------------------------------------------------------------------------------


def identify_owner() -> "Person":
    """Return the person who types commands on this machine: the owner."""
    from onetool.admin.action import Person

    return Person(user_name(), "owner", transport="cli")


def make_caller(agent: str) -> "Caller":
    """Return the owner as this agent, in a new session: no command depends on another."""
    from onetool.util.context import Caller

    return Caller(agent, is_owner=True, client="cli", session=os.urandom(8).hex())


def user_name() -> str:
    """Return the name of the user, for the audit log."""
    import getpass

    try:
        return f"user {getpass.getuser()}"
    except (KeyError, OSError):  # a user id without a name
        return "user"
