"""Models of REST requests and responses.

They validate input, serialize output and define the OpenAPI schemas.

Names are snake_case here and camelCase in JSON. A response has every field, except `absent` fields
that are empty.
"""

from typing import Annotated, Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    RootModel,
    WithJsonSchema,
)

from onetool.admin.model import (
    ApiModel,
    absent,
)
from onetool.server.http.errors import STATUS
from onetool_child.data import FORMATS
from onetool_child.json_types import JsonObject


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
