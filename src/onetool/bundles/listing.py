"""Queries of the index for single bundles and tools, and for lists ordered by ID.

IDs never change, so that a list continues where it stopped, whatever was added or deleted meanwhile.
"""

import heapq
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice, product
from typing import NamedTuple

from onetool.bundles.filesystem import Stamp
from onetool.bundles.model import Bundle
from onetool.bundles.records import BundleFile, ToolFile
from onetool.bundles.rules import check_id
from onetool.core.registry import RegistryEntry

BUILT_IN = "(select value from meta where name = 'built_in')"
BUNDLE = f"select id, folder, slug, enabled, deleted_at, body, mtime, size, {BUILT_IN} from bundles"  # noqa: S608
TOOL = f"""
select t.key, t.id, t.bundle, b.slug, b.enabled, t.file, t.body, t.mtime, t.size, {BUILT_IN}
from tools t join bundles b on b.id = t.bundle where b.deleted_at is null and
"""  # noqa: S608 - texts of ours
IN_USE = "(? or (t.enabled and b.enabled))"


class BundleRow(NamedTuple):
    id: str
    directory: str
    slug: str
    enabled: int
    deleted_at: int | None
    body: str
    mtime: int
    size: int
    built_in: int

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.mtime, self.size)

    def file(self) -> BundleFile:
        return BundleFile.read(self.body.encode())

    def to_bundle(self) -> Bundle:
        return self.file().to_bundle(built_in=bool(self.built_in))


class ToolRow(NamedTuple):
    key: int
    id: str
    bundle: str
    bundle_slug: str
    bundle_enabled: int
    file: str
    body: str
    mtime: int
    size: int
    built_in: int = 0

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.mtime, self.size)

    def content(self) -> ToolFile:
        return ToolFile.read(self.body.encode())


# --- single bundles and tools ---------------------------------------------------------------------------------------


def list_problem_paths(database: sqlite3.Connection, ending: str) -> list[str]:
    """Return the paths with this ending of files that could not be read."""
    return [path for (path,) in database.execute("select path from problems") if path.endswith(ending)]


def get_bundle(database: sqlite3.Connection, bundle_id: str) -> BundleRow | None:
    """Return the bundle with this ID, even if it is deleted."""
    row = database.execute(f"{BUNDLE} where id = ?", (bundle_id,)).fetchone()
    return BundleRow(*row) if row else None


def get_bundle_by(database: sqlite3.Connection, column: str, value: str) -> BundleRow | None:
    """Return the first bundle by ID with this value in a column: `slug`, or `python_name` for its name in code."""
    query = f"{BUNDLE} where {column} = ? and deleted_at is null order by id limit 1"
    row = database.execute(query, (value,)).fetchone()
    return BundleRow(*row) if row else None


def get_tool(database: sqlite3.Connection, bundle_id: str, slug: str, version: str) -> ToolRow | None:
    pair = f"{TOOL} t.bundle = ? and t.slug = ? and t.version = ?"
    row = database.execute(pair, (bundle_id, slug, version)).fetchone()
    return ToolRow(*row) if row else None


def list_bundle_tools(database: sqlite3.Connection, bundle_id: str, slug: str | None = None) -> list[ToolRow]:
    """Return all versions of all tools of a bundle, or of one tool."""
    by_slug = "" if slug is None else " and t.slug = ?"
    values = (bundle_id,) if slug is None else (bundle_id, slug)
    return [ToolRow(*row) for row in database.execute(f"{TOOL} t.bundle = ?{by_slug} order by t.id", values)]


def list_tools_with(database: sqlite3.Connection, text: str) -> list[tuple[str, str]]:
    """Return the JSON of all tools that contains a text, each with the slug of its bundle. This reads all tools."""
    query = """
        select b.slug, t.body from tools t join bundles b on b.id = t.bundle
        where b.deleted_at is null and instr(t.body, ?) order by t.id
    """
    return [(slug, body) for slug, body in database.execute(query, (text,))]


def get_tools(database: sqlite3.Connection, keys: Iterable[int]) -> list[ToolRow]:
    rows = (database.execute(f"{TOOL} t.key = ?", (key,)).fetchone() for key in keys)
    return [ToolRow(*row) for row in rows if row]


# --- by name in code -----------------------------------------------------------------------------------------------

IS_CURRENT = """
not exists (
    select 1 from tools o where o.bundle = t.bundle and o.slug = t.slug and (o.enabled, o.key) > (t.enabled, t.key)
)
"""  # a name without a version means the newest enabled version


class StoredPack(NamedTuple):
    slug: str
    id: str
    enabled: int
    is_empty: int
    description: str  # the beginning of it, for the search
    built_in: int


def list_packs(database: sqlite3.Connection) -> list[StoredPack]:
    query = f"""
    select slug, id, enabled, not exists (select 1 from tools t where t.bundle = b.id),
        coalesce(substr(json_extract(body, '$.description'), 1, 1000), ''), {BUILT_IN}
    from bundles b where deleted_at is null
    """  # noqa: S608 - texts of ours
    return [StoredPack(*row) for row in database.execute(query)]


def get_tool_by_name(database: sqlite3.Connection, slug: str, tool_slug: str, version: str | None) -> ToolRow | None:
    """Return this version of a tool; without a version, the newest that is enabled."""
    query = f"{TOOL} b.slug = ? and t.slug = ? and (? is null or t.version = ?) order by t.enabled desc, t.key desc"
    row = database.execute(query, (slug, tool_slug, version, version)).fetchone()
    return ToolRow(*row) if row else None


def list_names(database: sqlite3.Connection, bundle_id: str, after: str, limit: int) -> list[RegistryEntry]:
    """Return tools of a bundle after this slug, ordered by slug."""
    query = f"""
    select b.slug || '.' || t.slug, t.summary, t.enabled and t.sound and b.enabled
    from tools t join bundles b on b.id = t.bundle
    where t.bundle = ? and t.slug > ? and {IS_CURRENT} order by t.slug limit ?
    """  # noqa: S608 - texts of ours
    rows = database.execute(query, (bundle_id, after, limit))
    return [RegistryEntry(name, summary, bool(enabled)) for name, summary, enabled in rows]


def count_tools(database: sqlite3.Connection) -> dict[str, tuple[int, int]]:
    """Return the number of tools of each bundle (versions count once), and how many of them can be called."""
    query = """
    select bundle, count(distinct slug), count(distinct case when enabled and sound then slug end)
    from tools group by bundle
    """
    return {bundle: (all_, enabled) for bundle, all_, enabled in database.execute(query)}


FRAME_BYTES = len('{"name":".","description":"","inputSchema":}')


def list_definition_sizes(database: sqlite3.Connection, bundle_id: str) -> list[tuple[str, int]]:
    """Return the names of enabled tools with the approximate size of their JSON definitions in bytes."""
    query = f"""
    select b.slug || '.' || t.slug, {FRAME_BYTES} + length(b.slug || t.slug)
        + t.definition
    from tools t join bundles b on b.id = t.bundle where t.bundle = ? and t.enabled and b.enabled and {IS_CURRENT}
    """  # noqa: S608 - texts of ours
    return database.execute(query, (bundle_id,)).fetchall()


def get_names_by_key(database: sqlite3.Connection, keys: Sequence[int]) -> dict[int, str]:
    """Return the names of these rows, in their order. Disabled tools and older versions are left out."""
    query = f"""
    select t.key, b.slug || '.' || t.slug from tools t join bundles b on b.id = t.bundle
    where t.key = ? and t.enabled and t.sound and b.enabled and b.deleted_at is null and {IS_CURRENT}
    """  # noqa: S608 - texts of ours
    rows = (database.execute(query, (key,)).fetchone() for key in keys)
    return {row[0]: row[1] for row in rows if row}


def list_deleted_before(database: sqlite3.Connection, moment: int) -> list[BundleRow]:
    return [BundleRow(*row) for row in database.execute(f"{BUNDLE} where deleted_at <= ?", (moment,))]


# --- lists ---------------------------------------------------------------------------------------------------------


class Filters(NamedTuple):
    """Filters of a list; None means no filter."""

    tags: tuple[str, ...] | None = None
    bundles: tuple[str, ...] | None = None
    include_disabled: bool = False

    @classmethod
    def of(cls, tags: Iterable[str] | None, bundles: Iterable[str] | None, *, include_disabled: bool) -> "Filters":
        identifiers = None if bundles is None else map(check_id, bundles)
        values = [None if filter_ is None else tuple(sorted(set(filter_))) for filter_ in (tags, identifiers)]
        return cls(values[0], values[1], bool(include_disabled))


def list_bundles(database: sqlite3.Connection, filters: Filters, after: str, limit: int) -> list[BundleRow]:
    live = "deleted_at is null and id > ? and (? or enabled)"
    if filters.bundles is None:
        rows = database.execute(f"{BUNDLE} where {live} order by id limit ?", (after, filters.include_disabled, limit))
        return [BundleRow(*row) for row in rows]
    query = f"{BUNDLE} where {live} and id = ?"
    matches = (database.execute(query, (after, filters.include_disabled, id_)).fetchone() for id_ in filters.bundles)
    return [BundleRow(*row) for row in matches if row][:limit]


def list_tools(database: sqlite3.Connection, filters: Filters, after: str, limit: int) -> list[ToolRow]:
    """Return tools ordered by ID. Each tag and each bundle is a sorted list of its own; the lists are merged."""
    streams = (_read_ids(database, condition, filters, after, limit) for condition in _list_conditions(filters))
    keys = (key for key, _ in groupby(key for _, key in heapq.merge(*streams)))  # a tool with two tags appears twice
    return get_tools(database, islice(keys, limit))


def _list_conditions(filters: Filters) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the condition of each list and its values."""
    by_tag = "tags g join tools t on t.key = g.key join bundles b on b.id = t.bundle where g.tag = ?"
    every = "tools t join bundles b on b.id = t.bundle where"
    if filters.tags is not None and filters.bundles is not None:
        yield from (
            (f"{by_tag} and g.bundle = ? and g.id > ?", pair) for pair in product(filters.tags, filters.bundles)
        )
    elif filters.tags is not None:
        yield from ((f"{by_tag} and g.id > ?", (tag,)) for tag in filters.tags)
    elif filters.bundles is not None:
        yield from ((f"{every} t.bundle = ? and t.id > ?", (bundle,)) for bundle in filters.bundles)
    else:
        yield f"{every} t.id > ?", ()


def _read_ids(
    database: sqlite3.Connection, condition: tuple[str, tuple[str, ...]], filters: Filters, after: str, limit: int
) -> list[tuple[str, int]]:
    source, values = condition
    order = "g.id" if source.startswith("tags") else "t.id"
    query = f"select {order}, t.key from {source} and {IN_USE} and b.deleted_at is null order by {order} limit ?"  # noqa: S608
    return database.execute(query, (*values, after, filters.include_disabled, limit)).fetchall()
