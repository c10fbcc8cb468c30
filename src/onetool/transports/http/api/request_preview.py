"""`POST /api/request-preview`: the request that an HTTP tool would send, stored or not, without sending it."""

from collections.abc import Iterator

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from onetool.backends.http_tool.preview import preview_request
from onetool.bundles.model import to_bundle_error
from onetool.errors import ArgumentError
from onetool.transports.http import identity
from onetool.transports.http.api.common import Api
from onetool.transports.http.errors import ApiError
from onetool.transports.http.models import PreviewBody, RequestView
from onetool.transports.http.routing import Operation, ResponseSpec

PATH = "/api/request-preview"


class PreviewHandlers:
    def __init__(self, api: Api) -> None:
        self._api = api

    def operations(self) -> Iterator[Operation]:
        result = {200: ResponseSpec("The first request of the call", RequestView)}
        summary = "Show the request that an HTTP tool would send, without sending it"
        yield Operation("POST", PATH, self.preview, summary, result, body=PreviewBody, errors=("permission_denied",))

    async def preview(self, request: Request) -> Response:
        identity.get_person(request).require_change(self._api.app)
        body = await self._api.parse(request, PreviewBody.parse)
        return await self._api.run_in_thread(lambda: self._api.respond(_build(body)))


def _build(body: PreviewBody) -> RequestView:
    try:
        found = preview_request(body.http_impl, body.arg_schema, body.args)
    except ValidationError as error:
        raise to_bundle_error(error) from None
    except ArgumentError as error:
        raise ApiError("invalid", error.message, dict(error.fields)) from None
    return RequestView(**found._asdict())
