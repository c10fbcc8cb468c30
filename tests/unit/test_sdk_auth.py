"""MCP SDK features that sign-ins rely on.

If a test fails, read `onetool.net.oauth` before upgrading the SDK.
"""

import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import anyio.lowlevel
import httpx2
import pytest
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.utils import (
    build_oauth_authorization_server_metadata_discovery_urls,
    build_protected_resource_metadata_discovery_urls,
    extract_field_from_www_auth,
    issuers_match,
)
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth_utils import check_resource_allowed, resource_url_from_server_url

from onetool.errors import StorageError, ToolError
from onetool.net.oauth.credential import collect_failures, record_failure
from onetool.net.oauth.discovery import ServerMetadata
from onetool.state.credentials import CredentialFile, CredentialKey, CredentialStore


def test_discovery_urls() -> None:
    well_known = "https://a.example/.well-known"
    assert build_protected_resource_metadata_discovery_urls(
        "https://a.example/x", "https://a.example/mcp"
    ) == [
        "https://a.example/x",
        f"{well_known}/oauth-protected-resource/mcp",
        f"{well_known}/oauth-protected-resource",
    ]
    assert build_oauth_authorization_server_metadata_discovery_urls(
        "https://a.example", "https://b.example/mcp"
    ) == [
        f"{well_known}/oauth-authorization-server",
        f"{well_known}/openid-configuration",
    ]
    assert build_oauth_authorization_server_metadata_discovery_urls(
        "https://a.example/t", "https://b.example/mcp"
    ) == [
        f"{well_known}/oauth-authorization-server/t",
        f"{well_known}/openid-configuration/t",
        "https://a.example/t/.well-known/openid-configuration",
    ]
    assert build_oauth_authorization_server_metadata_discovery_urls(
        None, "https://a.example/mcp"
    ) == [f"{well_known}/oauth-authorization-server"]


def test_challenges_and_resources() -> None:
    header = (
        'Bearer error="insufficient_scope", scope="a b", resource_metadata="https://a.example/m"'
    )
    response = httpx2.Response(401, headers={"www-authenticate": header})
    fields = ("error", "scope", "resource_metadata", "realm")
    found = [extract_field_from_www_auth(response, field) for field in fields]
    assert found == ["insufficient_scope", "a b", "https://a.example/m", None]
    assert resource_url_from_server_url("https://A.example/mcp#x") == "https://a.example/mcp"
    assert check_resource_allowed("https://a.example/mcp", "https://a.example")
    assert not check_resource_allowed("https://a.example/mcp", "https://b.example/mcp")
    assert not check_resource_allowed("https://a.example/mcp", "https://a.example/other")


def test_issuers_are_compared_as_strings() -> None:
    assert issuers_match("https://a.example", "https://a.example/")
    for other in (
        "https://a.example/t",
        "https://a.example.evil",
        "http://a.example",
        "https://a.example//",
    ):
        assert not issuers_match("https://a.example", other)
    assert not issuers_match("https://a.example/t", "https://a.example/t/")


def test_documents_keep_the_urls_that_the_server_sent() -> None:
    """An issuer without a path must not get a slash, because it is compared with `iss` and claims."""
    metadata = ServerMetadata.model_validate(
        {"issuer": "https://a.example", "jwks_uri": "https://a.example/keys?x=1"}
    )
    assert (str(metadata.issuer), str(metadata.jwks_uri)) == (
        "https://a.example",
        "https://a.example/keys?x=1",
    )


def test_transports_take_a_client_with_auth() -> None:
    assert "http_client" in inspect.signature(streamable_http_client).parameters
    assert {"auth", "httpx_client_factory"} <= inspect.signature(sse_client).parameters.keys()


def test_the_provider_of_the_sdk_still_holds_its_lock_during_requests() -> None:
    """OneTool does not use it for that reason.

    If it changes, the SDK may do what `token_source` does.
    """
    source = inspect.getsource(OAuthClientProvider._auth_flow)
    lines = source.splitlines()
    lock = next(
        number for number, line in enumerate(lines) if "async with self.context.lock" in line
    )
    sending = next(
        number for number, line in enumerate(lines) if "response = yield request" in line
    )
    assert lock < sending
    assert "expires_at" not in source


def test_an_error_is_recorded_for_the_call_that_made_the_request() -> None:
    async def work() -> list[list[ToolError]]:
        lists: list[list[ToolError]] = [[], []]

        async def call(number: int) -> None:
            with collect_failures() as lists[number]:
                await anyio.lowlevel.checkpoint()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(anyio.sleep, 0)
                record_failure(ToolError(str(number)))

        async with anyio.create_task_group() as tasks:
            for number in range(2):
                tasks.start_soon(call, number)
        record_failure(ToolError("outside"))
        return lists

    assert [[str(error) for error in each] for each in anyio.run(work)] == [["0"], ["1"]]


class Keyring:
    """A keyring in memory, with the interface of the package `keyring`."""

    def __init__(self) -> None:
        self.passwords: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, name: str) -> str | None:
        return self.passwords.get((service, name))

    def set_password(self, service: str, name: str, password: str) -> None:
        self.passwords[service, name] = password


def test_a_change_of_a_credential_excludes_only_changes_of_the_same_one(tmp_path: Path) -> None:
    first, second = (CredentialKey(f"https://example.com/{name}") for name in ("one", "two"))
    stores = [CredentialStore(CredentialFile(tmp_path)) for _ in range(2)]
    is_refreshing, may_end = threading.Event(), threading.Event()

    def refresh(before: str | None) -> str:
        is_refreshing.set()
        assert may_end.wait(30)
        return f"{before}refreshed"

    with ThreadPoolExecutor(2) as pool:
        refreshed = pool.submit(stores[0].update, first, refresh)
        assert is_refreshing.wait(30)
        for store in (
            stores
        ):  # the other credential is changed while the request to the server takes its time
            store.update(second, lambda before: f"{before or ''}+")
        waiting = pool.submit(stores[1].update, first, lambda before: f"{before} twice")
        assert not waiting.done()
        may_end.set()
        assert refreshed.result(30) == "Nonerefreshed"
        assert waiting.result(30) == "Nonerefreshed twice"
    assert [stores[0].get(key) for key in (first, second)] == ["Nonerefreshed twice", "++"]


def test_a_keyring_holds_the_key_instead_of_a_file(tmp_path: Path) -> None:
    keyring, key = Keyring(), CredentialKey("https://example.com/mcp")
    CredentialStore(CredentialFile(tmp_path, keyring)).update(key, lambda _: "credential")
    assert not list(tmp_path.rglob("*.key"))
    assert CredentialStore(CredentialFile(tmp_path, keyring)).get(key) == "credential"
    with pytest.raises(StorageError, match="missing in the keyring"):
        CredentialStore(CredentialFile(tmp_path, Keyring())).get(key)
