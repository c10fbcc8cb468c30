"""REST routes of actions: the models of the function are those of the request and the response."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from onetool.admin.action import Action
from onetool.admin.model import Query, camel_case
from onetool.transports.http import identity
from onetool.transports.http.api.common import Api
from onetool.transports.http.responses import json_response
from onetool.transports.http.routing import Operation, ResponseSpec, read_query


@dataclass(frozen=True, slots=True)
class ActionRoute:
    """The route of an action. Its parameters are those of the path, a model of the query, and a model of the body.

    `description` is that of the response. `errors` are error codes beyond those that every operation has.
    """

    method: str
    path: str
    action: Action[..., Any]
    description: str
    status: int = 200
    errors: Sequence[str] = ()

    def make_operation(self, api: Api) -> Operation:
        signature = inspect.signature(self.action.function)
        inputs = {name: parameter.annotation for name, parameter in list(signature.parameters.items())[2:]}
        models = [kind for kind in inputs.values() if kind is not str]
        return Operation(
            self.method,
            self.path,
            partial(self._handle, api, inputs),
            self.action.summary,
            {self.status: ResponseSpec(self.description, signature.return_annotation)},
            query=next((model for model in models if issubclass(model, Query)), None),
            body=next((model for model in models if not issubclass(model, Query)), None),
            errors=self.errors,
        )

    async def _handle(self, api: Api, inputs: Mapping[str, Any], request: Request) -> Response:
        person = identity.get_person(request)
        self.action.authorize(api.app, person)  # before the input is read
        arguments = {name: await _read_input(api, request, name, kind) for name, kind in inputs.items()}
        answer = await self.action(api.app, person, **arguments)
        return await api.run_in_thread(lambda: json_response(api.to_json(answer), self.status))


async def _read_input(api: Api, request: Request, name: str, kind: Any) -> Any:
    if kind is str:
        return request.path_params[camel_case(name)]
    if issubclass(kind, Query):
        return read_query(kind, request)
    return await api.parse(request, kind.parse)
