"""The REST routes of actions: method, path and response of each.

A route has no code of its own: the parameters of the action are those of the path, the query and the body.
"""

from onetool.admin import tokens
from onetool.transports.http.action_route import ActionRoute

ROUTES = (
    ActionRoute("GET", "/api/tokens", tokens.list_tokens, "Tokens"),
    ActionRoute(
        *("POST", "/api/tokens", tokens.create_token, "The token, which is not shown again"),
        status=201,
        errors=("duplicate",),
    ),
    ActionRoute("DELETE", "/api/tokens/{name}", tokens.revoke_token, "The token was revoked", errors=("not_found",)),
)
