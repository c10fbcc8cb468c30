"""Definitions of HTTP tools with several requests: what is rejected when they are stored, and their
credentials.
"""

from typing import Any

import pytest

from onetool.errors import BundleError
from onetool.sources.bundles.archive import pack, unpack
from onetool.sources.bundles.model import ToolDraft
from onetool.sources.http import credentials

TEXT = {"type": "string"}
LOGIN = {"name": "login", "method": "POST", "urlTemplate": "https://auth.test/login"}
MULTIPART = {"Content-Type": "multipart/form-data"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def build_draft(properties: dict[str, Any] | None = None, **impl: Any) -> dict[str, Any]:
    return {
        "displayName": "A tool",
        "isEnabled": True,
        "type": "http",
        "argSchema": {"type": "object", "properties": properties or {"a": TEXT}},
        "httpImpl": {"method": "POST", "urlTemplate": "https://api.test/", **impl},
    }


@pytest.mark.parametrize(
    ("impl", "problem"),
    [
        (
            {"steps": [{**LOGIN, "urlTemplate": "ftp://x"}]},
            "httpImpl.steps.0.urlTemplate: must start with http",
        ),
        ({"steps": [{**LOGIN, "name": "a-b"}]}, "httpImpl.steps.0.name: "),
        ({"steps": [{**LOGIN, "timeoutMs": 5}]}, "httpImpl.steps.0.timeoutMs: "),
        ({"steps": [LOGIN, LOGIN]}, "httpImpl: steps.1: the name login is used twice"),
        ({"steps": [LOGIN] * 11}, "httpImpl.steps: "),
        (
            {"urlTemplate": "https://api.test/?" + "a&" * 40_000},
            "httpImpl.urlTemplate: is longer than 65,536",
        ),
        (
            {"headers": {f"X-{number}": "x" for number in range(1_001)}},
            "httpImpl.headers: must have at most 1000",
        ),
        (
            {"query": {f"q{number}": "x" for number in range(1_001)}},
            "httpImpl.query: must have at most 1000",
        ),
        ({"successCodes": [200] * 601}, "httpImpl.successCodes: must have at most 600"),
        (
            {"response": {"selector": "a." * 5_000 + "a"}},
            "httpImpl.response.selector: is longer than 10,000",
        ),
        ({"body": "${a}" * 10_001}, "httpImpl: has more than 10,000 placeholders"),
        (
            {"headers": MULTIPART, "body": {f"f{number}": "x" for number in range(1_001)}},
            "has more than 1,000 fields",
        ),
        (
            {"headers": FORM, "body": {f"f{number}": "x" for number in range(1_001)}},
            "has more than 1,000 fields",
        ),
        (
            {"steps": [{**LOGIN, "body": "${steps.login.body}"}]},
            "steps.0: ${steps.login.body} does not name",
        ),
        (
            {"steps": [LOGIN], "body": "${steps.logn.body}"},
            "does not name an earlier step (earlier steps: login)",
        ),
        (
            {"steps": [LOGIN], "body": "${steps.login.text}"},
            "${steps.login.text} is not a part of a response",
        ),
        ({"steps": [LOGIN], "body": "${file:steps.login.body}"}, "a response cannot choose a file"),
        ({"steps": [LOGIN], "body": "${b}"}, "unknown placeholder ${b}"),
        ({"steps": [{**LOGIN, "body": "${b}"}]}, "unknown placeholder ${b}"),
        (
            {"body": {"f": {"data": "x"}}, "headers": MULTIPART},
            "httpImpl: body: f: unknown field 'data' of a part",
        ),
        ({"body": {"f": {"filename": "x"}}, "headers": MULTIPART}, "body: f: value is required"),
        (
            {"body": {"f": {"value": "", "contentType": "png"}}, "headers": MULTIPART},
            "body: f: contentType is not",
        ),
        ({"body": {"f": ["x"]}, "headers": MULTIPART}, "body: f: value of a part must be a string"),
        (
            {"body": {"f": "${file:a}!"}, "headers": MULTIPART},
            "only allowed as the whole body, or as the whole value",
        ),
        ({"body": {"a": "${file:a}"}}, "only allowed as the whole body"),
        ({"query": {"a": "${file:a}"}}, "only allowed as the whole body"),
        (
            {"body": {"f": "x"}, "headers": {"Content-Type": "multipart/form-data; boundary=x"}},
            "remove the boundary",
        ),
        (
            {"body": {"f": 1}, "headers": {"Content-Type": "application/x-www-form-urlencoded"}},
            "body: f: a field of",
        ),
        ({"hmac": {"recipe": "sha1", "key": "k"}}, "httpImpl.hmac.recipe: "),
        (
            {"hmac": {"recipe": "aws-sigv4", "key": "k"}},
            "httpImpl.hmac: requires keyId and region and service",
        ),
        ({"response": {"full": "yes"}}, "httpImpl.response.full"),
        (
            {"response": {"saveTo": "out/${a}"}},
            "httpImpl.response.saveTo: must be the placeholder of an argument",
        ),
        (
            {"response": {"saveTo": "${secret:A}"}},
            "httpImpl.response.saveTo: must be the placeholder of an argument",
        ),
        ({"response": {"mode": "events", "maxEvents": 0}}, "httpImpl.response.maxEvents: "),
    ],
)
def test_an_invalid_definition_is_rejected_with_the_name_of_the_field(
    impl: dict[str, Any], problem: str
) -> None:
    with pytest.raises(BundleError) as caught:
        ToolDraft.of(build_draft(**impl))
    assert problem in str(caught.value)


def test_a_definition_cannot_choose_a_file() -> None:
    named = {"a": {"type": "string", "default": "secrets.yaml"}}
    for impl in ({"body": "${file:a}"}, {"response": {"saveTo": "${a}"}}):
        with pytest.raises(
            BundleError, match=r"argSchema\.properties\.a names a file and must not have a default"
        ):
            ToolDraft.of(build_draft(named, **impl))
        ToolDraft.of(build_draft(**impl))


def test_an_argument_called_steps_is_only_reserved_with_steps() -> None:
    ToolDraft.of(build_draft({"steps": {"type": "object"}}, body="${steps.login.body}"))
    with pytest.raises(BundleError, match="the argument steps of argSchema conflicts with"):
        ToolDraft.of(build_draft({"steps": {"type": "object"}}, steps=[LOGIN]))


def test_literal_credentials_of_steps_and_signatures_are_masked() -> None:
    signing = {"recipe": "slack", "key": "s1gn1ng-k3y"}
    impl = {
        **build_draft(hmac={**signing, "key": "another-k3y"})["httpImpl"],
        "steps": [{**LOGIN, "auth": {"type": "bearer", "value": "l1teral-t0ken"}, "hmac": signing}],
    }
    locations = ["hmac.key", "steps.0.auth.value", "steps.0.hmac.key"]
    assert [location for location, _ in credentials.find(impl)] == locations
    masked = credentials.mask(impl)
    assert masked is not None
    assert not any(word in str(masked) for word in ("l1teral", "s1gn1ng", "another"))
    assert credentials.restore(masked, impl) == impl
    elsewhere = {**masked, "steps": [{**masked["steps"][0], "urlTemplate": "https://evil.test/"}]}
    assert "l1teral" not in str(credentials.restore(elsewhere, impl))
    references = {**impl, "hmac": {**signing, "key": "${secret:K}"}, "steps": []}
    assert credentials.find(references) == []


def test_an_archive_lists_the_hosts_and_secrets_of_steps() -> None:
    login = {**LOGIN, "hmac": {"recipe": "slack", "key": "${secret:SIGNING}"}}
    tool = {**build_draft(steps=[login], auth={"type": "bearer", "value": "${secret:KEY}"})}
    bundle = {"slug": "shop", "displayName": "Shop", "isEnabled": True}
    found = unpack(pack(bundle, [{**tool, "slug": "t", "version": "1"}]))
    assert found.hosts == ["auth.test", "api.test"]
    assert found.secrets == ["KEY", "SIGNING"]
