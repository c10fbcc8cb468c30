"""One sign-in with an authorization server that others wrote: `oidc-provider` of npm, with its own
login pages.
"""

import json
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from tests.authorization_server import authorization_server
from tests.conformance_support import NODE, install_program
from tests.oauth_support import configure_server, read_url, start_login
from tests.support import run_cli

PACKAGE = "oidc-provider@9.13.3"
SCRIPT = Path(__file__).parent / "servers" / "oidc_provider.mjs"
FORM = re.compile(r'action="([^"]+)"')


@contextmanager
def run_provider() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    directory = install_program(PACKAGE)
    command = [str(NODE), str(SCRIPT), str(directory), str(port)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        assert "ready" in process.stdout.readline()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.communicate()


def sign_in_on_pages(url: str, user: str) -> str:
    """Fill in the pages of the provider, as a person does, and return the page of the callback."""
    with httpx2.Client(trust_env=False, timeout=30, follow_redirects=True) as browser:
        page = browser.get(url)
        for fields in ({"prompt": "login", "login": user, "password": "x"}, {"prompt": "consent"}):
            form = FORM.search(page.text)
            assert form is not None, f"{page.url} {page.text}"
            page = browser.post(str(page.url.join(form[1])), data=fields)
    return page.text


@pytest.mark.slow
def test_a_sign_in_with_oidc_provider(tmp_path: Path) -> None:
    with run_provider() as issuer, authorization_server() as protected:
        protected.accept_tokens_of(issuer)
        configure_server(
            tmp_path, protected, auth={"type": "oauth", "scopes": ["openid", "offline_access"]}
        )
        with start_login(tmp_path, "gh", "--no-browser") as process:
            assert "Signed in" in sign_in_on_pages(read_url(process), "ada")
            output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, output + errors
        assert json.loads(run_cli(tmp_path, "call", "gh.whoami").stdout) == "ada"
        state = json.loads(run_cli(tmp_path, "servers", "--json").stdout)["servers"][0]
        assert (state["signed_in"], state["sign_ins"][0]["issuer"]) == (True, issuer)
        assert state["user"] in {"ada", "ada@example.com"}
        time.sleep(3)  # the token expires
        assert json.loads(run_cli(tmp_path, "call", "gh.whoami").stdout) == "ada"
        assert run_cli(tmp_path, "logout", "gh").returncode == 0
