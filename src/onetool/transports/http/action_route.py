"""REST routes of actions: the models of the function are those of the request and the response."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from onetool.admin.action import Action
from onetool.admin.model import ApiModel, Query, camel_case
from onetool.admin.precondition import Precondition
from onetool.transports.http import identity
from onetool.transports.http.api.common import Api
from onetool.transports.http.responses import conditional_response, json_response, read_precondition
from onetool.transports.http.routing import Operation, ResponseSpec, read_query
from onetool_child.json_types import JsonObject


@dataclass(frozen=True, slots=True)
class ActionRoute:
    """The route of an action, whose parameters are those of the path, a query, a body and a precondition.

    `description` is that of the response. `errors` are error codes beyond those that every operation has. With
    `has_etag`, the response has an ETag, and no body if the client has it already.
    """

    method: str
    path: str
    action: Action[..., Any]
    description: str
    status: int = 200
    errors: Sequence[str] = ()
    has_etag: bool = False

    def make_operation(self, api: Api) -> Operation:
        signature = inspect.signature(self.action.function)
        inputs = {name: parameter.annotation for name, parameter in list(signature.parameters.items())[2:]}
        models = [kind for kind in inputs.values() if issubclass(kind, ApiModel)]
        return Operation(
            self.method,
            self.path,
            partial(self._handle, api, inputs),
            self.action.summary,
            {self.status: ResponseSpec(self.description, signature.return_annotation)},
            query=next((model for model in models if issubclass(model, Query)), None),
            body=next((model for model in models if not issubclass(model, Query)), None),
            errors=self.errors,
            has_etag=self.has_etag,
            is_conditional=Precondition in inputs.values(),
        )

    async def _handle(self, api: Api, inputs: Mapping[str, Any], request: Request) -> Response:
        person = identity.get_person(request)
        self.action.authorize(api.app, person)  # before the input is read
        arguments = {name: await _read_input(api, request, name, kind) for name, kind in inputs.items()}
        answer = await self.action(api.app, person, **arguments)
        return await api.run_in_thread(lambda: self._respond(api.to_json(answer), request))

    def _respond(self, data: JsonObject, request: Request) -> Response:
        return conditional_response(data, request.headers) if self.has_etag else json_response(data, self.status)


async def _read_input(api: Api, request: Request, name: str, kind: Any) -> Any:
    if kind is str:
        return request.path_params[camel_case(name)]
    if kind is Precondition:
        return read_precondition(request.headers)
    if issubclass(kind, Query):
        return read_query(kind, request)
    return await api.parse(request, kind.parse)
