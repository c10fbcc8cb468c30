"""Create and change the tables: numbered migrations, applied by one process at a time."""

from typing import TYPE_CHECKING, Any

from onetool.errors import ToolError
from onetool.state.schema import MIGRATIONS, SCHEMA, VERSION, Migration
from onetool.util.problem import reject_newer

if TYPE_CHECKING:
    from psycopg import Connection

LOCK = 0x6F6E65746F6F6C  # "onetool"
VERSIONS = f"{SCHEMA}.schema_versions"
CREATE = f"""
CREATE SCHEMA IF NOT EXISTS {SCHEMA};
CREATE TABLE IF NOT EXISTS {VERSIONS} (
    version integer PRIMARY KEY, compatible integer NOT NULL, applied timestamptz NOT NULL DEFAULT now()
)
"""
COMMAND = "onetool store upgrade"
OUTDATED = "schema_outdated"


def read_version(connection: "Connection[Any]") -> tuple[int, int]:
    """Return the version of the tables, 0 if there are none, and the oldest version that a program
    must know.
    """
    if connection.execute("SELECT to_regclass(%s)", (VERSIONS,)).fetchone() == (None,):
        return 0, 0
    query = f"SELECT version, compatible FROM {VERSIONS} ORDER BY version DESC LIMIT 1"  # noqa: S608 - a constant
    found = connection.execute(query).fetchone()
    return (0, 0) if found is None else (int(found[0]), int(found[1]))


def check_version(connection: "Connection[Any]", place: str, supported: int = VERSION) -> None:
    """Raise an error if this program cannot use the tables: it is too old or too new for them."""
    compare_version(*read_version(connection), place, supported)


def compare_version(version: int, compatible: int, place: str, supported: int = VERSION) -> None:
    """Raise an error if this program cannot use tables of this version."""
    reject_newer(compatible, supported, f"the schema of {place}")
    if version < supported:
        what = (
            "has no tables"
            if version == 0
            else f"has tables of version {version}, this OneTool needs {supported}"
        )
        raise ToolError(
            f"{place} {what}", hint=f"run `{COMMAND}` with the migration role", code=OUTDATED
        )


def migrate(
    connection: "Connection[Any]", place: str, migrations: tuple[Migration, ...] = MIGRATIONS
) -> tuple[int, int]:
    """Apply the missing migrations in one transaction, and return the old and the new version.

    Processes that migrate at the same time wait for each other. Tables of a newer OneTool are left
    unchanged.
    """
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        before, compatible = read_version(connection)
        reject_newer(compatible, len(migrations), f"the schema of {place}")
        if before >= len(migrations):
            return before, before
        if before == 0:
            connection.execute(CREATE)
        connection.execute(f"SET LOCAL search_path = {SCHEMA}")
        for number, migration in enumerate(migrations[before:], before + 1):
            if migration.read_library is not None:
                connection.execute(migration.read_library().encode())
            connection.execute(migration.statements)
            insert = f"INSERT INTO {VERSIONS} (version, compatible) VALUES (%s, %s)"  # noqa: S608
            connection.execute(insert, (number, migration.compatible))
    return before, len(migrations)
