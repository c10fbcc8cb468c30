"""A running replica, and somebody who can write to its database but has no `ONETOOL_KEY`."""

from pathlib import Path

import psycopg
import pytest
from tests.replicas_support import start_replicas
from tests.rest_support import get_error_code, http_draft
from tests.support import eventually

SETTINGS = """\
agents: {default: {permissions: [read, write, network]}}
http: {allowedHosts: [127.0.0.1], allowPrivateAddresses: true}
"""
CHANGED = "UPDATE onetool.generations SET number = number + 1 WHERE kind = %s RETURNING number"
FORGED = (
    "UPDATE onetool.documents SET content = 'forged', version = %s WHERE kind = 'bundles' AND name"
    " LIKE '%%@1.json'"
)

pytestmark = pytest.mark.slow


def test_forged_tools_and_a_lost_list_of_disabled_tools_fail_closed(
    postgres_url: str, tmp_path: Path
) -> None:
    with (
        start_replicas(tmp_path, postgres_url, 1, SETTINGS) as (replica,),
        psycopg.connect(postgres_url, autocommit=True) as database,
    ):
        rest = replica.rest
        tool = f"{rest.bundle('rain')}/tools/now/version/1"
        assert rest.send("PUT", tool, http_draft("http://127.0.0.1:9/")).status_code == 201
        assert rest.send("GET", "/api/tools/rain.now").status_code == 200
        rest.switch("/api/tools/machine.now", on=False)
        (generation,) = database.execute(CHANGED, ("bundles",)).fetchone() or (0,)
        database.execute(FORGED, (generation,))
        assert eventually(lambda: rest.send("GET", "/api/tools/rain.now").status_code == 404)
        for problems in (
            "\n".join(rest.get("/api/health")["problems"]),
            replica.cli("doctor").stdout,
        ):
            assert problems.count("without ONETOOL_KEY") == 1
            assert "now@1.json" in problems
            assert "store these bundles and tools again" in problems
        assert rest.send("PUT", tool, http_draft("http://127.0.0.1:9/")).status_code == 201
        assert eventually(lambda: rest.send("GET", "/api/tools/rain.now").status_code == 200)
        assert eventually(lambda: "ONETOOL_KEY" not in str(rest.get("/api/health")["problems"]))
        database.execute("DELETE FROM onetool.documents WHERE kind = 'disabled'")
        database.execute(CHANGED, ("disabled",))
        assert eventually(lambda: replica.call("machine.cpu").status_code == 409)
        for tool in ("machine.cpu", "machine.now"):
            assert get_error_code(replica.call(tool)) == (409, "tool_disabled")
        assert eventually(
            lambda: "all tools are disabled" in str(rest.get("/api/health")["problems"])
        )
        assert replica.status() == 200, "the database answers"
