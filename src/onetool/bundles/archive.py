"""A bundle as a ZIP archive: `bundle.json` and one file for each tool, as bodies that the store takes.

What belongs to one store stays there: ids, times, counts. Literal credentials are replaced with `${secret:NAME}`. An
archive from outside is data from outside: nothing is written to disk, only entries of the expected names are read, and
sizes are counted while they are read, whatever the archive says about itself.
"""

import io
import json
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, count
from typing import Any, Final

from onetool.backends.http_tool import credentials
from onetool.bundles.imported import Imported, ToolEntry, host_of, most_values
from onetool.bundles.rules import a_slug, a_version, invalid
from onetool.errors import BundleError
from onetool.util.secret_finder import secret_name

MAX_ARCHIVE_BYTES: Final = 64 * 1024 * 1024
MAX_ENTRIES: Final = 25_000
MAX_ENTRY_BYTES: Final = 2 * 1024 * 1024
MAX_TOTAL_BYTES: Final = 256 * 1024 * 1024
MAX_VALUES: Final = 8_000_000  # in memory a value is many times as large as `[],` is in a file
MAX_RATIO: Final = 100
SMALL: Final = 1024 * 1024  # however well it is packed

_BUNDLE = "bundle.json"
_FOLDER = "tools/"
_TOOL = re.compile(r"tools/[A-Za-z0-9._-]{1,200}\.json")
_BUNDLE_FIELDS = ("slug", "displayName", "description", "isEnabled")
_TOOL_FIELDS = (
    *("slug", "version", "displayName", "description", "tags", "isEnabled", "type"),
    *("argSchema", "outputSchema", "httpImpl", "pythonImpl"),
)
_START = b"PK\x03\x04"
_IN_THE_DIRECTORY = b"PK\x01\x02"
_ENCRYPTED_OR_PATCHED = 0x1 | 0x20 | 0x40 | 0x2000
_UNREADABLE = (
    zipfile.BadZipFile, zlib.error, struct.error, NotImplementedError, RuntimeError, OSError, EOFError, ValueError,
    OverflowError, IndexError,
)  # fmt: skip


# --- out -----------------------------------------------------------------------------------------------------------


def pack(bundle: Mapping[str, Any], tools: Iterable[Mapping[str, Any]]) -> bytes:
    """The same bytes for the same content. Tools have `slug` and `version` beside the fields of their PUT."""
    clean, _ = without_credentials(str(bundle["slug"]), tools)
    in_order = sorted(clean, key=lambda tool: (str(tool["slug"]), str(tool["version"])))
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, _BUNDLE, _chosen(bundle, _BUNDLE_FIELDS))
        for number, tool in enumerate(in_order, 1):
            # The number tells apart what some file systems would not: letters that differ in case, or are not ASCII.
            plain = re.sub(r"[^A-Za-z0-9.-]", "_", f"{tool['slug']}-{tool['version']}")
            _add(archive, f"{_FOLDER}{number:05d}-{plain}.json", _chosen(tool, _TOOL_FIELDS))
    return target.getvalue()


def without_credentials(bundle_slug: str, tools: Iterable[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the tools with `${secret:NAME}` for each literal credential, and the names of these secrets."""
    names: dict[str, str] = {}  # by the credential

    def reference(place: str, value: str) -> str:
        if value not in names:
            part = "auth" if place == "auth.value" else re.split(r"[.?]", place)[-1]
            wanted = secret_name(bundle_slug, part)
            taken = set(names.values())
            numbered = (f"{wanted}_{number}" for number in count(2))
            names[value] = next(name for name in chain([wanted], numbered) if name not in taken)
        return f"${{secret:{names[value]}}}"

    def cleaned(tool: Mapping[str, Any]) -> dict[str, Any]:
        schema = credentials.replace_in_schema(tool.get("argSchema"), reference)
        return {**tool, "httpImpl": credentials.replace(tool.get("httpImpl"), reference), "argSchema": schema}

    clean = [cleaned(tool) for tool in tools]
    return clean, list(names.values())


def _chosen(body: Mapping[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    return {field: body[field] for field in fields if body.get(field) is not None}


def _add(archive: zipfile.ZipFile, name: str, content: dict[str, Any]) -> None:
    entry = zipfile.ZipInfo(name)  # of 1980, as long as nobody says otherwise
    entry.create_system = 3
    entry.external_attr = (stat.S_IFREG | 0o644) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    try:
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except (ValueError, TypeError, RecursionError) as error:
        raise invalid(f"{name} cannot be written as JSON: {error}") from None
    archive.writestr(entry, text)


# --- in ------------------------------------------------------------------------------------------------------------


def unpack(data: bytes) -> Imported:
    """What is in an archive, checked as the store checks it."""
    contents = dict(_contents(data))
    if _BUNDLE not in contents:
        raise invalid(f"the archive has no {_BUNDLE} at its top; export a bundle to see what one looks like")
    bundle = _bundle(contents.pop(_BUNDLE))
    tools = [_tool(name, body) for name, body in contents.items()]
    _refuse_twice([(slug, version) for slug, version, _ in tools], "the tool {} is in the archive twice")
    hosts, secrets = _needed(tools)
    return Imported(bundle, tools, hosts, secrets)


def _contents(data: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    _check_outside(data)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            _check_entries(entries)
            left, values = min(MAX_TOTAL_BYTES, max(SMALL, len(data) * MAX_RATIO)), MAX_VALUES
            for entry in (entry for entry in entries if not entry.is_dir()):
                text = _read(archive, entry, left)
                left, values = left - len(text), values - most_values(text)
                if values < 0:
                    raise _too_large("the archive holds too many values")
                yield entry.filename, _json(text, entry.filename)
    except _UNREADABLE as error:
        raise invalid(f"the archive is damaged or of a kind that is not read: {error!s:.200}") from None


def _check_outside(data: bytes) -> None:
    if not data.startswith(_START):
        raise invalid("this is no ZIP archive")
    if len(data) > MAX_ARCHIVE_BYTES:
        raise _too_large(f"the archive has {len(data):,} bytes; {MAX_ARCHIVE_BYTES:,} are the most")
    if data.count(_IN_THE_DIRECTORY) > MAX_ENTRIES:  # before anything is made of each of them
        raise _too_large(f"the archive has more than {MAX_ENTRIES:,} entries")


def _too_large(message: str) -> BundleError:
    return BundleError(message, code="too_large", details={})


def _check_entries(entries: list[zipfile.ZipInfo]) -> None:
    for entry in entries:
        problem = _problem(entry)
        if problem:
            raise invalid(f"the entry {entry.orig_filename[:100]!a} {problem}")
    _refuse_twice([entry.filename.casefold() for entry in entries], "the entry {} is in the archive twice")


def _problem(entry: zipfile.ZipInfo) -> str | None:
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if entry.orig_filename == _FOLDER and entry.file_size == 0 and kind in {0, stat.S_IFDIR}:
        return None
    if entry.orig_filename != _BUNDLE and not _TOOL.fullmatch(entry.orig_filename):
        return f"is none of {_BUNDLE} and tools/NAME.json"
    if kind not in {0, stat.S_IFREG}:
        return "is no regular file"
    if entry.flag_bits & _ENCRYPTED_OR_PATCHED:
        return "is encrypted; archives without a password are read"
    if entry.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        return "is packed in a way that is not read; use deflate"
    return None


def _refuse_twice(names: list[Any], message: str) -> None:
    seen: set[Any] = set()
    for name in names:
        if name in seen:
            raise invalid(message.format(" ".join(name) if isinstance(name, tuple) else name))
        seen.add(name)


def _read(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, left: int) -> bytes:
    """At most what is left, and one byte more to know that it is too much."""
    most = min(MAX_ENTRY_BYTES, left)
    with archive.open(entry) as file:
        text = file.read(most + 1)
    if len(text) > most:
        raise _too_large(f"the archive unpacks to too much at {entry.filename}")
    return text


def _json(text: bytes, name: str) -> dict[str, Any]:
    try:
        found = json.loads(text.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise invalid(f"{name} is not valid JSON: {reason:.200}") from None
    if not isinstance(found, dict):
        raise invalid(f"{name} must hold a JSON object")
    return found


def _refuse_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _bundle(body: dict[str, Any]) -> dict[str, Any]:
    from onetool.bundles.model import BundleDraft

    with _named(_BUNDLE):
        BundleDraft.of(body)
    return body


def _tool(name: str, body: dict[str, Any]) -> ToolEntry:
    from onetool.bundles.model import ToolDraft

    rest = {key: value for key, value in body.items() if key not in {"slug", "version"}}
    with _named(name):
        slug, version = a_slug(body.get("slug")), a_version(body.get("version"))
        ToolDraft.of(rest)
    return slug, version, rest


@contextmanager
def _named(name: str) -> Iterator[None]:
    try:
        yield
    except BundleError as error:
        raise BundleError(f"{name}: {error.message}", **error.fields) from None


def _needed(tools: list[ToolEntry]) -> tuple[list[str], list[str]]:
    """The hosts that the tools call and the secrets that they name."""
    from onetool.backends.http_tool.impl import HttpImpl

    calls = [HttpImpl.model_validate(body["httpImpl"]) for _, _, body in tools if body["type"] == "http"]
    hosts = dict.fromkeys(host_of(call.url_template) for call in calls)
    secrets = dict.fromkeys(name for call in calls for name in sorted(call.required_secrets))
    return list(hosts), list(secrets)
