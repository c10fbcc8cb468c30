"""Test with schemathesis that the server conforms to `/openapi.json`, with valid and invalid
requests.

The number of examples is fixed instead of the time, so that slow machines test as much as fast
ones.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cells_support import NIGHTLY
from tests.rest_support import ServedApp, serve_app
from tests.support import environment, give

EXAMPLES = 200 if NIGHTLY else 1  # for each operation, in addition to the edge cases of its schema
TIMEOUT_SECONDS = 3_000 if NIGHTLY else 600  # for a busy machine
SCHEMATHESIS = str(Path(sys.executable).with_name("schemathesis"))
RULES = """
seed = 20261115
workers = 1
warnings = false

[generation]
max-examples = {examples}
deterministic = true
database = "none"

[phases.stateful]
enabled = false

# A failed precondition does not make a request invalid.
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "3xx", "401", "403", "404", "409", "412", "429", "5xx"]

# A page token is signed, so the schema cannot describe valid tokens. An empty token means the first page.
[[operations]]
include-method = "GET"
parameters = {{ "query.pageToken" = "" }}

# Endless streams.
[[operations]]
include-path-regex = "^/api/(activity|changes)$"
enabled = false

# The schema does not describe the arguments of tools, documents, archives and definitions of tools.
[[operations]]
include-path-regex = "^/api/(import|request-preview|tools/[^/]+/call)$"
checks = {{ positive_data_acceptance = {{ enabled = false }} }}

# JSON Schema cannot describe the syntax of templates, selectors and schemas; and it accepts 5.0 as an integer, which
# OneTool does not.
[[operations]]
include-method = "PUT"
include-path-regex = "/version/"
checks = {{ positive_data_acceptance = {{ enabled = false }} }}
"""
# Also test existing resources, because random ids never match. Deletion is disabled, because it
# would remove them.
EXISTING = """
[parameters]
"path.bundleID" = "{bundle}"
"path.toolSlug" = "now"
"path.version" = "1.0"
"path.name" = "sample.give"

[[operations]]
include-method = "DELETE"
enabled = false

# Repeated writes conflict, disabled bundles and tools reject calls, and random arguments are invalid.
[[operations]]
include-path-regex = "invoke$"
checks = {{ positive_data_acceptance = {{ enabled = false }} }}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApp]:
    with serve_app(tmp_path_factory.mktemp("rest"), tools=[give]) as server:
        yield server


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_SECONDS + 20)
@pytest.mark.parametrize("target", [pytest.param("random", marks=pytest.mark.nightly), "existing"])
def test_the_server_conforms_to_its_openapi_document(
    server: ServedApp, tmp_path: Path, target: str
) -> None:
    rules = RULES.format(examples=EXAMPLES)
    if target == "existing":
        bundle = server.rest.bundle()
        server.rest.tool(bundle)
        rules += EXISTING.format(bundle=bundle.rpartition("/")[2])
    (tmp_path / "schemathesis.toml").write_text(rules, encoding="utf-8")
    done = subprocess.run(
        [SCHEMATHESIS, "--no-color", "run", f"http://127.0.0.1:{server.rest.port}/openapi.json"],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        encoding="utf-8",
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-2000:]}"
    assert "Operations:" in done.stdout
