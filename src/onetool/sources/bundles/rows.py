"""Rows of the index, and the statements that select them."""

import heapq
import json
import sqlite3
from collections.abc import Iterable, Sequence
from itertools import groupby, islice, product
from typing import NamedTuple

from onetool.sources.bundles.filesystem import Stamp
from onetool.sources.bundles.model import Bundle
from onetool.sources.bundles.records import BundleFile, ToolFile

BUILT_IN = "(select value from meta where name = 'built_in')"
BUNDLE = f"select id, folder, slug, enabled, deleted_at, body, mtime, size, {BUILT_IN} from bundles"  # noqa: S608
TOOL = f"""
select t.key, t.id, t.bundle, b.slug, b.enabled, t.file, t.body, t.mtime, t.size, {BUILT_IN}
from tools t join bundles b on b.id = t.bundle where b.deleted_at is null and
"""  # noqa: S608 - texts of ours
BUNDLE_LIST = f"""
{BUNDLE} where deleted_at is null and id > :after and (:all or enabled)
and (:bundles is null or id in (select value from json_each(:bundles))) order by id limit :limit
"""  # noqa: S608 - texts of ours
TOOL_IDS = """
select {row}.id, t.key from {source} join bundles b on b.id = t.bundle
where {condition} and {row}.id > :after and (:all or (t.enabled and b.enabled)) and b.deleted_at is null
order by {row}.id limit :limit
"""
# A name without a version means the newest enabled version.
IS_CURRENT = """
not exists (
    select 1 from tools o where o.bundle = t.bundle and o.slug = t.slug and (o.enabled, o.key) > (t.enabled, t.key)
)
"""
NAMED_TOOL = (
    f"{TOOL} b.slug = ? and t.slug = ? and (?3 is null or t.version = ?3) order by t.enabled desc,"
    " t.key desc"
)
PACKS = f"""
select slug, id, enabled, not exists (select 1 from tools t where t.bundle = b.id),
    coalesce(substr(json_extract(body, '$.description'), 1, 1000), ''), {BUILT_IN}
from bundles b where deleted_at is null
"""  # noqa: S608 - texts of ours
NAMES = f"""
select b.slug || '.' || t.slug, t.summary, t.enabled and t.sound and b.enabled
from tools t join bundles b on b.id = t.bundle
where t.bundle = ? and t.slug > ? and {IS_CURRENT} order by t.slug limit ?
"""  # noqa: S608 - texts of ours
COUNTS = """
select bundle, count(distinct slug), count(distinct case when enabled and sound then slug end)
from tools group by bundle
"""
FRAME_BYTES = len('{"name":".","description":"","inputSchema":}')
DEFINITION_SIZES = f"""
select b.slug || '.' || t.slug, {FRAME_BYTES} + length(b.slug || t.slug) + t.definition
from tools t join bundles b on b.id = t.bundle where t.bundle = ? and t.enabled and b.enabled and {IS_CURRENT}
"""  # noqa: S608 - texts of ours
BODIES_WITH = """
select b.slug, t.body from tools t join bundles b on b.id = t.bundle
where b.deleted_at is null and instr(t.body, ?) order by t.id
"""
CURRENT_NAME = f"""
select t.key, b.slug || '.' || t.slug from tools t join bundles b on b.id = t.bundle
where t.key = ? and t.enabled and t.sound and b.enabled and b.deleted_at is null and {IS_CURRENT}
"""  # noqa: S608 - texts of ours


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


class StoredPack(NamedTuple):
    slug: str
    id: str
    enabled: int
    is_empty: int
    description: str  # the beginning of it, for the search
    built_in: int


class Filters(NamedTuple):
    """The filters of a list, sorted; None means no filter."""

    tags: Sequence[str] | None = None
    bundles: Sequence[str] | None = None
    include_disabled: bool = False


def get_tools(database: sqlite3.Connection, keys: Iterable[int]) -> list[ToolRow]:
    rows = (database.execute(f"{TOOL} t.key = ?", (key,)).fetchone() for key in keys)
    return [ToolRow(*row) for row in rows if row]


def list_bundles(
    database: sqlite3.Connection, filters: Filters, after: str, limit: int
) -> list[BundleRow]:
    """Return bundles ordered by ID, which never changes, so that a list continues where it stopped."""
    bundles = None if filters.bundles is None else json.dumps(filters.bundles)
    values = {"after": after, "all": filters.include_disabled, "bundles": bundles, "limit": limit}
    return [BundleRow(*row) for row in database.execute(BUNDLE_LIST, values)]


def list_tools(
    database: sqlite3.Connection, filters: Filters, after: str, limit: int
) -> list[ToolRow]:
    """Return tools ordered by ID.

    Each tag and each bundle is a sorted list of its own; the lists are merged.
    """
    lists = []
    values = {"after": after, "all": filters.include_disabled, "limit": limit}
    for tag, bundle in product(*([None] if names is None else names for names in filters[:2])):
        row = "t" if tag is None else "g"
        source = "tools t" if tag is None else "tags g join tools t on t.key = g.key"
        in_tag = "true" if tag is None else "g.tag = :tag"
        condition = in_tag if bundle is None else f"{in_tag} and {row}.bundle = :bundle"
        statement = TOOL_IDS.format(row=row, source=source, condition=condition)
        lists.append(
            database.execute(statement, {**values, "tag": tag, "bundle": bundle}).fetchall()
        )
    keys = (
        key for key, _ in groupby(key for _, key in heapq.merge(*lists))
    )  # a tool with two tags appears twice
    return get_tools(database, islice(keys, limit))
