"""HMAC signatures of requests, by fixed recipes.

Each recipe is tested against the example that its vendor publishes.

- `github-sha256` signs the body: `X-Hub-Signature-256`.
- `slack` signs a timestamp and the body: `X-Slack-Signature` and `X-Slack-Request-Timestamp`.
- `standard-webhooks` signs an id, a timestamp and the body: `webhook-id`, `webhook-timestamp`,
  `webhook-signature`.
- `aws-sigv4` signs the method, the URL, headers and the body with Signature Version 4:
  `Authorization`.

Signatures are only sent to the origin of the request.
"""

import base64
import binascii
import dataclasses
import hashlib
import hmac
import secrets as random_tokens
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from onetool.errors import ToolError
from onetool.net.client import FORBIDDEN_IN_VALUES, Request
from onetool.net.hosts import parse_target
from onetool.sources.http.placeholders import Parts, Values

_WEBHOOK_KEY_PREFIX = "whsec_"
_WEBHOOK_ID = "webhook-id"
_AWS_ALGORITHM = "AWS4-HMAC-SHA256"


class Recipe(NamedTuple):
    """The `sign` function, and the headers and settings of a signature."""

    sign: Callable[[Request, Mapping[str, str], float], dict[str, str]]
    headers: tuple[str, ...]
    required: tuple[str, ...] = ()  # in addition to the key
    optional: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Signer:
    """A recipe with the templates of its settings."""

    recipe: str
    settings: Mapping[str, Parts]  # key, keyId, region, service and sessionToken

    def sign(self, request: Request, values: Values, now: float | None = None) -> Request:
        """Return the request with the headers of the signature. `now` is in seconds since 1970."""
        settings = {name: values.fill(parts) for name, parts in self.settings.items()}
        values.used_secrets |= {
            settings[name] for name in ("key", "sessionToken") if name in settings
        }
        if any(
            FORBIDDEN_IN_VALUES.search(text) for name, text in settings.items() if name != "key"
        ):
            raise ToolError("a setting of hmac contains a line break or control character")
        added = RECIPES[self.recipe].sign(request, settings, time.time() if now is None else now)
        names = {name.lower() for name in added}
        kept = [(name, value) for name, value in request.headers if name.lower() not in names]
        return dataclasses.replace(
            request, headers=[*kept, *added.items()], credentials=request.credentials | names
        )


def _get_digest(key: bytes, *parts: bytes) -> bytes:
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


def _sign_github(request: Request, settings: Mapping[str, str], _now: float) -> dict[str, str]:
    return {
        "X-Hub-Signature-256": (
            f"sha256={_get_digest(settings['key'].encode(), request.content or b'').hex()}"
        )
    }


def _sign_slack(request: Request, settings: Mapping[str, str], now: float) -> dict[str, str]:
    digest = _get_digest(settings["key"].encode(), b"v0:%d:" % now, request.content or b"")
    return {"X-Slack-Request-Timestamp": str(int(now)), "X-Slack-Signature": f"v0={digest.hex()}"}


def _sign_webhook(request: Request, settings: Mapping[str, str], now: float) -> dict[str, str]:
    """Sign as the Standard Webhooks specification defines it. A header of the tool may set the id."""
    try:
        key = base64.b64decode(settings["key"].removeprefix(_WEBHOOK_KEY_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ToolError(
            "hmac.key is not a key of standard-webhooks: expected whsec_ and base64"
        ) from None
    header = next((value for name, value in request.headers if name.lower() == _WEBHOOK_ID), "")
    message_id = header or f"msg_{random_tokens.token_hex(16)}"
    digest = _get_digest(key, f"{message_id}.{int(now)}.".encode(), request.content or b"")
    signature = f"v1,{base64.b64encode(digest).decode()}"
    return {
        _WEBHOOK_ID: message_id,
        "webhook-timestamp": str(int(now)),
        "webhook-signature": signature,
    }


# --- AWS ------------------------------------------------------------------------------------------


def _sign_aws(request: Request, settings: Mapping[str, str], now: float) -> dict[str, str]:
    moment = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    body_hash = hashlib.sha256(request.content or b"").hexdigest()
    added = {"X-Amz-Date": moment}
    if settings["service"] == "s3":
        added["X-Amz-Content-Sha256"] = body_hash
    if "sessionToken" in settings:
        added["X-Amz-Security-Token"] = settings["sessionToken"]
    signed = _list_signed_headers(request, added)
    names = ";".join(signed)
    lines = [request.method, *_canonicalize_url(request.url, settings["service"])]
    lines += [*(f"{name}:{value}" for name, value in signed.items()), "", names, body_hash]
    scope = f"{moment[:8]}/{settings['region']}/{settings['service']}/aws4_request"
    to_sign = f"{_AWS_ALGORITHM}\n{moment}\n{scope}\n{hashlib.sha256(chr(10).join(lines).encode()).hexdigest()}"
    key = f"AWS4{settings['key']}".encode()
    for part in scope.split("/"):
        key = _get_digest(key, part.encode())
    credential = f"Credential={settings['keyId']}/{scope}"
    signature = _get_digest(key, to_sign.encode()).hex()
    return {
        **added,
        "Authorization": (
            f"{_AWS_ALGORITHM} {credential}, SignedHeaders={names}, Signature={signature}"
        ),
    }


def _list_signed_headers(request: Request, added: Mapping[str, str]) -> dict[str, str]:
    """Return the headers to sign, by name: the host, the content type and all headers of AWS."""
    headers = {"host": parse_target(request.url).authority}
    for name, value in [*request.headers, *added.items()]:
        if name.lower() == "content-type" or name.lower().startswith("x-amz-"):
            headers[name.lower()] = " ".join(value.split())
    return dict(sorted(headers.items()))


def _canonicalize_url(url: str, service: str) -> tuple[str, str]:
    """Return the canonical path and query. S3 encodes the path once, all other services twice."""
    parts = urlsplit(url)
    path = "/".join(quote(unquote(segment), safe="") for segment in parts.path.split("/")) or "/"
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    query = sorted((quote(name, safe=""), quote(value, safe="")) for name, value in pairs)
    return path if service == "s3" else quote(path, safe="/"), "&".join(
        f"{name}={value}" for name, value in query
    )


RECIPES: Mapping[str, Recipe] = {
    "github-sha256": Recipe(_sign_github, ("X-Hub-Signature-256",)),
    "slack": Recipe(_sign_slack, ("X-Slack-Request-Timestamp", "X-Slack-Signature")),
    "standard-webhooks": Recipe(_sign_webhook, ("webhook-timestamp", "webhook-signature")),
    "aws-sigv4": Recipe(
        _sign_aws,
        ("Authorization", "X-Amz-Date", "X-Amz-Content-Sha256", "X-Amz-Security-Token"),
        required=("keyId", "region", "service"),
        optional=("sessionToken",),
    ),
}
