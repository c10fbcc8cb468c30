"""The declaration of what people can do: a function with what it needs, and its REST route.

`Person` is who does it, with the rights of an owner, a token or an agent.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from onetool.admin.model import AdminError
from onetool.app import OneTool
from onetool.core.agents import DEFAULT
from onetool.core.audit import Facts
from onetool.errors import ToolError
from onetool.runs.run_output import RunOutput
from onetool.state.document_kinds import EVERYTHING
from onetool.util.context import Caller, Permission, ToolContext
from onetool.util.token_ids import OWNER, includes_scope

P = ParamSpec("P")
T = TypeVar("T")
READ = "read"  # instead of a scope: valid settings
WRITE = "write"  # instead of a scope: valid settings, the permission of the agent, and its policy


@dataclass(frozen=True, slots=True)
class Person:
    """A person or program. `scope` is that of its token or session; without one, it is empty.

    `agent` is None for the owner and for requests of the local machine without a token.
    """

    name: str = ""
    scope: str = ""
    agent: str | None = None
    token_id: str = ""
    transport: str = "http"

    def has_scope(self, needed: str) -> bool:
        return includes_scope(self.scope, needed)

    def require(self, needed: str, purpose: str) -> str:
        """Return the name for the audit log.

        Raise unless the person has a token or a session of this scope.
        """
        if not self.has_scope(needed):
            details = {"required": needed, "scope": self.scope or None}
            message = f"{purpose} needs a token of scope '{needed}' or the admin UI, signed in"
            raise AdminError("forbidden", message, details)
        return self.name

    @property
    def agent_name(self) -> str:
        """The agent of calls; the owner uses the default agent."""
        return DEFAULT if self.agent is None else self.agent

    @property
    def visible_agent(self) -> str | None:
        """The agent whose runs, activity and statistics the person may see; None sees all."""
        return None if self.has_scope("approve") else self.agent

    @property
    def sees_all(self) -> bool:
        return self.visible_agent is None

    @property
    def visible_runs(self) -> tuple[str | None, str | None]:
        """The agent and the token ID whose runs the person may see; None sees all.

        A token of scope `use` sees its own runs, not those of other tokens of its agent, or of an
        earlier one of its name.
        """
        agent = self.visible_agent
        return agent, None if agent is None else self.token_id

    @property
    def caller(self) -> Caller:
        """The caller of tools."""
        return Caller(
            self.agent_name,
            is_owner=self.sees_all,
            token_id=self.token_id,
            actor=self.name,
            client=self.transport,
        )

    def open_context(self, app: OneTool, output: RunOutput | None = None) -> ToolContext:
        """Return the context for a call by this person.

        No list of tools limits the owner at the command line.
        """
        try:
            context = app.runs.open_context(self.caller, output)
        except ToolError as error:  # the token's agent was removed from the settings
            raise AdminError("permission_denied", error.message) from None
        return replace(context, tools=None) if self.transport == "cli" else context

    def require_enabling(self, app: OneTool, keys: Iterable[str]) -> None:
        """Raise if an owner disabled one of these names or IDs, and the person may not enable it."""
        marks = app.state.disabled_tools.list_owner_marks()
        if not (self.has_scope("admin") or marks.isdisjoint({EVERYTHING, *keys})):
            hint = (
                "an owner can enable it in the admin UI, or with `onetool tools --enable` or"
                " `onetool bundles enable`; others can store it as disabled"
            )
            raise AdminError("forbidden", "an owner disabled it", {"required": "admin"}, hint=hint)

    def mark_disabled(self, app: OneTool, keys: Iterable[str], *, on: bool) -> None:
        """Record what an owner disabled or enabled. Blocks on the disk."""
        if self.has_scope("admin"):
            app.state.disabled_tools.mark(keys, on=on)

    def require_change(self, app: OneTool) -> None:
        """Raise unless permissions and policy let the person change or enable tools."""
        if self.agent is not None and not self.has_scope(OWNER):
            _check_agent(app, self.agent)

    def changing(
        self,
        app: OneTool,
        action: str,
        names: Iterable[str],
        *,
        frees_space: bool = False,
        difference: str = "",
    ) -> AbstractAsyncContextManager[Facts]:
        """Record a change in the audit log while the block runs.

        The block adds to the facts what it changed.
        """
        actor = self.name or ("owner" if self.agent is None else f"agent {self.agent}")
        agent = "" if self.has_scope("admin") else self.agent_name
        return app.audit.changing(
            action,
            names,
            actor=actor,
            transport=self.transport,
            agent=agent,
            frees_space=frees_space,
            difference=difference,
        )


def check_settings(app: OneTool) -> None:
    """Raise if the settings are invalid: data would be stored in the wrong place."""
    if app.config_error is not None:
        raise AdminError("busy", f"invalid configuration; fix it to continue:\n{app.config_error}")


def _check_agent(app: OneTool, name: str) -> None:
    """Raise if an agent may not make changes."""
    try:
        context = app.runs.open_context(Caller(name))
    except ToolError as error:  # the token's agent was removed from the settings
        raise AdminError("permission_denied", error.message) from None
    if Permission.WRITE not in context.permissions:
        line = context.explain_permissions(frozenset({Permission.WRITE}))
        message = f"agent '{name}' may not make changes: it lacks the permission 'write'"
        details = {
            "required": [str(Permission.WRITE)],
            "granted": sorted(map(str, context.permissions)),
        }
        raise AdminError(
            "permission_denied", message, details, hint=f"add this to onetool.yaml: {line}"
        )
    policy, _ = app.agents.get_policy(name)
    if reason := policy.explain_denied_changes():
        message = f"agent '{name}' may not make changes: {reason}"
        raise AdminError(
            "permission_denied", message, {"reason": reason}, hint="use a token of scope 'owner'"
        )


@dataclass(frozen=True, kw_only=True)
class Action(Generic[P, T]):
    """A function that a person can call.

    `needs` is a scope, `read`, `write` or nothing; `purpose` explains it. `command` decides about
    what models want: it asks the person at the terminal.

    The parameters of the route are those of the path, a query, a body and a precondition; other
    parameters of the function are for commands. `route` is a method and paths, and `response`
    describes the response. `errors` are error codes beyond those that follow from the rest. With
    `has_etag`, the response has an ETag, and no body if the client has it already. With
    `sends_etag`, the response to a write has the ETag of what was changed. `created` describes the
    response with status 201 of a function that returns whether the thing is new. With
    `is_redacted`, secrets are removed from the response. `watches` is a kind of state: a client may
    ask for events, with the response at first and after each change of that state.
    """

    function: Callable[Concatenate[OneTool, Person, P], Awaitable[T]]
    route: str
    response: str = ""
    needs: str = ""
    purpose: str = ""
    command: str = ""
    status: int = 200
    errors: Sequence[str] = ()
    has_etag: bool = False
    sends_etag: bool = False
    created: str = ""
    is_redacted: bool = True
    watches: str = ""

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def summary(self) -> str:
        """The first line of the docstring, without the period."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0].removesuffix(".")

    def authorize(self, app: OneTool, person: Person) -> None:
        """Raise if the person may not do this.

        It is the only place that decides this for REST and commands.
        """
        if self.needs == WRITE:
            person.require_change(app)
        if self.needs in {READ, WRITE}:
            check_settings(app)
        elif self.needs:
            person.require(self.needs, self.purpose)

    async def __call__(self, app: OneTool, person: Person, *args: P.args, **options: P.kwargs) -> T:
        self.authorize(app, person)
        return await self.function(app, person, *args, **options)


def action(
    route: str = "", response: str = "", **options: Any
) -> Callable[[Callable[Concatenate[OneTool, Person, P], Awaitable[T]]], Action[P, T]]:
    """Declare a function that people can call, with its route and fields of `Action` by name.

    Without a route, it is for commands.
    """

    def declare(function: Callable[Concatenate[OneTool, Person, P], Awaitable[T]]) -> Action[P, T]:
        return Action(function=function, route=route, response=response, **options)

    return declare
