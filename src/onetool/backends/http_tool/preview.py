"""The request of a call as it would be sent. Secrets are not looked up: their references are shown instead."""

import re
import secrets
from typing import Any, NamedTuple

from onetool.backends.http_tool import credentials
from onetool.backends.http_tool.impl import HttpImpl, HttpStep
from onetool.backends.http_tool.placeholders import Placeholder, UploadedFile, Values
from onetool.core.foreign_schema import ForeignSchema, check_in_process
from onetool.util.redact import REDACTED
from onetool_child.json_types import JsonMapping, JsonObject

MAX_BODY_CHARS = 20_000
HIDDEN = "hidden"  # instead of a literal credential


class RequestPreview(NamedTuple):
    step: str
    method: str
    url: str
    headers: list[tuple[str, str]]
    body: str | None


def preview_request(impl: JsonObject, schema: JsonObject, args: JsonMapping) -> RequestPreview:
    """Return the first request of a call. Later ones depend on its response.

    Raise ArgumentError if the arguments are invalid, and ValidationError if the implementation is.
    """
    arguments = ForeignSchema.from_json(schema)
    check = check_in_process if arguments.is_costly(args, is_converted=True) else ForeignSchema.check
    checked = {**arguments.defaults, **check(arguments, dict(args))}
    part = HttpImpl.model_validate(credentials.replace(impl, lambda _location, _value: HIDDEN)).requests[0]
    nonce = secrets.token_hex(8)
    values = Values(
        checked,
        arguments.required,
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
    body = None if request.content is None else show(request.content.decode("utf-8", "replace"))[:MAX_BODY_CHARS]
    step = part.name if isinstance(part, HttpStep) else ""
    return RequestPreview(step, request.method, show(request.url), headers, body)


def _describe_file(value: Any, _placeholder: Placeholder) -> UploadedFile:
    name = value if isinstance(value, str) else ""
    return UploadedFile(f"(content of {name or 'the file'})".encode("utf-8", "replace"), name.rpartition("/")[2])
