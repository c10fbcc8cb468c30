"""Run the official conformance suite for both protocol versions, and MCP Inspector in strict mode.

The suite needs tools, resources and prompts with fixed names: an upstream server provides them,
OneTool exposes them.
"""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.conformance_support import CONFORMANCE, INSPECTOR, fixtures, install_program, run_node
from tests.rest_support import serve_process
from tests.support import PROGRAM, configure, environment

ROOT = Path(__file__).parents[2]
SUMMARY = re.compile(r"^([✓✗]) ([\w-]+): (\d+) passed, (\d+) failed", re.MULTILINE)
TASKS = "tasks-"  # an extension that is not scored and that OneTool lacks
SCENARIOS = {"2026-07-28": 50, "2025-11-25": 33}


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("revision", "upstream"),
    [("2026-07-28", "modern"), ("2025-11-25", "modern"), ("2025-11-25", "legacy")],
)
def test_the_conformance_suite_passes(tmp_path: Path, revision: str, upstream: str) -> None:
    suite = install_program(CONFORMANCE) / "dist" / "index.js"
    configure(tmp_path, yaml.safe_dump({"servers": {"fixtures": fixtures(upstream)}}))
    with serve_process(tmp_path, "--expose", "fixtures") as (_, info):
        done = run_node(suite, "server", "--url", f"{info['url']}/mcp", "--requirements", revision)
    results = {name: int(failed) for _, name, _, failed in SUMMARY.findall(done.stdout)}
    assert len(results) == SCENARIOS[revision], done.stdout[-3000:] + done.stderr
    failed = [name for name, number in results.items() if number and not name.startswith(TASKS)]
    assert failed == [], done.stdout[-6000:]
    assert done.returncode == 0


# --- sign-ins -------------------------------------------------------------------------------------

# Scenarios of extensions that OneTool lacks: auth/enterprise-managed-authorization, auth/dpop,
# auth/dpop-nonce, auth/wif-jwt-bearer.
CI_AUTH_SCENARIOS = ("scope-step-up", "authorization-server-migration")
AUTH_SCENARIOS = (
    *(
        "metadata-default",
        "metadata-var1",
        "metadata-var2",
        "metadata-var3",
        "metadata-issuer-mismatch",
        "basic-cimd",
    ),
    *("scope-from-www-authenticate", "scope-from-scopes-supported", "scope-omitted-when-undefined"),
    *(
        "scope-retry-limit",
        "token-endpoint-auth-basic",
        "token-endpoint-auth-post",
        "token-endpoint-auth-none",
    ),
    *(
        "pre-registration",
        "resource-mismatch",
        "offline-access-scope",
        "offline-access-not-supported",
    ),
    *(
        "iss-supported",
        "iss-not-advertised",
        "iss-supported-missing",
        "iss-wrong-issuer",
        "iss-unexpected",
    ),
    *("iss-normalized", "client-credentials-jwt", "client-credentials-basic"),
    *("2025-03-26-oauth-metadata-backcompat", "2025-03-26-oauth-endpoint-fallback"),
)
NIGHTLY = os.environ.get("ONETOOL_NIGHTLY") == "1"


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("scenario", CI_AUTH_SCENARIOS + (AUTH_SCENARIOS if NIGHTLY else ()))
def test_sign_ins_conform(scenario: str) -> None:
    suite = install_program(CONFORMANCE) / "dist" / "index.js"
    client = f"{sys.executable} -m tests.conformance_client"
    done = run_node(
        suite,
        "client",
        "--command",
        client,
        "--scenario",
        f"auth/{scenario}",
        "--timeout",
        "90000",
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    assert ", 0 failed, 0 warnings" in done.stdout + done.stderr


# --- Inspector ------------------------------------------------------------------------------------


def run_inspector(home: Path, *arguments: str) -> Any:
    """Run Inspector, check that it reports no warnings, and return its output."""
    script = install_program(INSPECTOR) / "clients" / "launcher" / "build" / "index.js"
    done = run_node(script, "--cli", *arguments, cwd=home, env=environment(home))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stderr + done.stdout
    return json.loads(done.stdout)


@pytest.mark.slow
def test_inspector_reports_no_warnings_over_stdio(tmp_path: Path) -> None:
    listed = run_inspector(tmp_path, PROGRAM, "--method", "tools/list", "--strict")
    assert [each["name"] for each in listed["tools"]] == ["run"]
    called = run_inspector(
        tmp_path,
        PROGRAM,
        "--method",
        "tools/call",
        "--tool-name",
        "run",
        "--tool-arg",
        "command=6 * 7",
    )
    assert called["content"][0]["text"] == "42"


@pytest.mark.nightly
@pytest.mark.slow
def test_inspector_reports_no_warnings_over_http(tmp_path: Path) -> None:
    configure(tmp_path, yaml.safe_dump({"servers": {"fixtures": fixtures()}}))
    with serve_process(tmp_path, "--expose", "fixtures", "machine") as (_, info):
        address = [f"{info['url']}/mcp", "--transport", "http"]
        listed = run_inspector(tmp_path, *address, "--method", "tools/list", "--strict")
        assert {"run", "test_simple_text", "now"} <= {each["name"] for each in listed["tools"]}
        run = ["--method", "tools/call", "--tool-name", "run", "--tool-arg", "command=6 * 7"]
        assert run_inspector(tmp_path, *address, *run)["content"][0]["text"] == "42"
        direct = run_inspector(
            tmp_path, *address, "--method", "tools/call", "--tool-name", "test_simple_text"
        )
        assert direct["content"][0]["text"] == "This is a simple text response for testing."
        assert (
            run_inspector(tmp_path, *address, "--method", "resources/list")["resources"][0]["uri"]
            == "ot://tools"
        )
        assert run_inspector(tmp_path, *address, "--method", "prompts/list")["prompts"]
