"""JWTs of an issuer, over HTTP: attacks, agents and scopes, keys that change, and an issuer that
cannot be reached.
"""

import base64
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding
from tests.http_support import Site, page
from tests.oidc_support import AUDIENCE, DISCOVERY, JWKS, JwtIssuer, encode, serve_issuer
from tests.rest_support import ServedApp, raw, serve_app
from tests.support import eventually

from onetool import tool
from onetool.server.http import issuers
from onetool.server.http.jwt_verifier import MAX_JWT_CHARS
from onetool.util.logging import Log

AGENTS: Final = {
    "default": {},
    "engineer": {"permissions": ["read", "network"]},
    "lead": {},
    "guest": {},
}
CANARY: Final = "canary-5e1f9c"


@tool("shop.order", effects=["write", "external"], permissions=["network"])
def _order(item: str) -> str:
    """Order an item."""
    return f"ordered {item}"


@pytest.fixture(scope="module")
def issuer() -> Iterator[JwtIssuer]:
    with serve_issuer() as issuer:
        yield issuer


@pytest.fixture(scope="module")
def other() -> Iterator[JwtIssuer]:
    """Another issuer that is configured too, and uses the same key ids."""
    with serve_issuer() as issuer:
        yield issuer


def make_settings(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"agents": AGENTS, "auth": {"issuers": [*entries]}}


def make_entry(issuer: JwtIssuer, **changes: Any) -> dict[str, Any]:
    table = {"agent_claim": "groups", "agents": {"leads": "lead", "engineers": "engineer"}}
    return {"issuer": issuer.url, "audience": AUDIENCE, **table, **changes}


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, issuer: JwtIssuer, other: JwtIssuer
) -> Iterator[ServedApp]:
    settings = make_settings(make_entry(issuer), make_entry(other, audience="another"))
    with serve_app(tmp_path_factory.mktemp("served"), settings, [_order]) as app:
        yield app


def send(app: ServedApp, token: str, path: str = "/api/session") -> httpx2.Response:
    return app.rest.client.get(path, headers={"Authorization": f"Bearer {token}"})


def get_caller(app: ServedApp, token: str) -> tuple[str, str, str]:
    answer = send(app, token)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    return body["agent"], body["scope"], body["actor"]


# --- attacks --------------------------------------------------------------------------------------


def swap_claims(token: str, **changes: Any) -> str:
    """Return the token with other claims and the old signature."""
    head, claims, signature = token.split(".")
    padded = claims + "=" * (-len(claims) % 4)
    data = {**json.loads(base64.urlsafe_b64decode(padded)), **changes}
    return f"{head}.{encode(json.dumps(data))}.{signature}"


def sign_elsewhere(issuer: JwtIssuer, **headers: Any) -> str:
    """Return a JWT that is signed with a key that the issuer does not publish."""
    return FOREIGN.sign(headers, iss=issuer.url)


def make_jwk_headers(issuer: JwtIssuer) -> str:
    """Return a JWT that brings its own key, in every header that names one."""
    issuer.site.pages["/evil"] = page(json.dumps({"keys": FOREIGN.jwks()}).encode())
    url = issuer.site.url("/evil")
    return FOREIGN.sign(
        {"jwk": FOREIGN.jwks()[0], "jku": url, "x5u": url, "x5c": ["MIIB"]}, iss=issuer.url
    )


def unsigned(issuer: JwtIssuer, algorithm: str) -> str:
    return f"{encode(json.dumps({'alg': algorithm, 'kid': 'rsa'}))}.{encode(json.dumps(issuer.claims()))}."


def header(**fields: Any) -> str:
    return json.dumps({"alg": "RS256", "kid": "rsa", "typ": "JWT", **fields})


NOW: Final = int(time.time())
FOREIGN: Final = JwtIssuer(Site("http", 0, {}))  # its keys are not published
Attack = Callable[[JwtIssuer, JwtIssuer], str]
ATTACKS: Final[dict[str, tuple[str, Attack]]] = {
    "no algorithm": ("malformed", lambda i, _: unsigned(i, "none")),
    "no algorithm, with a signature": ("algorithm", lambda i, _: unsigned(i, "none") + "AAAA"),
    "no algorithm, in capitals": ("algorithm", lambda i, _: unsigned(i, "NONE") + "AAAA"),
    "no signature": ("malformed", lambda i, _: i.sign().rpartition(".")[0] + "."),
    "public key as an HMAC secret (PEM)": ("algorithm", lambda i, _: i.sign_with_public_key(Encoding.PEM)),
    "public key as an HMAC secret (DER)": ("algorithm", lambda i, _: i.sign_with_public_key(Encoding.DER)),
    "algorithm of another key": ("key", lambda i, _: i.sign({"kid": "ec"})),
    "algorithm that is not allowed": ("algorithm", lambda i, _: i.sign(algorithm="RS512")),
    "algorithm is a list": ("algorithm", lambda i, _: i.sign_parts(header(alg=["RS256"]), json.dumps(i.claims()))),
    "key id is a path": ("key", lambda i, _: sign_elsewhere(i, kid="../../../../dev/null")),
    "key id is SQL": ("key", lambda i, _: sign_elsewhere(i, kid="x' UNION SELECT 'AA' --")),
    "key id is a URL": ("key", lambda i, _: sign_elsewhere(i, kid=i.site.url("/evil"))),
    "key id is huge": ("key", lambda i, _: sign_elsewhere(i, kid="k" * 5000)),
    "key id is a number": ("key", lambda i, _: i.sign_parts(header(kid=7), json.dumps(i.claims()))),
    "key id with a null character": ("key", lambda i, _: sign_elsewhere(i, kid="rsa\0")),
    "no key id, another key": ("signature", lambda i, _: sign_elsewhere(i, kid=None)),
    "keys in headers": ("signature", lambda i, _: make_jwk_headers(i)),
    "another key with a known id": ("signature", lambda i, _: sign_elsewhere(i)),
    "key of another issuer with the same id": ("signature", lambda i, o: o.sign(iss=i.url)),
    "changed claims": ("signature", lambda i, _: swap_claims(i.sign(), groups=["leads"])),
    "wrong audience": ("audience", lambda i, _: i.sign(aud="https://elsewhere.example.com")),
    "audience of another issuer": ("audience", lambda i, _: i.sign(aud="another")),
    "prefix of the audience": ("audience", lambda i, _: i.sign(aud=AUDIENCE[:-1])),
    "no audience": ("claims", lambda i, _: i.sign(aud=None)),
    "audience is an object": ("audience", lambda i, _: i.sign(aud=[{"a": 1}])),
    "unknown issuer": ("issuer", lambda i, _: i.sign(iss="https://elsewhere.example.com")),
    "issuer with a slash": ("issuer", lambda i, _: i.sign(iss=f"{i.url}/")),
    "issuer is a list": ("issuer", lambda i, _: i.sign_parts(header(), json.dumps(i.claims(iss=[i.url])))),
    "no issuer": ("issuer", lambda i, _: i.sign(iss=None)),
    "expired": ("expired", lambda i, _: i.sign(exp=NOW - 60)),
    "expiry is missing": ("claims", lambda i, _: i.sign(exp=None)),
    "expiry is text": ("malformed", lambda i, _: i.sign_parts(header(), json.dumps(i.claims(exp="never")))),
    "expiry is infinite": ("malformed", lambda i, _: i.sign_parts(header(), json.dumps(i.claims(exp=float("inf"))))),
    "expiry overflows": (
        "malformed",
        lambda i, _: i.sign_parts(header(), json.dumps(i.claims()).replace('"exp": ', '"exp": 1e999, "x": ')),
    ),
    "not valid yet": ("early", lambda i, _: i.sign(nbf=NOW + 3600)),
    "issued in the future": ("early", lambda i, _: i.sign(iat=NOW + 3600)),
    "no subject": ("claims", lambda i, _: i.sign(sub=None)),
    "empty subject": ("claims", lambda i, _: i.sign(sub="")),
    "subject is a number": ("claims", lambda i, _: i.sign_parts(header(), json.dumps(i.claims(sub=7)))),
    "huge": ("too_large", lambda i, _: i.sign(padding="x" * MAX_JWT_CHARS)),
    "nested": ("header", lambda i, _: i.sign_parts(header(cty="JWT"), json.dumps(i.claims(jwt=i.sign())))),
    "claims are a JWT": ("malformed", lambda i, _: i.sign_parts(header(), json.dumps(i.sign()))),
    "claims are a list": ("malformed", lambda i, _: i.sign_parts(header(), "[]")),
    "claims are nested deeply": ("malformed", lambda i, _: i.sign_parts(header(), '{"a":' * 1 + "[" * 4000)),
    "duplicate claims": (
        "malformed",
        lambda i, _: i.sign_parts(header(), json.dumps(i.claims())[:-1] + ', "groups": ["leads"]}'),
    ),
    "duplicate headers": (
        "malformed",
        lambda i, _: i.sign_parts('{"alg": "none", "kid": "rsa", "alg": "RS256"}', json.dumps(i.claims())),
    ),
    "unknown critical header": (
        "header",
        lambda i, _: i.sign_parts(header(crit=["b64", "x"], x=1), json.dumps(i.claims())),
    ),
    "payload that is not encoded": (
        "header",
        lambda i, _: i.sign_parts(header(b64=False, crit=["b64"]), json.dumps(i.claims())),
    ),
    "type of another kind of token": ("header", lambda i, _: i.sign({"typ": "logout+jwt"})),
    "whitespace inside": ("malformed", lambda i, _: i.sign().replace(".", ". ", 1)),
    "line break": ("malformed", lambda i, _: i.sign().replace(".", ".\t", 1)),
    "padding": ("malformed", lambda i, _: i.sign() + "="),
    "four parts": ("malformed", lambda i, _: i.sign() + ".AAAA"),
    "encrypted": ("malformed", lambda _i, _o: "eyJhbGciOiJkaXIifQ..a.b.c"),
    "not UTF-8": ("malformed", lambda i, _: encode(b'{"\xff"}') + i.sign()[i.sign().index(".") :]),
    "empty parts": ("malformed", lambda _i, _o: "ey.."),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_rejected(
    served: ServedApp, issuer: JwtIssuer, other: JwtIssuer, name: str
) -> None:
    reason, attack = ATTACKS[name]
    issuer.site.requests.clear()
    token = attack(issuer, other)
    answer = send(served, token)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["details"]) == (
        401,
        "unauthorized",
        {"reason": reason},
    )
    assert error["message"].startswith("invalid token: ")
    assert answer.headers["www-authenticate"].startswith("Bearer resource_metadata=")
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]
    for part in [*token.split("."), "alice", "engineers"]:
        assert len(part) < 4 or part not in answer.text
    assert "/evil" not in {request.path for request in issuer.site.requests}


def test_two_authorization_headers_are_rejected(served: ServedApp, issuer: JwtIssuer) -> None:
    field = f"Authorization: Bearer {issuer.sign()}\r\n"
    lines = (
        f"GET /api/session HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{field}{field}\r\n"
    )
    status, headers, body = raw(served.rest.port, lines.encode())
    assert status == 401
    assert b"invalid Authorization header" in body
    assert headers["www-authenticate"].startswith("Bearer resource_metadata=")


def test_unknown_keys_are_fetched_at_most_once_a_minute(tmp_path: Path, issuer: JwtIssuer) -> None:
    with serve_app(tmp_path, make_settings(make_entry(issuer))) as app:
        assert send(app, issuer.sign()).status_code == 200
        issuer.site.requests.clear()
        statuses = {
            send(app, sign_elsewhere(issuer, kid=f"k{number}")).status_code for number in range(50)
        }
        assert statuses == {401}
        assert [request.path for request in issuer.site.requests] == [], (
            "keys were fetched a moment ago"
        )
        assert send(app, issuer.sign()).status_code == 200


# --- agents and scopes ----------------------------------------------------------------------------


def test_claims_select_the_agent_by_the_table(tmp_path: Path, issuer: JwtIssuer) -> None:
    place = issuer.url.removeprefix("http://")
    nested = make_entry(
        issuer, audience="nested", agent_claim="realm.roles", agents={"x": "lead"}, scope="admin"
    )
    email = make_entry(
        issuer, audience="email", agent_claim="email", agents={"a@example.com": "lead"}
    )
    leads = make_entry(issuer, agents={"leads": "lead"}, scope="approve")
    everybody = make_entry(
        issuer, agent_claim="sub", agents={"bot": "engineer"}, default_agent="guest"
    )
    with serve_app(tmp_path, make_settings(leads, everybody, nested, email)) as app:
        alice = f"subject alice ({place})"
        assert get_caller(app, issuer.sign(groups=["x", "leads"])) == ("lead", "approve", alice)
        assert get_caller(app, issuer.sign(sub="bot")) == (
            "engineer",
            "use",
            f"subject bot ({place})",
        )
        assert get_caller(app, issuer.sign(groups={"leads": 1}, algorithm="ES256")) == (
            "guest",
            "use",
            alice,
        )
        assert get_caller(app, issuer.sign(aud=["x", "nested"], realm={"roles": ["x"]})) == (
            "lead",
            "admin",
            alice,
        )
        assert (
            get_caller(app, issuer.sign(aud="email", email="a@example.com", email_verified=True))[0]
            == "lead"
        )
        hostile = get_caller(app, issuer.sign(sub="a\n\u202eb" + "x" * 300))[2]
        assert "\n" not in hostile
        assert "\u202e" not in hostile
        assert len(hostile) < 160
        for token in (
            issuer.sign(aud="nested"),
            issuer.sign(aud="nested", scope="owner admin", agent="lead", realm="x"),
            issuer.sign(aud="email", email="a@example.com"),
        ):
            answer = send(app, token)
            assert (answer.status_code, answer.json()["error"]["details"]) == (
                403,
                {"reason": "no_agent"},
            )
            assert "alice" not in answer.text
        run = app.rest.client.post(
            "/api/run", json={"command": "1"}, headers=bearer(issuer.sign(groups=["leads"]))
        )
        assert run.status_code == 403, "the scope approve calls no tools"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


LONG: Final = "x" * 100


@pytest.mark.parametrize(
    ("one", "other"),
    [(f"{LONG}a", f"{LONG}b"), ("a b", "a  b"), ("a\u202eb", "a\\u202eb"), ("a b", "a\tb")],
    ids=["long", "space", "invisible", "tab"],
)
def test_subjects_that_look_alike_do_not_see_each_others_runs(
    tmp_path: Path, issuer: JwtIssuer, one: str, other: str
) -> None:
    first = issuer.sign(sub=one)
    second = issuer.sign(sub=other)
    with serve_app(tmp_path, make_settings(make_entry(issuer))) as served:
        check_separate_runs(served, first, second)


def check_separate_runs(served: ServedApp, first: str, second: str) -> None:
    names = {get_caller(served, token)[2] for token in (first, second)}
    assert len(names) == 2, names
    ran = served.rest.client.post("/api/run", json={"command": "1"}, headers=bearer(first))
    assert ran.json()["isError"] is False, ran.text
    (run,) = send(served, first, "/api/runs").json()["runs"]
    assert send(served, second, "/api/runs").json()["runs"] == []
    assert send(served, second, f"/api/runs/{run['id']}").status_code == 404


def test_a_subject_cannot_have_the_name_of_another(served: ServedApp, issuer: JwtIssuer) -> None:
    name = get_caller(served, issuer.sign(sub="a  b"))[2]
    copied = name.removeprefix("subject ").rpartition(" (")[0]
    assert get_caller(served, issuer.sign(sub=copied))[2] != name


def test_the_subject_is_in_runs_audit_and_log(tmp_path: Path, issuer: JwtIssuer) -> None:
    log = Log(tmp_path / "log.jsonl")
    with serve_app(tmp_path, make_settings(make_entry(issuer)), [_order], log=log) as app:
        token = issuer.sign(sub="carol", note=CANARY)
        body = {"command": "shop.order(item='tea')"}
        ran = app.rest.client.post("/api/run", json=body, headers=bearer(token))
        assert ran.json()["isError"] is False, ran.text
        actor = f"subject carol ({issuer.url.removeprefix('http://')})"
        (run,) = send(app, token, "/api/runs").json()["runs"]
        assert (run["actor"], run["agent"]) == (actor, "engineer")
        assert send(app, issuer.sign(sub="dave"), f"/api/runs/{run['id']}").status_code == 404, (
            "of another person"
        )
    audit = [
        json.loads(line)
        for line in (tmp_path / "logs" / "audit.jsonl").read_text("utf-8").splitlines()
    ]
    assert [line["actor"] for line in audit if line["name"] == "call"] == [actor]
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text("utf-8").splitlines()]
    for name in ("http.request", "run", "tool.call"):
        assert actor in {line.get("actor") for line in lines if line["name"] == name}, name
    for file in tmp_path.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert token.encode() not in content
            assert token.rpartition(".")[2].encode() not in content
            assert CANARY.encode() not in content


# --- keys and issuers -----------------------------------------------------------------------------


def test_new_keys_are_found_and_old_ones_expire(
    tmp_path: Path, issuer: JwtIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve_app(tmp_path, make_settings(make_entry(issuer))) as app:
        assert send(app, issuer.sign()).status_code == 200
        fresh = JwtIssuer(issuer.site)
        old, (new, _) = issuer.jwks(), fresh.jwks()
        issuer.publish(*old, {**new, "kid": "next"})
        token = fresh.sign({"kid": "next"})
        assert send(app, token).json()["error"]["details"] == {"reason": "key"}, (
            "fetched less than a minute ago"
        )
        monkeypatch.setattr(issuers, "UNKNOWN_KEY_SECONDS", 0.0)
        assert send(app, token).status_code == 200
        issuer.publish({**new, "kid": "next"})
        monkeypatch.setattr(issuers, "REFRESH_SECONDS", 0.0)  # the next request starts a refresh
        assert eventually(lambda: send(app, issuer.sign()).status_code == 401)
        assert send(app, token).status_code == 200
    issuer.publish()


@pytest.mark.parametrize(
    "way", ["status", "garbage", "redirect", "other issuer", "metadata service", "plain http"]
)
def test_an_issuer_that_cannot_be_used_rejects_everybody(tmp_path: Path, way: str) -> None:
    with serve_issuer() as issuer:
        hostile = {
            "metadata service": "http://169.254.169.254/keys",
            "plain http": "http://example.com/keys",
        }
        if way in hostile:
            issuer.publish(jwks_uri=hostile[way])
        else:
            location = ("Location", issuer.site.url(JWKS))
            pages = {
                "status": page(b"{}", status=500),
                "garbage": page(b"[" * 100_000),
                "redirect": page(b"", location, status=302),
                "other issuer": page(
                    json.dumps({"issuer": "https://x.example", "jwks_uri": location[1]}).encode()
                ),
            }
            issuer.site.pages[DISCOVERY] = pages[way]
        with serve_app(tmp_path, make_settings(make_entry(issuer))) as app:
            for _ in range(3):
                answer = send(app, issuer.sign())
                assert (answer.status_code, answer.json()["error"]["code"]) == (
                    503,
                    "issuer_unavailable",
                )
                assert answer.headers["retry-after"] == "5"
            assert len(issuer.site.requests) == 1, "a failure is remembered for a moment"
            assert app.rest.client.get("/api/session").status_code == 200, (
                "the owner needs no issuer"
            )


def test_weak_and_secret_keys_of_an_issuer_are_ignored(tmp_path: Path) -> None:
    with serve_issuer() as issuer:
        issuer.rsa_key = rsa.generate_private_key(65537, 1024)
        weak, strong = issuer.jwks()
        issuer.publish(
            weak,
            strong,
            {"kty": "oct", "k": encode("secret" * 8), "kid": "oct"},
            {"kty": "RSA"},
            {},
        )
        with serve_app(tmp_path, make_settings(make_entry(issuer))) as app:
            assert send(app, issuer.sign(algorithm="ES256")).status_code == 200
            token = issuer.sign_parts(header(), json.dumps(issuer.claims()))
            assert send(app, token).json()["error"]["details"] == {"reason": "key"}
