"""State that all REST handlers share: the app, threads for disk access, and the person."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal, TypeVar, cast

import anyio
import anyio.to_thread
from pydantic import (
    ConfigDict,
    Field,
    RootModel,
    WithJsonSchema,
)
from starlette.requests import Request
from starlette.responses import Response

from onetool.admin.action import Person
from onetool.admin.model import (
    ApiModel,
    absent,
)
from onetool.app import OneTool
from onetool.runs.run_output import RunOutput
from onetool.server.http.auth import ACTOR, SCOPE, get_token_id
from onetool.server.http.errors import STATUS, json_response
from onetool.server.http.json_body import RequestBody
from onetool.util.context import ToolContext
from onetool_child.data import FORMATS
from onetool_child.json_types import JsonMapping, JsonObject

T = TypeVar("T")
READERS = 16
SMALL_BYTES = 16 << 10  # parsing a smaller body is faster than starting a thread


@dataclass(frozen=True, slots=True)
class Api:
    app: OneTool
    readers: anyio.CapacityLimiter = field(default_factory=partial(anyio.CapacityLimiter, READERS))

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work, limiter=self.readers)

    async def run_in_thread_if(self, needs_thread: bool, work: Callable[[], T]) -> T:
        return await self.run_in_thread(work) if needs_thread else work()

    async def read(self, body: RequestBody, parse: Callable[[JsonMapping], T]) -> T:
        """Parse the body, in a thread if it is large."""
        return await self.run_in_thread_if(len(body.content) > SMALL_BYTES, lambda: parse(body))

    async def parse(self, request: Request, parse: Callable[[JsonMapping], T]) -> T:
        """Read and parse the body of a request."""
        return await self.read(await RequestBody.from_request(request), parse)

    def to_json(self, model: "ApiModel | JsonObject") -> JsonObject:
        """Return the model as JSON with secrets redacted."""
        data: JsonObject = self.app.redact.redact_data(
            model if isinstance(model, dict) else model.as_json()
        )
        return data

    def respond(self, model: "ApiModel") -> Response:
        return json_response(self.to_json(model))


# --- the person of a request ----------------------------------------------------------------------


def get_person(request: Request) -> Person:
    """Return who sent the request, as the authentication has found out."""
    state = request.scope.get("state", {})
    if "person" in state:  # of the command line
        return cast("Person", state["person"])
    agent = state.get("agent")
    return Person(
        name=str(state.get(ACTOR) or ""),
        scope=str(state.get(SCOPE) or ""),
        agent=None if agent is None else str(agent),
        token_id=get_token_id(request.scope),
    )


def build_context(request: Request, app: OneTool, output: RunOutput | None = None) -> ToolContext:
    """Return the context for a call by this caller."""
    return get_person(request).open_context(app, output)


# --- models ---------------------------------------------------------------------------------------


class ErrorBody(ApiModel):
    code: Annotated[str, WithJsonSchema({"type": "string", "enum": sorted(STATUS)})]
    message: str
    details: JsonObject


class ErrorResponse(ApiModel):
    error: ErrorBody


# --- calls and runs -------------------------------------------------------------------------------


class Call(ApiModel):
    args: JsonObject = Field(
        default_factory=dict, description="Arguments, as defined by the tool's argSchema"
    )


class Success(ApiModel):
    ok: Literal[True] = True
    value: Any

    def as_json(self) -> JsonObject:
        """Return the value without copying it: it may be large."""
        return {"ok": True, "value": self.value}


class ToolFailure(ApiModel):
    """The error of a tool, with its fields."""

    model_config = ConfigDict(extra="allow")

    type: str
    message: str


class FailedCall(ApiModel):
    ok: Literal[False] = False
    error: ToolFailure


class CallOutcome(RootModel[Success | FailedCall]):
    """The outcome of a call: a value or an error."""


class RunRequest(ApiModel):
    command: Annotated[
        str, Field(strict=True, description="Python code, as for the tool `run` over MCP")
    ]
    format: Literal[FORMATS] | None = Field(  # type: ignore[valid-type]
        default=None, description="Output format, as set by __format__ in code"
    )


class SignIn(ApiModel):
    code: Annotated[
        str,
        Field(
            strict=True,
            max_length=4000,
            description="One-time code of `onetool ui` or of a sign-in",
        ),
    ]


class Session(ApiModel):
    csrf: str = Field(
        description="Value for the header X-OneTool-CSRF, which requests need besides the cookie"
    )
    actor: str = Field(description="Who has signed in")
    scope: str


class SignInOption(ApiModel):
    issuer: str
    path: str = Field(description="Path to open in a browser")


class SessionStatus(ApiModel):
    """The sender of the request; without a token or a session, `actor` and `scope` are null."""

    actor: str | None
    agent: str | None
    scope: str | None
    sign_in: list[SignInOption] = Field(description="Issuers with which people can sign in")


class Medium(ApiModel):
    handle: str
    mime_type: str
    data: Annotated[str, WithJsonSchema({"type": "string", "contentEncoding": "base64"})]


class RunAnswer(ApiModel):
    run_id: str | None
    blocks: list[str]
    is_error: bool
    error: str = absent()
    line: int | None = absent(None, "Line of the code on which it failed")
    media: list[Medium]
