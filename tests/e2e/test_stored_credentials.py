"""Test literal credentials in stored tools (warned about, masked, never exported), and
placeholders.
"""

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.http_support import serve_site
from tests.rest_support import ServedApp, get_error_code, http_draft, serve_app
from tests.support import run_cli

CREDENTIAL = "hunter2-literal"
REFERENCE = "${secret:API_TOKEN}"
URL = "https://api.example.com/things"

LOCATIONS: dict[str, dict[str, Any]] = {
    "bearer": {"auth": {"type": "bearer", "value": CREDENTIAL}},
    "basic": {"auth": {"type": "basic", "value": f"me:{CREDENTIAL}"}},
    "apiKey": {"auth": {"type": "apiKey", "in": "query", "name": "k", "value": CREDENTIAL}},
    "header": {"headers": {"Authorization": f"Bearer {CREDENTIAL}"}},
    "header-case": {"headers": {"x-API-KEY": CREDENTIAL}},
    "header-key": {"headers": {"X-Functions-Key": CREDENTIAL}},
    "cookie": {"headers": {"Cookie": f"theme=${{secret:T}}; sid={CREDENTIAL}"}},
    "query": {"query": {"access_token": CREDENTIAL}},
    "url": {"urlTemplate": f"{URL}?page=1&api_key={CREDENTIAL}"},
    "url-encoded-name": {"urlTemplate": f"{URL}?api%5Fkey={CREDENTIAL}"},
    "body": {"method": "POST", "body": {"login": {"password": CREDENTIAL}}},
    "body-list": {
        "method": "POST",
        "body": {"parameters": [{"name": "apiKey", "value": CREDENTIAL}]},
    },
    "body-below": {"method": "POST", "body": {"credentials": {"user": "me", "second": CREDENTIAL}}},
    "form": {
        "method": "POST",
        "headers": {"Content-Type": "application/x-www-form-urlencoded"},
        "body": f"grant_type=password&client_secret={CREDENTIAL}",
    },
    "json-text": {"method": "POST", "body": json.dumps({"client_secret": CREDENTIAL})},
    "json-escaped": {"method": "POST", "body": f'{{"pass\\u0077ord": "{CREDENTIAL}"}}'},
    "xml": {"method": "POST", "body": f"<a><Password>{CREDENTIAL}</Password></a>"},
    "beside-a-reference": {"headers": {"Authorization": f"Bearer {CREDENTIAL}{REFERENCE}"}},
}
HARMLESS: dict[str, dict[str, Any]] = {
    "reference": {
        "auth": {"type": "bearer", "value": REFERENCE},
        "headers": {"X-Api-Key": REFERENCE},
    },
    "user": {"auth": {"type": "basic", "value": f"somebody-with-a-long-name:{REFERENCE}"}},
    "words": {
        "method": "POST",
        "body": {"max_tokens": 100, "token_type": "bearer", "sort_key": "name-of-it"},
    },
    "headers": {"headers": {"Accept": "application/json", "Idempotency-Key": "something-else"}},
    "url": {"urlTemplate": f"{URL}?page=1&sort=name&key={REFERENCE}"},
}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApp]:
    with serve_app(tmp_path_factory.mktemp("home")) as running:
        yield running


def read_archive(shop: ServedApp, bundle: str) -> tuple[str, str]:
    answer = shop.rest.client.get(f"/api/bundles/{bundle.rpartition('/')[2]}/export")
    with zipfile.ZipFile(io.BytesIO(answer.content)) as packed:
        texts = [packed.read(name).decode() for name in packed.namelist()]
    return "\n".join(texts), answer.headers.get("onetool-replaced-credentials", "")


@pytest.mark.parametrize("location", LOCATIONS)
def test_a_literal_credential_causes_a_warning_and_is_masked(
    shop: ServedApp, location: str
) -> None:
    bundle = shop.rest.bundle()
    path = f"{bundle}/tools/t/version/1"
    put = shop.rest.send("PUT", path, http_draft(**{"url": URL, **LOCATIONS[location]}))
    assert put.status_code == 201, put.text
    assert "${secret:" in put.json()["warnings"][0]
    listed = shop.rest.client.get("/tools", params={"bundleIDs": bundle.rpartition("/")[2]})
    switched = shop.rest.send("PATCH", path, {"isEnabled": False})
    found = shop.rest.client.get(
        "/tools/search", params={"q": "t", "pageSize": 256, "includeDisabled": "true"}
    )
    for answer in (put, shop.rest.client.get(path), listed, switched, found):
        assert CREDENTIAL not in answer.text
        assert "[masked]" in answer.text
    texts, replaced = read_archive(shop, bundle)
    assert CREDENTIAL not in texts
    assert "[masked]" not in texts
    assert f"${{secret:{replaced}}}" in texts


@pytest.mark.parametrize("location", HARMLESS)
def test_references_and_harmless_values_are_not_masked(shop: ServedApp, location: str) -> None:
    impl = http_draft(**{"url": URL, **HARMLESS[location]})["httpImpl"]
    tool = shop.rest.tool(
        shop.rest.bundle(), "t", "1", **http_draft(**{"url": URL, **HARMLESS[location]})
    )
    stored = shop.rest.get(tool)
    assert stored["httpImpl"] == impl
    assert "warnings" not in stored
    assert read_archive(shop, tool.partition("/tools/t/")[0])[1] == ""


@pytest.mark.parametrize(
    ("credential", "change"),
    [
        (
            "sk-live-0123456789abcdef",
            {"httpImpl": {"method": "GET", "urlTemplate": f"{URL}/botsk-live-0123456789abcdef/x"}},
        ),
        (
            f"123456789:{'Ab3' * 11}xy",
            {"httpImpl": {"method": "GET", "urlTemplate": f"{URL}/bot123456789:{'Ab3' * 11}xy/"}},
        ),
        *(
            (
                CREDENTIAL,
                {
                    "argSchema": {
                        "type": "object",
                        "properties": {"api_key": {"type": "string", key: value}},
                    }
                },
            )
            for key, value in (
                ("default", CREDENTIAL),
                ("const", CREDENTIAL),
                ("examples", [CREDENTIAL]),
            )
        ),
        (
            "ghp_" + "a1" * 18,
            {
                "argSchema": {
                    "type": "object",
                    "properties": {"x": {"type": "string", "enum": ["ghp_" + "a1" * 18]}},
                }
            },
        ),
    ],
)
def test_credentials_in_paths_and_schemas_are_masked(
    shop: ServedApp, credential: str, change: dict[str, Any]
) -> None:
    bundle = shop.rest.bundle()
    path = f"{bundle}/tools/t/version/1"
    put = shop.rest.send("PUT", path, {**http_draft(url=URL), **change})
    assert put.status_code == 201, put.text
    assert "contains a literal credential" in put.json()["warnings"][0]
    listed = shop.rest.client.get("/tools", params={"bundleIDs": bundle.rpartition("/")[2]})
    for answer in (put, shop.rest.client.get(path), listed):
        assert credential not in answer.text
        assert "[masked]" in answer.text
    texts, replaced = read_archive(shop, bundle)
    assert credential not in texts
    assert f"${{secret:{replaced}}}" in texts
    if "argSchema" in change:
        back = shop.rest.send(
            "PUT",
            f"{bundle}/tools/t/version/2",
            {**http_draft(url=URL), "argSchema": put.json()["argSchema"]},
        )
        assert back.status_code == 400, "a mask is never stored as a value"


def test_a_password_in_the_url_of_an_edited_file_is_masked(tmp_path: Path) -> None:
    with serve_app(tmp_path) as shop:
        tool = shop.rest.tool(shop.rest.bundle(), "t", "1", **http_draft(URL))
        (file,) = (tmp_path / "bundles").glob("*/t@1.json")
        file.write_text(file.read_text().replace("https://", f"https://me:{CREDENTIAL}@"))
        assert CREDENTIAL not in shop.rest.client.get(tool).text
        assert shop.rest.get(tool)["httpImpl"]["urlTemplate"].startswith("https://me:[masked]@")


def test_a_returned_mask_keeps_the_credential_only_for_the_same_host(tmp_path: Path) -> None:
    with (
        serve_site() as site,
        serve_app(
            tmp_path, {"http": {"allowedHosts": ["*"], "allowPrivateAddresses": True}}
        ) as shop,
    ):
        bundle = shop.rest.bundle()
        headers = {"X-Api-Key": CREDENTIAL, "X-Token": "another-one"}
        shop.rest.tool(bundle, "t", "1", **http_draft(site.url("/echo"), headers=headers))
        stored = shop.rest.get(f"{bundle}/tools/t/version/1")["httpImpl"]
        changed = {**stored, "headers": {**stored["headers"], "X-Token": "a-new-one"}}
        assert shop.rest.invoke(
            shop.rest.tool(bundle, "t", "2", **http_draft(**{"url": "", **changed}))
        ).json()["ok"]
        assert site.last.header("x-api-key") == CREDENTIAL
        assert site.last.header("x-token") == "a-new-one"
        elsewhere = {**stored, "urlTemplate": site.url("/echo", "localhost")}
        for slug, impl in (
            ("t", elsewhere),
            ("other", stored),
            ("t", {**stored, "headers": {"X-New": "[masked]"}}),
        ):
            answer = shop.rest.send(
                "PUT", f"{bundle}/tools/{slug}/version/3", http_draft(**{"url": "", **impl})
            )
            assert get_error_code(answer) == (400, "invalid")
            assert "[masked]" in answer.json()["error"]["message"]
            assert CREDENTIAL not in answer.text


def test_a_literal_credential_is_redacted_in_results_and_errors(tmp_path: Path) -> None:
    with (
        serve_site() as site,
        serve_app(
            tmp_path, {"http": {"allowedHosts": ["*"], "allowPrivateAddresses": True}}
        ) as shop,
    ):
        bundle = shop.rest.bundle()
        echo = http_draft(
            site.url(f"/echo?api_key={CREDENTIAL}"), headers={"X-Token": "a-literal-token"}
        )
        answer = shop.rest.invoke(shop.rest.tool(bundle, "t", "1", **echo)).text
        failed = shop.rest.invoke(
            shop.rest.tool(bundle, "u", "1", **http_draft(site.url(f"/x?sig={CREDENTIAL}")))
        ).text
        assert "[REDACTED]" in answer
        assert "returned 404" in failed
        for text in (answer, failed):
            assert CREDENTIAL not in text
            assert "a-literal-token" not in text


def test_the_cli_warns_about_credentials_and_does_not_export_them(tmp_path: Path) -> None:
    document = tmp_path / "api.json"
    archive = tmp_path / "in.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr(
            "bundle.json", json.dumps({"slug": "shop", "displayName": "Shop", "isEnabled": True})
        )
        tool = {"slug": "t", "version": "1", **http_draft(URL, headers={"X-Api-Key": CREDENTIAL})}
        packed.writestr("tools/1.json", json.dumps(tool))
    imported = run_cli(tmp_path, "bundles", "import", str(archive))
    assert (
        "Warning: t@1: httpImpl.headers.X-Api-Key contains a literal credential" in imported.stdout
    )
    assert "${secret:SHOP_X_API_KEY}" in imported.stdout
    exported = run_cli(tmp_path, "bundles", "export", "shop", str(document))
    assert "${secret:SHOP_X_API_KEY}" in exported.stderr
    with zipfile.ZipFile(document) as packed:
        assert not any(CREDENTIAL.encode() in packed.read(name) for name in packed.namelist())


# --- placeholders ---------------------------------------------------------------------------------

CITY = {"type": "object", "properties": {"city": {"type": "string"}, "api": {"type": "string"}}}


@pytest.mark.parametrize(
    ("impl", "schema", "hint"),
    [
        ({"headers": {"Authorization": "Bearer ${API_KEY}"}}, CITY, "${secret:API_KEY}"),
        ({"auth": {"type": "bearer", "value": "${API_KEY}"}}, None, "${secret:API_KEY}"),
        ({"query": {"q": "${ctiy}"}}, CITY, "Did you mean ${city}?"),
        (
            {"urlTemplate": f"{URL}/${{town}}"},
            {"type": "object", "additionalProperties": True},
            "add town",
        ),
        (
            {"method": "POST", "body": {"a": ["${csv:towns}"]}},
            CITY,
            "Arguments in argSchema: api, city",
        ),
    ],
)
def test_an_unknown_placeholder_is_rejected_at_write(
    shop: ServedApp, impl: dict[str, Any], schema: dict[str, Any] | None, hint: str
) -> None:
    draft = {**http_draft(**{"url": URL, **impl}), **({"argSchema": schema} if schema else {})}
    answer = shop.rest.send("PUT", f"{shop.rest.bundle()}/tools/t/version/1", draft)
    assert get_error_code(answer) == (400, "invalid")
    assert hint in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "schema",
    [
        CITY,
        {"type": "object", "required": ["city"]},
        {"type": "object", "allOf": [CITY]},
        {"type": "object", "$ref": "#/$defs/a", "$defs": {"a": CITY}},
        {"type": "object", "patternProperties": {"^c": {"type": "string"}}},
    ],
)
def test_a_placeholder_may_be_declared_in_any_part_of_the_schema(
    shop: ServedApp, schema: dict[str, Any]
) -> None:
    draft = {**http_draft(URL, query={"q": "${city}"}), "argSchema": schema}
    shop.rest.tool(shop.rest.bundle(), "t", "1", **draft)


def test_an_unknown_placeholder_in_an_edited_file_prevents_the_request(tmp_path: Path) -> None:
    with (
        serve_site() as site,
        serve_app(
            tmp_path, {"http": {"allowedHosts": ["*"], "allowPrivateAddresses": True}}
        ) as shop,
    ):
        tool = shop.rest.tool(
            shop.rest.bundle("b"), "t", "1", **http_draft(site.url(), headers={"X-Key": "Bearer x"})
        )
        (file,) = (tmp_path / "bundles").glob("*/t@1.json")
        file.write_text(file.read_text().replace("Bearer x", "Bearer ${API_KEY}"))
        shop.rest.get(tool)
        answer = shop.rest.invoke(tool).json()
        assert not answer["ok"]
        assert "${secret:API_KEY}" in answer["error"]["message"]
        assert site.requests == []
