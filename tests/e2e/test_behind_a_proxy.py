"""Test a server behind nginx with TLS, configured as in the guide."""

import asyncio
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from playwright.sync_api import Browser, expect
from tests.e2e.test_docs import ROOT, parse_blocks
from tests.openapi_support import free_port
from tests.rest_support import serve_process
from tests.support import TIMEOUT_SECONDS, configure, eventually, get_texts as texts
from tests.ui_support import open_page, screenshot_directory

from onetool.server.http.request_checks import MAX_FAILURES
from onetool.util.token_ids import hash_token

GUIDE = ROOT / "docs" / "guide" / "6-run-it-for-a-team.md"
NAME = "tools.localhost"  # browsers resolve it to this machine
TOKEN = "ot_of-somebody-far-away"
TOKENS = f"tokens: [{{name: me, hash: {hash_token(TOKEN)}, agent: default}}]"
BEARER = {"authorization": f"Bearer {TOKEN}"}


@dataclass
class Site:
    """Both ends of the proxy; `trusted` is the certificate authority."""

    url: str
    port: int
    trusted: ssl.SSLContext

    def client(self, **headers: str) -> httpx2.Client:
        return httpx2.Client(
            base_url=self.url, verify=self.trusted, headers={"host": self.host, **headers}
        )

    @property
    def host(self) -> str:
        return f"{NAME}:{self.url.rpartition(':')[2]}"

    def ask(self, method: str = "GET", path: str = "/api/tools", **headers: str) -> int:
        with self.client(**headers) as client:
            return client.request(method, path, json={} if method == "POST" else None).status_code


@contextmanager
def site(directory: Path, nginx: str, settings: str) -> Iterator[Site]:
    configure(directory, settings)
    with serve_process(directory) as (_, info):
        front = free_port()
        certificate = _create_certificate(directory)
        command = [
            nginx,
            "-p",
            str(directory),
            "-e",
            "stderr",
            "-c",
            str(_write_configuration(directory, front, info["port"])),
        ]
        proxy = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        try:
            found = Site(
                f"https://127.0.0.1:{front}",
                info["port"],
                ssl.create_default_context(cafile=certificate),
            )
            assert eventually(lambda: proxy.poll() is not None or _is_ready(found))
            assert proxy.poll() is None, proxy.communicate()
            yield found
        finally:
            proxy.terminate()
            proxy.communicate(timeout=TIMEOUT_SECONDS)


def _create_certificate(directory: Path) -> Path:
    names = f"subjectAltName=DNS:{NAME},IP:127.0.0.1"
    made = ["-keyout", f"{directory}/tools.key", "-out", f"{directory}/tools.pem"]
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-subj",
            f"/CN={NAME}",
            "-addext",
            names,
            *made,
        ],
        check=True,
        capture_output=True,
    )
    return directory / "tools.pem"


def _write_configuration(directory: Path, front: int, behind: int) -> Path:
    """Write the configuration of the guide with the ports, names and files of this test."""
    (block,) = (found.text for found in parse_blocks(GUIDE) if found.kind == "nginx")
    for written, here in {
        "listen 443 ssl": f"listen 127.0.0.1:{front} ssl",
        "tools.example.com": NAME,
        "/etc/ssl": str(directory),
        "127.0.0.1:8765": f"127.0.0.1:{behind}",
    }.items():
        assert written in block
        block = block.replace(written, here)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "\n".join(f"{kind}_temp_path {directory}/{kind};" for kind in kinds)
    file = directory / "nginx.conf"
    alone = f"daemon off; master_process off; pid {directory}/nginx.pid; events {{}}"
    file.write_text(f"{alone}\nhttp {{ access_log off; {paths}\n{block} }}")
    return file


def _is_ready(found: Site) -> bool:
    try:
        return found.ask(path="/healthz") > 0
    except httpx2.TransportError:
        return False


@pytest.fixture(scope="module")
def nginx(needs: Callable[[str], str]) -> str:
    return needs("nginx")


@pytest.fixture(scope="module")
def named_site(tmp_path_factory: pytest.TempPathFactory, nginx: str) -> Iterator[Site]:
    with site(
        tmp_path_factory.mktemp("named"), nginx, f"auth: {{allowed_hosts: [{NAME}], {TOKENS}}}"
    ) as found:
        yield found


def test_forwarded_requests_through_nginx_need_a_token(named_site: Site) -> None:
    assert named_site.ask(path="/healthz") == 200
    assert named_site.ask() == 401
    assert named_site.ask(authorization="Bearer ot_wrong") == 401
    assert named_site.ask(**BEARER) == 200
    assert (
        httpx2.get(f"http://127.0.0.1:{named_site.port}/api/tools", trust_env=False).status_code
        == 200
    ), "the owner"


def test_the_host_alone_requires_a_token(named_site: Site) -> None:
    """A token is required even if the proxy adds no forwarding header."""
    url = f"http://127.0.0.1:{named_site.port}/api/tools"
    assert httpx2.get(url, headers={"host": NAME}, trust_env=False).status_code == 401
    assert httpx2.get(url, headers={"host": NAME, **BEARER}, trust_env=False).status_code == 200
    assert (
        httpx2.get(url, headers={"host": "evil.example", **BEARER}, trust_env=False).status_code
        == 403
    )


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (f"https://{NAME}", 403),
        ("https://evil.example", 403),
        ("http://127.0.0.1", 403),
        ("null", 403),
    ],
)
def test_cross_origin_requests_are_rejected_through_nginx(
    named_site: Site, origin: str, status: int
) -> None:
    """The first origin is the same host on another port."""
    assert named_site.ask("POST", "/api/run", origin=origin, **BEARER) == status


def test_same_origin_requests_are_accepted_through_nginx(named_site: Site) -> None:
    assert (
        named_site.ask(
            "POST", "/api/tools/machine.now/call", origin=f"https://{named_site.host}", **BEARER
        )
        == 200
    )


async def _run_over_mcp(found: Site) -> list[str]:
    headers = {"host": found.host, **BEARER}
    async with (
        httpx2.AsyncClient(verify=found.trusted, headers=headers, timeout=TIMEOUT_SECONDS) as http,
        Client(streamable_http_client(f"{found.url}/mcp", http_client=http)) as client,
    ):
        return texts(await client.call_tool("run", {"command": "1 + 1"}))


def test_mcp_works_through_nginx(named_site: Site) -> None:
    assert asyncio.run(_run_over_mcp(named_site)) == ["2"]


def test_the_ui_works_through_nginx(named_site: Site, browser: Browser, tmp_path: Path) -> None:
    address = f"https://{named_site.host}"
    with open_page(
        browser, address, screenshot_directory(tmp_path), ignore_https_errors=True
    ) as visit:
        page = visit.page
        dialog = page.get_by_role("dialog", name="This server needs a token")
        dialog.get_by_label("Token").fill(TOKEN)
        dialog.get_by_label("Token").press("Enter")
        expect(page.locator(".tool-row").first).to_be_visible()
        visit.go("run")
        page.locator("ot-editor textarea").fill("21 * 2")
        page.locator("ot-run .run").click()
        expect(page.locator(".outcome-bar")).to_contain_text("Done", timeout=TIMEOUT_SECONDS * 1000)


def test_failed_sign_ins_of_one_client_do_not_limit_others(tmp_path: Path, nginx: str) -> None:
    """The proxy names the addresses of its clients; a client that names another one changes
    nothing.
    """
    auth = f"auth: {{allowed_hosts: [{NAME}], trusted_proxies: [127.0.0.1], {TOKENS}}}"
    with site(tmp_path, nginx, auth) as found:
        for number in range(MAX_FAILURES):
            wrong = {"authorization": f"Bearer ot_{number}", "x-forwarded-for": f"192.0.2.{number}"}
            assert ask_from("127.0.0.2", found, **wrong) == 401
        assert ask_from("127.0.0.2", found, **BEARER) == 429
        assert ask_from("127.0.0.3", found, **BEARER) == 200


def test_without_trusted_proxies_clients_of_a_proxy_share_a_limit(
    tmp_path: Path, nginx: str
) -> None:
    with site(tmp_path, nginx, f"auth: {{allowed_hosts: [{NAME}], {TOKENS}}}") as found:
        for number in range(MAX_FAILURES):
            assert ask_from("127.0.0.2", found, authorization=f"Bearer ot_{number}") == 401
        assert ask_from("127.0.0.3", found, **BEARER) == 429


def ask_from(address: str, found: Site, **headers: str) -> int:
    """Send a request to the proxy from this address, and return the status."""
    transport = httpx2.HTTPTransport(verify=found.trusted, local_address=address)
    with httpx2.Client(
        base_url=found.url, transport=transport, headers={"host": found.host, **headers}
    ) as client:
        return client.get("/api/tools").status_code


def test_an_unknown_host_is_rejected_with_the_setting_to_add(tmp_path: Path, nginx: str) -> None:
    with site(tmp_path, nginx, f"auth: {{{TOKENS}}}") as found, found.client(**BEARER) as client:
        answer = client.get("/api/tools")
    assert answer.status_code == 403
    assert (
        f"add this to onetool.yaml: auth: {{allowed_hosts: [{NAME}]}}"
        in answer.json()["error"]["message"]
    )


def test_an_allowed_host_without_tokens_prevents_the_start(tmp_path: Path) -> None:
    configure(tmp_path, f"auth: {{allowed_hosts: [{NAME}]}}")
    wanted = r"(?s)cannot serve tools\.localhost without authentication.*remove auth\.allowed_hosts"
    with pytest.raises(AssertionError, match=wanted), serve_process(tmp_path):
        pass
