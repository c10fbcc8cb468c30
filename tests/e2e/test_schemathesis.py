"""Whether the server does what `/openapi.json` says, asked by schemathesis: everything that fits, and what does not.

How much is asked is a number of examples and no time, so that a slow machine asks as much as a fast one.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cells_support import NIGHTLY
from tests.rest_support import ServedApp, serve_app
from tests.support import environment, give

EXAMPLES = 200 if NIGHTLY else 3  # of each operation, beside those at the edges of its schema
LONGEST = 3_000 if NIGHTLY else 300  # seconds, on a machine that has much else to do
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

# A precondition that fails is no fault of the request.
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "3xx", "401", "403", "404", "409", "412", "429", "5xx"]

# A page token is signed: no schema can say which texts are one. Empty, it means the first page.
[[operations]]
include-method = "GET"
parameters = {{ "query.pageToken" = "" }}

# It has no end.
[[operations]]
include-path = "/api/activity"
enabled = false

# What a tool takes, and what a document or an archive is, stands in no schema of ours.
[[operations]]
include-path-regex = "^/api/(import|tools/[^/]+/call)$"
checks = {{ positive_data_acceptance = {{ enabled = false }} }}

# Templates, selectors and schemas have grammars of their own, which JSON Schema cannot tell; and the number 5.0 is an
# integer to JSON Schema and none to us.
[[operations]]
include-method = "PUT"
include-path-regex = "/version/"
checks = {{ positive_data_acceptance = {{ enabled = false }} }}
"""
# What exists is asked for, too: chance would never find an id. Deleting it would leave nothing to ask for.
EXISTING = """
[parameters]
"path.bundleID" = "{bundle}"
"path.toolSlug" = "now"
"path.version" = "1.0"
"path.name" = "sample.give"

[[operations]]
include-method = "DELETE"
enabled = false

# What is put onto itself is a conflict; a switched off bundle or tool refuses, and so do arguments that do not fit.
[[operations]]
include-path-regex = "invoke$"
checks = {{ positive_data_acceptance = {{ enabled = false }} }}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApp]:
    with serve_app(tmp_path_factory.mktemp("rest"), tools=[give]) as server:
        yield server


@pytest.mark.slow
@pytest.mark.timeout(LONGEST + 20)
@pytest.mark.parametrize("what", ["anything", "what exists"])
def test_the_document_is_true(server: ServedApp, tmp_path: Path, what: str) -> None:
    rules = RULES.format(examples=EXAMPLES)
    if what == "what exists":
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
        timeout=LONGEST,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-2000:]}"
    assert "Operations:" in done.stdout
