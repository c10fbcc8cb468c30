"""OpenID providers for tests, on loopback: one that signs whatever a test wants, and a certified
one from npm.
"""

import base64
import contextlib
import hashlib
import hmac
import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2
import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from tests.conftest import find_program
from tests.http_support import Site, page, serve_site
from tests.proxy_support import CACHE, install_once

AUDIENCE: Final = "https://tools.example.com/mcp"
DISCOVERY: Final = "/.well-known/openid-configuration"
JWKS: Final = "/keys"
OIDC_PROVIDER: Final = "oidc-provider@9.13.3"
SCRIPT: Final = Path(__file__).parent / "e2e" / "servers" / "provider.mjs"
JSON_TYPE: Final = ("Content-Type", "application/json")


# --- hand-signed JWTs -----------------------------------------------------------------------------


@dataclass
class JwtIssuer:
    """An issuer that signs any JWT. `site` records the requests for its documents."""

    site: Site
    rsa_key: rsa.RSAPrivateKey = field(
        default_factory=lambda: rsa.generate_private_key(65537, 2048)
    )
    ec_key: ec.EllipticCurvePrivateKey = field(
        default_factory=lambda: ec.generate_private_key(ec.SECP256R1())
    )

    @property
    def url(self) -> str:
        return self.site.url("")

    def publish(self, *keys: Mapping[str, Any], **metadata: Any) -> None:
        """Publish these keys, or both of its own, and a discovery document."""
        known = {"issuer": self.url, "jwks_uri": self.site.url(JWKS), **metadata}
        self.site.pages[DISCOVERY] = page(json.dumps(known).encode(), JSON_TYPE)
        self.site.pages[JWKS] = page(
            json.dumps({"keys": [*(keys or self.jwks())]}).encode(), JSON_TYPE
        )

    def jwks(self) -> list[dict[str, Any]]:
        found: list[tuple[Any, Any, str]] = [
            (jwt.algorithms.RSAAlgorithm, self.rsa_key, "rsa"),
            (jwt.algorithms.ECAlgorithm, self.ec_key, "ec"),
        ]
        return [
            {**json.loads(kind.to_jwk(key.public_key())), "kid": name, "use": "sig"}
            for kind, key, name in found
        ]

    def claims(self, **changes: Any) -> dict[str, Any]:
        """Return valid claims with changes; None removes a claim."""
        now = int(time.time())
        valid = {
            "iss": self.url,
            "sub": "alice",
            "aud": AUDIENCE,
            "exp": now + 300,
            "iat": now,
            "groups": ["engineers"],
        }
        return {name: value for name, value in {**valid, **changes}.items() if value is not None}

    def sign(
        self, headers: Mapping[str, Any] | None = None, algorithm: str = "RS256", **changes: Any
    ) -> str:
        key: Any = self.ec_key if algorithm.startswith("ES") else self.rsa_key
        head = {"kid": "ec" if algorithm.startswith("ES") else "rsa", **(headers or {})}
        head = {name: value for name, value in head.items() if value is not None}
        return jwt.encode(self.claims(**changes), key, algorithm, headers=head)

    def sign_parts(self, header: str, claims: str) -> str:
        """Sign a header and claims that are any text, with the RSA key."""
        signed = f"{encode(header)}.{encode(claims)}"
        signature = jwt.algorithms.RSAAlgorithm(jwt.algorithms.RSAAlgorithm.SHA256).sign(
            signed.encode(), self.rsa_key
        )
        return f"{signed}.{encode(signature)}"

    def sign_with_public_key(self, encoding: Encoding) -> str:
        """Return an HS256 signature whose key is the public key: a verifier that trusts `alg`
        accepts it.
        """
        kind = PublicFormat.SubjectPublicKeyInfo
        secret = self.rsa_key.public_key().public_bytes(encoding, kind)
        signed = f"{encode(json.dumps({'alg': 'HS256', 'kid': 'rsa'}))}.{encode(json.dumps(self.claims()))}"
        return f"{signed}.{encode(hmac.digest(secret, signed.encode(), hashlib.sha256))}"


def encode(part: str | bytes) -> str:
    data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@contextlib.contextmanager
def serve_issuer() -> Iterator[JwtIssuer]:
    with serve_site() as site:
        issuer = JwtIssuer(site)
        issuer.publish()
        yield issuer


# --- a certified provider -------------------------------------------------------------------------


@dataclass(frozen=True)
class Provider:
    """A running oidc-provider.

    Everybody can sign in; the name is the subject, and `boss` is in the group `leads`.
    """

    url: str

    def sign_in(self, url: str, name: str) -> str:
        """Follow an authorization URL as a person with this name, and return the URL of the
        callback.
        """
        with httpx2.Client(trust_env=False, timeout=30) as browser:
            answer = browser.get(url)
            for _ in range(12):
                if answer.status_code in {302, 303}:
                    target = str(httpx2.URL(str(answer.url)).join(answer.headers["location"]))
                    if not target.startswith(self.url):
                        return target
                    answer = browser.get(target)
                    continue
                assert answer.status_code == 200, answer.text
                prompt = "login" if 'name="login"' in answer.text else "consent"
                form = {
                    "prompt": prompt,
                    **({"login": name, "password": "x"} if prompt == "login" else {}),
                }
                action = answer.text.partition('action="')[2].partition('"')[0]
                answer = browser.post(str(httpx2.URL(str(answer.url)).join(action)), data=form)
        raise AssertionError(f"no callback: {answer.text}")


@contextlib.contextmanager
def serve_provider(folder: Path, redirect_url: str) -> Iterator[Provider]:
    """Start oidc-provider with node. Its client `onetool` has the secret `s3cr3t-of-the-client`."""
    modules = CACHE / "oidc"
    command = [
        find_program("npm"),
        "install",
        "--no-audit",
        "--no-fund",
        "--prefix",
        str(modules),
        OIDC_PROVIDER,
    ]
    install_once(modules, command, [OIDC_PROVIDER])
    script = folder / "provider.mjs"  # modules are searched beside the script
    script.write_text(SCRIPT.read_text("utf-8"), encoding="utf-8")
    (folder / "node_modules").symlink_to(modules / "node_modules")
    settings = json.dumps({"redirect": redirect_url})
    process = subprocess.Popen(
        [find_program("node"), str(script), settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the provider did not start"
        yield Provider(json.loads(line)["url"])
    finally:
        process.kill()
        process.communicate()
