"""The declaration of what people can do: a function with what it needs, and its REST route."""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from onetool.admin.person import Person, check_settings
from onetool.app import OneTool

P = ParamSpec("P")
T = TypeVar("T")
READ = "read"  # instead of a scope: valid settings
WRITE = "write"  # instead of a scope: valid settings, the permission of the agent, and its policy


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
    route: str, response: str = "", needs: str = "", purpose: str = "", **options: Any
) -> Callable[[Callable[Concatenate[OneTool, Person, P], Awaitable[T]]], Action[P, T]]:
    """Declare a function that people can call."""

    def declare(function: Callable[Concatenate[OneTool, Person, P], Awaitable[T]]) -> Action[P, T]:
        return Action(
            function=function,
            route=route,
            response=response,
            needs=needs,
            purpose=purpose,
            **options,
        )

    return declare
