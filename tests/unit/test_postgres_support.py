"""The PostgreSQL of tests: databases are separate, and durable servers keep what was committed."""

import psycopg
import pytest
from tests.postgres_support import PostgresServer, run_postgres


def test_every_test_has_an_empty_database(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE things (id integer)")
        name = connection.info.dbname
    copy = postgres_server.create_database(template=name)
    assert postgres_server.execute("SELECT count(*) FROM things", database=copy) == [(0,)]
    assert postgres_server.execute("SELECT rolname FROM pg_roles WHERE rolname = 'root'") == []


@pytest.mark.slow
def test_a_durable_server_keeps_committed_rows_through_a_crash() -> None:
    with run_postgres(is_durable=True) as server:
        server.execute("CREATE TABLE things (id integer)", "INSERT INTO things VALUES (1)")
        server.stop("immediate")
        with pytest.raises(psycopg.OperationalError):
            server.execute("SELECT 1")
        server.start()
        assert server.execute("SELECT id FROM things") == [(1,)]
