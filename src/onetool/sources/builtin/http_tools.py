"""The `http` pack: HTTP requests to the hosts that the settings allow.

A response with any status, such as 404, is a result. Requests that cannot be sent and responses
that cannot be read are errors.
"""

import base64
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

from onetool.core.tool import tool
from onetool.errors import ArgumentError, NetworkError
from onetool.net import HostRules, Net, Request, Response
from onetool.sources.system import get_system
from onetool.util.context import ToolContext
from onetool_child.json_types import JsonObject

__all__ = ["get", "post"]

MAX_RESPONSE_BYTES = 10_485_760  # without settings
ALL_HOSTS = HostRules(("*",), allow_private_addresses=True)
FORM = "application/x-www-form-urlencoded"
TEXT_TYPES = ("text/", "application/json", "application/xml", "application/javascript", FORM)
TEXT_ENDINGS = ("+json", "+xml", "+yaml")
COMMON_HEADERS = frozenset(
    {
        "accept",
        "accept-charset",
        "accept-encoding",
        "accept-language",
        "cache-control",
        "content-type",
        "user-agent",
    }
)


@tool(permissions=["network"], effects=["read", "external"], limits=("timeout_ms",))
async def get(
    url: str,
    context: ToolContext,
    headers: dict[str, str] | None = None,
    timeout_ms: int = 30000,
    follow_redirects: bool = True,
) -> JsonObject:
    """Send an HTTP GET request.

    Returns status, headers, body (base64 if `encoding` says so), response_time_ms and url.

    Args:
        url: The URL (https:// or http://). Its host must be listed in http.allowedHosts of onetool.yaml.
        headers: Request headers by name.
        timeout_ms: Timeout in milliseconds, including redirects.
        follow_redirects: Whether to follow redirects. Your headers are only sent to the first origin.

    Example:
        http.get("https://api.github.com/users/octocat", headers={"Accept": "application/json"})
    """
    request = _build_request("GET", url, headers or {})
    return await _send("http.get", request, context, timeout_ms, follow_redirects)


@tool(permissions=["network"], effects=["write", "external"], limits=("timeout_ms",))
async def post(  # noqa: PLR0917 - the order of arguments is specified
    url: str,
    body: str | JsonObject | list[Any],
    context: ToolContext,
    headers: dict[str, str] | None = None,
    content_type: str = "application/json",
    timeout_ms: int = 30000,
) -> JsonObject:
    """Send an HTTP POST request. Returns the same as http.get.

    Args:
        url: The URL (https:// or http://). Its host must be listed in http.allowedHosts of onetool.yaml.
        body: A string is sent unchanged; a dict or list as JSON, or as a form if content_type says so.
        headers: Request headers by name.
        content_type: application/json, application/x-www-form-urlencoded, or any other for a string.
        timeout_ms: Timeout in milliseconds, including redirects.

    Example:
        http.post("https://api.example.com/items", body={"name": "lamp"}, headers={"Authorization": "Bearer …"})
    """
    headers = headers or {}
    kind = next((value for name, value in headers.items() if name.lower() == "content-type"), None)
    headers = headers if kind is not None else {**headers, "Content-Type": content_type}
    request = _build_request("POST", url, headers, _encode_body(body, kind or content_type))
    return await _send("http.post", request, context, timeout_ms)


# --- requests -------------------------------------------------------------------------------------


def _build_request(
    method: str, url: str, headers: Mapping[str, str], content: bytes | None = None
) -> Request:
    """Build a request.

    All headers except the most common ones may hold credentials and stay with their origin.
    """
    credentials = frozenset(name.lower() for name in headers) - COMMON_HEADERS
    return Request(method, url, tuple(headers.items()), content, credentials=credentials)


async def _send(
    name: str,
    request: Request,
    context: ToolContext,
    timeout_ms: int,
    follow_redirects: bool = True,
) -> JsonObject:
    if timeout_ms <= 0:
        raise ArgumentError(f"invalid timeout_ms {timeout_ms} (expected 1 or more)")
    async with _open_client(name, context) as (net, max_bytes, rules):
        response = await net.send(
            request,
            timeout=timeout_ms / 1000,
            max_bytes=max_bytes,
            follow_redirects=follow_redirects,
            rules=rules,
        )
    headers: dict[str, list[str]] = {}
    for header, value in response.headers:
        headers.setdefault(header.lower(), []).append(value)
    body = {"body": response.text()}
    if not _is_text(response):
        body = {"body": base64.b64encode(response.body).decode("ascii"), "encoding": "base64"}
    return {
        "status": response.status,
        # Repeated headers are joined by commas, except cookies, whose dates contain commas.
        "headers": {
            key: all_ if key == "set-cookie" else ", ".join(all_) for key, all_ in headers.items()
        },
        **body,
        "response_time_ms": round(response.seconds * 1000),
        "url": response.url,
    }


@asynccontextmanager
async def _open_client(
    name: str, context: ToolContext
) -> AsyncIterator[tuple[Net, int, tuple[HostRules, ...]]]:
    """Yield the HTTP client for the agent's hosts; a bus without a system has only those."""
    if context.system is not None:
        rules = _host_rules(name, context, ALL_HOSTS)
        system = get_system(context)
        yield (
            system.net,
            system.settings.http.max_response_bytes,
            (rules, *HostRules.for_agent(context)),
        )
        return
    net = Net(_host_rules(name, context, HostRules()))
    try:
        yield net, MAX_RESPONSE_BYTES, HostRules.for_agent(context)
    except NetworkError as error:
        error.fields.pop("hint", None)  # it names a setting
        raise
    finally:
        await net.close()


def _host_rules(name: str, context: ToolContext, default: HostRules) -> HostRules:
    """Return the host rules in the agent's `tool_config`."""
    config = context.agent_config.get(name) or {}
    configured = config.get("allowed_hosts", default.allowed_hosts) or ()
    hosts = configured if isinstance(configured, list | tuple) else (configured,)
    is_private_allowed = (
        config.get("allow_private_addresses", default.allow_private_addresses) is True
    )
    advice = _explain(name, context, "allowed_hosts: [HOSTS]")
    private_advice = _explain(name, context, "allow_private_addresses: true")
    return HostRules(tuple(map(str, hosts)), is_private_allowed, advice, private_advice)


def _explain(name: str, context: ToolContext, entry: str) -> str:
    """Return how to change the agent's `tool_config`."""
    setting = f"agents: {{{context.agent_id}: {{tool_config: {{{name}: {{{entry}}}}}}}}}"
    return context.explain_setting(setting, f"agent_config with {name}: {{{entry}}}")


# --- bodies ---------------------------------------------------------------------------------------


def _encode_body(body: str | JsonObject | list[Any], content_type: str) -> bytes:
    kind = content_type.partition(";")[0].strip().lower()
    try:
        if isinstance(body, str):
            return body.encode()
        if kind == FORM and isinstance(body, dict):
            fields = {
                name: value if isinstance(value, list) else [value] for name, value in body.items()
            }
            return urlencode(
                {name: [_encode_field(name, item) for item in fields[name]] for name in fields},
                doseq=True,
            ).encode()
        if kind == "application/json" or kind.endswith("+json"):
            return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:  # an unpaired surrogate, NaN, or a cycle
        raise ArgumentError(f"cannot send the body as {content_type}: {error}") from None
    raise ArgumentError(
        f"cannot send a {type(body).__name__} as {kind}: pass the body as a string, "
        f"or a dict with content_type application/json or {FORM}"
    )


def _encode_field(name: str, value: Any) -> str:
    if isinstance(value, dict | list):
        raise ArgumentError(
            f"invalid form field {name!r}: expected a string, a number or a list of them"
        )
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)


def _is_text(response: Response) -> bool:
    """Return whether the body is text: its content type says so, or it decodes without errors."""
    kind = (response.header("content-type") or "").partition(";")[0].strip().lower()
    if kind.startswith(TEXT_TYPES) or kind.endswith(TEXT_ENDINGS):
        return True
    try:
        return "\0" not in response.body.decode(response.charset)
    except UnicodeDecodeError:
        return False
