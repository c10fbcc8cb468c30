"""`POST /api/request-preview`: the request that an HTTP tool would send, stored or not, without
sending it.

Secrets are not looked up: their references are shown instead.
"""

import re
import secrets
from typing import Any

from anyio.to_thread import run_sync as run_in_thread
from pydantic import Field, ValidationError

from onetool.admin.action import WRITE, Person, action
from onetool.admin.model import AdminError, ApiModel, absent
from onetool.app import OneTool
from onetool.core.foreign_schema import ForeignSchema, check_in_process
from onetool.core.schema import ANY_OBJECT
from onetool.errors import ArgumentError
from onetool.sources.bundles.model import to_bundle_error
from onetool.sources.http import credentials
from onetool.sources.http.definition import HttpImpl, HttpStep
from onetool.sources.http.placeholders import Placeholder, UploadedFile, Values
from onetool.util.redact import REDACTED
from onetool_child.json_types import JsonObject

MAX_BODY_CHARS = 20_000
HIDDEN = "hidden"  # instead of a literal credential


class RequestView(ApiModel):
    """A request as it would be sent, with secrets redacted."""

    step: str = absent(description="Name of the first step, if the tool has steps")
    method: str
    url: str
    headers: list[tuple[str, str]]
    body: str | None = None


class PreviewBody(ApiModel):
    """A call of an HTTP tool, which does not have to be stored."""

    http_impl: JsonObject
    arg_schema: JsonObject = Field(default_factory=lambda: dict(ANY_OBJECT))
    args: JsonObject = Field(default_factory=dict)


@action("POST /api/request-preview", "The first request of the call", needs=WRITE)
async def preview_request(_app: OneTool, _person: Person, call: PreviewBody) -> RequestView:
    """Show the request that an HTTP tool would send, without sending it."""
    return await run_in_thread(_build, call)


def _build(body: PreviewBody) -> RequestView:
    """Return the first request of the call. Later ones depend on its response."""
    try:
        arguments = ForeignSchema.from_json(body.arg_schema)
        args = _check_arguments(arguments, body.args)
        impl = HttpImpl.model_validate(
            credentials.replace(body.http_impl, lambda _location, _value: HIDDEN)
        )
        return _fill_request(impl, args, arguments.required)
    except ValidationError as error:
        raise to_bundle_error(error) from None
    except ArgumentError as error:
        raise AdminError("invalid", error.message, dict(error.fields)) from None


def _check_arguments(schema: ForeignSchema, args: JsonObject) -> JsonObject:
    check = check_in_process if schema.is_costly(args, is_converted=True) else ForeignSchema.check
    return {**schema.defaults, **check(schema, dict(args))}


def _fill_request(impl: HttpImpl, args: JsonObject, required: frozenset[str]) -> RequestView:
    part = impl.requests[0]
    nonce = secrets.token_hex(8)
    values = Values(
        args,
        required,
        lambda name: f"S{nonce}{name}E{nonce}",  # letters and digits only: never encoded
        steps={} if isinstance(part, HttpStep) else None,
        read_file=_describe_file,
    )
    request = part.request.fill(values)

    def show(text: str) -> str:
        return re.sub(f"S{nonce}(.*?)E{nonce}", r"${secret:\1}", text)

    def show_header(name: str, text: str) -> str:
        is_opaque = name.lower() in request.credentials and nonce not in text  # such as base64
        return REDACTED if is_opaque else show(text)

    headers = [(name, show_header(name, text)) for name, text in request.headers]
    body = (
        None
        if request.content is None
        else show(request.content.decode("utf-8", "replace"))[:MAX_BODY_CHARS]
    )
    step = part.name if isinstance(part, HttpStep) else ""
    return RequestView(
        step=step, method=request.method, url=show(request.url), headers=headers, body=body
    )


def _describe_file(value: Any, _placeholder: Placeholder) -> UploadedFile:
    name = value if isinstance(value, str) else ""
    return UploadedFile(
        f"(content of {name or 'the file'})".encode("utf-8", "replace"), name.rpartition("/")[2]
    )
