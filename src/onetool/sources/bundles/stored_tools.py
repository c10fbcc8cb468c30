"""Stored tools: their names, secrets, sign-ins, effects and backends.

A stored tool can name any secret. OneTool sends the secret only if an owner allowed it for that
bundle and that origin, in the setting `bundle_secrets`.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from anyio.to_thread import run_sync as run_in_thread

from onetool.core.foreign_schema import ForeignSchema
from onetool.core.names import python_name
from onetool.core.policy.effects import PRIVATE, READ_ONLY, UNTRUSTED, apply_settings
from onetool.core.schema import ANY_OBJECT
from onetool.core.tool import Backend, Tool
from onetool.errors import NetworkError, ToolError, ToolNotFound
from onetool.net import Net
from onetool.net.client import IDEMPOTENT_METHODS
from onetool.net.hosts import parse_target
from onetool.net.oauth.credential import SignInTarget
from onetool.net.oauth.sign_ins import SignIns, identify
from onetool.net.oauth.token_source import TokenSource
from onetool.settings.access import OAuth
from onetool.settings.model import PackSettings, Settings
from onetool.util.context import Effect, Permission, Result, ToolContext
from onetool.util.problem import WARNING, Problem
from onetool.util.sanitize import clean, clean_schema
from onetool_child.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from onetool.runs.results.blobs import Media
    from onetool.sources.bundles.model import StoredTool
    from onetool.sources.bundles.queries import ToolRow
    from onetool.sources.http.backend import HttpBackend
    from onetool.sources.http.definition import HttpImpl, OAuthFlow
    from onetool.state.counters import RateLimiter

SECTION = "bundle_secrets"
NOT_BOUND = "secret_not_bound"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
# In the JSON of a tool: the parts on which its secrets and their origins depend.
RELEVANT = re.compile(r'\$\{secret:\w+|"urlTemplate":\s*"https?://[^/?#"\\]+', re.ASCII)
REFERENCE = "${secret:"
SOURCE = "bundle"
Bindings = Mapping[str, Sequence[str]]  # origins by secret


class SecretUse(NamedTuple):
    """A secret that tools of a bundle send to an origin, such as `https://api.example.com`."""

    bundle: str
    name: str
    origin: str

    @property
    def command(self) -> str:
        """The command that allows it."""
        return f"onetool secret allow {self.name} --bundle {self.bundle} --host {self.origin}"

    @property
    def problem(self) -> Problem:
        """The problem if it is not allowed."""
        message = (
            f"tools of bundle {self.bundle} may not send the secret {self.name} to {self.origin}"
        )
        return Problem(
            message,
            f"to allow it, an owner can run `{self.command}`",
            code=NOT_BOUND,
            level=WARNING,
        )

    def is_allowed(self, settings: Settings) -> bool:
        bindings: Bindings = settings.bundle_secrets.get(self.bundle, {})
        return normalize_origin(self.origin) in _list_origins(bindings, self.name)

    def require_allowed(self, settings: Settings) -> None:
        """Raise ToolError with the code `secret_not_bound` unless it is allowed."""
        if not self.is_allowed(settings):
            problem = self.problem
            fields = {"secret": self.name, "bundle": self.bundle, "origin": self.origin}
            raise ToolError(problem.message, hint=problem.hint, code=NOT_BOUND, **fields)


def normalize_origin(text: str) -> str:
    """Return the origin of a URL.

    A host alone stands for https. Raise NetworkError if it is invalid.
    """
    return parse_target(text if "://" in text else f"https://{text}").origin


def _list_origins(bindings: Bindings, name: str) -> list[str]:
    origins = []
    for text in bindings.get(name, ()):
        with suppress(NetworkError):
            origins.append(normalize_origin(text))
    return origins


def change_bindings(
    bindings: Bindings | None, use: SecretUse, *, is_allowed: bool
) -> dict[str, list[str]] | None:
    """Return the entry of a bundle with a use added or removed; None if nothing is left."""
    changed = {name: list(origins) for name, origins in (bindings or {}).items()}
    others = [text for text in changed.pop(use.name, []) if text != use.origin]
    origins = [*others, use.origin] if is_allowed else others
    return {**changed, **({use.name: origins} if origins else {})} or None


def find_secret_uses(tools: Iterable[tuple[str, str]]) -> list[SecretUse]:
    """Return the secret uses of tools, which are pairs of bundle slug and JSON.

    Only tools that differ in secrets or origins are parsed. Invalid definitions are left out: their
    calls fail.
    """
    relevant = {(bundle, *RELEVANT.findall(text)): (bundle, text) for bundle, text in tools}
    uses: set[SecretUse] = set()
    for bundle, text in relevant.values():
        uses.update(list_uses(bundle, json.loads(text).get("httpImpl")))
    return sorted(uses)


def list_uses(bundle: str, impl: JsonMapping | None) -> list[SecretUse]:
    """Return the uses of secrets in one definition, which may be invalid."""
    from onetool.sources.http.definition import list_requests

    uses: dict[SecretUse, None] = {}
    for part in list_requests(impl):
        origin = normalize_origin(part.request.url.origin)
        names = [placeholder.name for placeholder in part.placeholders if placeholder.is_secret]
        uses |= dict.fromkeys(SecretUse(bundle, name, origin) for name in names)
    return list(uses)


# --- stored tools ----------------------------------------------------------------------------------


def find_flows(impl: "JsonObject | None") -> "Iterator[tuple[str, OAuthFlow]]":
    """Yield the origin and the endpoints of each request of a tool that a sign-in can authenticate."""
    from onetool.sources.http.definition import list_requests

    if impl is None or '"oauth"' not in json.dumps(impl, default=str):
        return
    for request in list_requests(impl):
        if request.auth is not None and request.auth.oauth is not None:
            yield request.request.url.origin, request.auth.oauth


def read_effects(impl: "JsonObject | None") -> tuple[frozenset[Effect], bool, frozenset[str]]:
    """Return effects, idempotence and labels by the methods of all requests, which may be invalid.

    A stored tool without requests calls a function, and that call has the effects.
    """
    if impl is None:
        return READ_ONLY, False, frozenset()
    steps = impl.get("steps")
    requests = [impl, *(steps if isinstance(steps, list) else [])]
    methods = {
        str(request.get("method")).upper() for request in requests if isinstance(request, Mapping)
    }
    options = impl.get("response")
    text = json.dumps(impl, default=str)
    saves = isinstance(options, Mapping) and bool(options.get("saveTo"))
    kind = Effect.READ if methods <= SAFE_METHODS and not saves else Effect.WRITE
    is_private = any(
        mark in text for mark in ("${secret:", "${file:", '"auth":', '"hmac":', "uthorization")
    )
    labels = frozenset({UNTRUSTED, PRIVATE} if is_private else {UNTRUSTED})
    return frozenset({kind, Effect.EXTERNAL}), methods <= IDEMPOTENT_METHODS, labels


class StoredName(NamedTuple):
    """The slugs of a pack and a tool, and a version."""

    pack: str
    tool: str
    version: str | None

    def __str__(self) -> str:
        return f"{self.pack}.{self.tool}" + ("" if self.version is None else f"@{self.version}")

    @classmethod
    def of(cls, tool: "StoredTool") -> "StoredName":
        return cls(tool.bundle_slug, tool.slug, tool.version)

    @classmethod
    def parse(cls, name: str) -> "StoredName | None":
        """Parse a name, or a name as in code: slugs have hyphens, but no underscores."""
        base, at, version = name.partition("@")
        slug, dot, tool = base.replace("_", "-").partition(".")
        stored = f"{slug}{dot}{tool}"
        if not tool or "." in tool or base not in {stored, python_name(stored)}:
            return None
        return cls(slug, tool, version if at else None)


def describe_conflict(slug: str) -> Problem:
    message = f"bundle {slug} is not used: another pack has its name"
    return Problem(message, "change the slug of the bundle, or rename the other pack")


def bundle_disabled_reason(slug: str) -> str:
    return f"bundle {slug} is disabled; {_enable_hint(slug)}"


class LazyBackend:
    """A backend that is created at the first call: most tools of a large bundle are never called."""

    def __init__(
        self, make: Callable[[], Backend], impl: "JsonObject", accounts: tuple[str, ...]
    ) -> None:
        self._make = make
        self._impl = impl
        self.accounts = accounts
        self._made: Backend | None = None

    def identify(self, _tool: Tool) -> Any:
        return self._impl

    async def invoke(self, tool: Tool, args: JsonMapping, context: ToolContext) -> Any:
        if self._made is None:
            # A large definition takes long to validate.
            self._made = await run_in_thread(self._make)
        return await self._made.invoke(tool, args, context)

    def list_origins(self) -> list[str]:
        """Return the origins of its requests, without redirects."""
        from onetool.sources.http.credentials import list_origins

        return ["://".join(origin) for origin in list_origins(self._impl) if origin]


class FunctionBackend:
    """Calls a registered function, which needs its own permissions, for a stored tool."""

    def __init__(self, function: str) -> None:
        self._function = function

    def identify(self, _tool: Tool) -> Any:
        return self._function

    async def invoke(self, tool: Tool, args: JsonMapping, context: ToolContext) -> Any:
        bus = context.require_bus()
        result: Result = await bus.call_tool(self._function, args, context)
        if isinstance(result.error, ToolNotFound) and bus.registry.get(self._function) is None:
            raise ToolError(f"{tool.name} is disabled: {missing_function_reason(self._function)}")
        return result


def validate_impl(stored: "StoredTool") -> "HttpImpl":
    """Return the validated implementation: the file may have been edited since it was stored."""
    from pydantic import ValidationError

    from onetool.sources.bundles.model import to_bundle_error
    from onetool.sources.http.definition import HttpImpl, find_placeholder_problem

    name = f"{stored.bundle_slug}.{stored.slug}"
    try:
        impl = HttpImpl.model_validate(stored.http_impl)
    except ValidationError as error:
        problems = to_bundle_error(error).fields["details"]["problems"]
        reason = "; ".join(f"{problem['field']}: {problem['problem']}" for problem in problems)
        raise ToolError(f"invalid httpImpl in the file of {name}: {reason}") from None
    if problem := find_placeholder_problem(impl, stored.arg_schema):
        raise ToolError(f"invalid httpImpl in the file of {name}: {problem}")
    return impl


def disabled_reason(stored: "StoredTool") -> str:
    if not stored.bundle_enabled:
        return bundle_disabled_reason(stored.bundle_slug)
    return "" if stored.is_enabled else _enable_hint(str(StoredName.of(stored)))


def _enable_hint(name: str) -> str:
    return f"a user can enable it with `onetool bundles enable {name}`"


def missing_function_reason(function: str) -> str:
    return f"its function {function} does not exist; it works again when the function is registered"


class ToolFactory:
    """Makes registered tools from stored definitions, with the current settings."""

    settings: Settings
    secrets: Mapping[str, str]
    rates: "RateLimiter | None" = None

    def __init__(
        self,
        net: Callable[[], Net],
        media: Callable[[], "Media"],
        sign_ins: SignIns,
        find: Callable[[str], Tool | None],
    ) -> None:
        self._net = net
        self._media = media
        self._sign_ins = sign_ins
        self._find = find

    def make(self, row: "ToolRow", key: str) -> Tool:
        from onetool.sources.bundles.reader import to_stored_tool
        from onetool.sources.bundles.records import has_valid_structure

        stored = to_stored_tool(row)
        name = f"{stored.bundle_slug}.{stored.slug}"
        is_readable = has_valid_structure(stored.arg_schema)
        reason = disabled_reason(stored) or (
            "" if is_readable else "the argSchema in its file is not a valid JSON Schema"
        )
        effects, is_idempotent, labels = read_effects(stored.http_impl)
        tool = Tool(
            name=name,
            backend=self._make_backend(stored),
            input=ForeignSchema(
                lambda: clean_schema(stored.arg_schema if is_readable else ANY_OBJECT)
            ),
            output=(
                ForeignSchema.from_json(stored.output_schema)
                if stored.output_schema is not None
                else None
            ),
            description=clean(stored.description or stored.display_name),
            permissions=frozenset({Permission.NETWORK}) if stored.type == "http" else frozenset(),
            effects=effects,
            is_idempotent=is_idempotent,
            labels=labels,
            source=f"{SOURCE}:{stored.bundle_slug}",
            enabled=not reason,
            disabled_reason=reason,
            disabled_code="" if stored.bundle_enabled else "bundle_disabled",
            identity=stored.id,
            refresh=partial(run_in_thread, self._find, key),
        )
        return apply_settings(tool, self._pack_settings(stored.bundle_slug))

    def _make_backend(self, stored: "StoredTool") -> Backend:
        if stored.python_impl is not None:
            return FunctionBackend(stored.python_impl.function)
        pack = self._pack_settings(stored.bundle_slug)
        return LazyBackend(
            lambda: self._make_http_backend(stored), stored.http_impl or {}, tuple(pack.accounts)
        )

    def _make_http_backend(self, stored: "StoredTool") -> "HttpBackend":
        from onetool.sources.http.backend import HttpBackend

        def sign_in(flow: "OAuthFlow", origin: str, context: ToolContext) -> TokenSource:
            target = self.make_target(stored.bundle_slug, origin, flow)
            return self._sign_ins.get_source(identify(target, context.account, context.agent_id))

        assert self.rates is not None  # a tool comes from a store
        return HttpBackend(
            validate_impl(stored),
            self._net,
            lambda: self.settings.http,
            partial(self._get_secret, stored.bundle_slug),
            media=self._media,
            sign_in=sign_in,
            rate_limiter=self.rates,
            identity=stored.id,
        )

    def make_target(self, slug: str, origin: str, flow: "OAuthFlow") -> SignInTarget:
        pack = self._pack_settings(slug)
        settings = pack.auth or OAuth()
        return SignInTarget(slug, origin, settings, tuple(pack.accounts), endpoints=flow)

    def _pack_settings(self, slug: str) -> PackSettings:
        packs = self.settings.tools
        return packs.get(slug) or packs.get(python_name(slug)) or PackSettings()

    def _get_secret(self, bundle: str, origin: str, name: str) -> str | None:
        """Return a secret for a request to an origin, or None if it is not set.

        Raise if no owner allowed it.
        """
        value = self.secrets.get(name)
        if value is not None:
            SecretUse(bundle, name, origin).require_allowed(self.settings)
        return value
