"""The `http` pack: calling web addresses. Which hosts may be called is written in the configuration, by a person.

An answer is data whatever its status: a 404 is an answer too. What cannot be asked or read is an error.
"""

import base64
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlencode

from onetool._tool import tool
from onetool.context import ToolContext
from onetool.errors import ArgumentError
from onetool.net import HostRules, Net, Request, Response
from onetool.system import system_of

__all__ = ["get", "post"]

MAX_RESPONSE_BYTES: Final = 10_485_760  # where there is no configuration to say it
EVERYTHING: Final = HostRules(("*",), allow_private_addresses=True)
FORM: Final = "application/x-www-form-urlencoded"
TEXTS: Final = ("text/", "application/json", "application/xml", "application/javascript", FORM)
TEXT_ENDINGS: Final = ("+json", "+xml", "+yaml")
HARMLESS: Final = frozenset(
    {"accept", "accept-charset", "accept-encoding", "accept-language", "cache-control", "content-type", "user-agent"}
)


@tool(permissions=["network"], limits=("timeout_ms",))
async def get(
    url: str,
    context: ToolContext,
    headers: dict[str, str] | None = None,
    timeout_ms: int = 30000,
    follow_redirects: bool = True,
) -> dict[str, Any]:
    """Send an HTTP GET request. Gives status, headers, body (base64 if encoding says so), response_time_ms and url.

    Args:
        url: The address, with https:// or http://. Its host must be in http.allowedHosts of onetool.yaml.
        headers: Headers to send, by name.
        timeout_ms: After how many milliseconds to give up, redirects included.
        follow_redirects: Whether to go on to where a redirect leads. Headers of yours stay with the first origin.

    Example:
        http.get("https://api.github.com/users/octocat", headers={"Accept": "application/json"})
    """
    request = _request("GET", url, headers or {})
    return await _answer("http.get", request, context, timeout_ms, follow_redirects)


@tool(permissions=["network"], limits=("timeout_ms",))
async def post(  # noqa: PLR0917 - a tool's arguments, in the order of the document
    url: str,
    body: str | dict[str, Any] | list[Any],
    context: ToolContext,
    headers: dict[str, str] | None = None,
    content_type: str = "application/json",
    timeout_ms: int = 30000,
) -> dict[str, Any]:
    """Send an HTTP POST request. Gives the same as http.get.

    Args:
        url: The address, with https:// or http://. Its host must be in http.allowedHosts of onetool.yaml.
        body: A text is sent as it is; a dict or a list as JSON, or as a form if content_type says so.
        headers: Headers to send, by name.
        content_type: What the body is: application/json, application/x-www-form-urlencoded, or for a text any other.
        timeout_ms: After how many milliseconds to give up, redirects included.

    Example:
        http.post("https://api.example.com/items", body={"name": "lamp"}, headers={"Authorization": "Bearer …"})
    """
    given = headers or {}
    kind = next((value for name, value in given.items() if name.lower() == "content-type"), None)
    sent = given if kind is not None else {**given, "Content-Type": content_type}
    request = _request("POST", url, sent, _content(body, kind or content_type))
    return await _answer("http.post", request, context, timeout_ms)


# --- asking ----------------------------------------------------------------------------------------------------------


def _request(method: str, url: str, headers: Mapping[str, str], content: bytes | None = None) -> Request:
    """Any header but the most common may hold a key, so that it stays with the origin it was meant for."""
    own = frozenset(name.lower() for name in headers) - HARMLESS
    return Request(method, url, tuple(headers.items()), content, credentials=own)


async def _answer(
    name: str, request: Request, context: ToolContext, timeout_ms: int, follow_redirects: bool = True
) -> dict[str, Any]:
    if timeout_ms <= 0:
        raise ArgumentError(f"timeout_ms is {timeout_ms}: give a number of milliseconds above 0")
    async with _network(name, context) as (net, max_bytes, rules):
        response = await net.send(
            request, timeout=timeout_ms / 1000, max_bytes=max_bytes, follow_redirects=follow_redirects, rules=rules
        )
    headers: dict[str, list[str]] = {}
    for header, value in response.headers:
        headers.setdefault(header.lower(), []).append(value)
    body = {"body": response.text()}
    if not _is_text(response):
        body = {"body": base64.b64encode(response.body).decode("ascii"), "encoding": "base64"}
    return {
        "status": response.status,
        # Several of one name are in one line; cookies are a list, because their dates hold commas.
        "headers": {key: all_ if key == "set-cookie" else ", ".join(all_) for key, all_ in headers.items()},
        **body,
        "response_time_ms": round(response.seconds * 1000),
        "url": response.url,
    }


@asynccontextmanager
async def _network(name: str, context: ToolContext) -> AsyncIterator[tuple[Net, int, HostRules | None]]:
    """The product's network, which an agent's own list may narrow; a bus alone has only what the agent is given."""
    if context.system is not None:
        rules = _rules(name, context, EVERYTHING)
        system = system_of(context)
        yield system.net, system.settings.http.max_response_bytes, rules
        return
    net = Net(_rules(name, context, HostRules()))
    try:
        yield net, MAX_RESPONSE_BYTES, None
    finally:
        await net.close()


def _rules(name: str, context: ToolContext, default: HostRules) -> HostRules:
    """What `tool_config` of the agent says."""
    config = context.agent_config.get(name) or {}
    given = config.get("allowed_hosts", default.allowed_hosts) or ()
    hosts = given if isinstance(given, list | tuple) else (given,)
    is_private_allowed = config.get("allow_private_addresses", default.allow_private_addresses) is True
    setting = f"agents: {{{context.agent_id}: {{tool_config: {{{name}: {{allowed_hosts: [HOSTS]}}}}}}}}"
    return HostRules(tuple(map(str, hosts)), is_private_allowed, setting)


# --- bodies ----------------------------------------------------------------------------------------------------------


def _content(body: str | dict[str, Any] | list[Any], content_type: str) -> bytes:
    kind = content_type.partition(";")[0].strip().lower()
    try:
        if isinstance(body, str):
            return body.encode()
        if kind == FORM and isinstance(body, dict):
            fields = {name: value if isinstance(value, list) else [value] for name, value in body.items()}
            return urlencode(
                {name: [_word(name, item) for item in fields[name]] for name in fields}, doseq=True
            ).encode()
        if kind == "application/json" or kind.endswith("+json"):
            return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:  # half a character, not a number, or nested without end
        raise ArgumentError(f"the body cannot be sent as {content_type}: {error}") from None
    raise ArgumentError(
        f"a {type(body).__name__} cannot be sent as {kind}: give the body as a text, "
        f"or a dict and the content_type application/json or {FORM}"
    )


def _word(name: str, value: Any) -> str:
    if isinstance(value, dict | list):
        raise ArgumentError(f"a form has no place for what is in {name!r}: give a text, a number or a list of them")
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)


def _is_text(response: Response) -> bool:
    """What can be read is a text, whatever it is called; what is called one is, with signs for what cannot be read."""
    kind = (response.header("content-type") or "").partition(";")[0].strip().lower()
    if kind.startswith(TEXTS) or kind.endswith(TEXT_ENDINGS):
        return True
    try:
        return "\0" not in response.body.decode(response.charset)
    except UnicodeDecodeError:
        return False
