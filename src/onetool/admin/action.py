"""The declaration of what people can do: a function with what it needs."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Concatenate, Generic, ParamSpec, TypeVar

from onetool.admin.person import Person, check_settings
from onetool.app import OneTool

P = ParamSpec("P")
T = TypeVar("T")
READ = "read"  # instead of a scope: valid settings
WRITE = "write"  # instead of a scope: valid settings, the permission of the agent, and its policy


@dataclass(frozen=True)
class Action(Generic[P, T]):
    """A function that a person can call. `needs` is a scope, `read`, `write` or nothing; `purpose` explains it."""

    function: Callable[Concatenate[OneTool, Person, P], Awaitable[T]]
    needs: str = ""
    purpose: str = ""

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def summary(self) -> str:
        """The first line of the docstring, without the period."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0].removesuffix(".")

    def authorize(self, app: OneTool, person: Person) -> None:
        """Raise if the person may not do this. It is the only place that decides this for REST and commands."""
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
    needs: str = "", purpose: str = ""
) -> Callable[[Callable[Concatenate[OneTool, Person, P], Awaitable[T]]], Action[P, T]]:
    """Declare a function that people can call."""
    return lambda function: Action(function, needs, purpose)
