"""ZIP archives of bundles, with request bodies: `bundle.json` and one file for each tool.

IDs, times and counts are not exported. Literal credentials are replaced with `${secret:NAME}`.
Imported archives are untrusted: nothing is written to disk, only entries with the expected names
are read, and sizes are counted while reading, regardless of the sizes that the archive declares.
"""

import io
import json
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, count
from typing import Any

from onetool.errors import BundleError
from onetool.sources.bundles.imported import BundleImport, ToolEntry, max_value_count, parse_host
from onetool.sources.bundles.rules import check_slug, check_version_label, invalid
from onetool.sources.http import credentials
from onetool.util.secret_finder import secret_name
from onetool_child.json_types import JsonMapping, JsonObject

MAX_ARCHIVE_BYTES = 64 * 1024 * 1024
MAX_ENTRIES = 25_000
MAX_ENTRY_BYTES = 2 * 1024 * 1024
MAX_TOTAL_BYTES = 256 * 1024 * 1024
MAX_VALUES = 8_000_000  # in memory a value is many times as large as `[],` is in a file
MAX_RATIO = 100
MIN_UNPACKED_LIMIT_BYTES = 1024 * 1024  # regardless of the compression ratio

_BUNDLE = "bundle.json"
_FOLDER = "tools/"
_TOOL = re.compile(r"tools/[A-Za-z0-9._-]{1,200}\.json")
_BUNDLE_FIELDS = ("slug", "displayName", "description", "isEnabled")
_TOOL_FIELDS = (
    "slug", "version", "displayName", "description", "tags", "isEnabled", "type",
    "argSchema", "outputSchema", "httpImpl", "pythonImpl", "origin",
)  # fmt: skip
_ZIP_MAGIC = b"PK\x03\x04"
_CENTRAL_DIRECTORY_MAGIC = b"PK\x01\x02"
_UNSUPPORTED_FLAGS = 0x1 | 0x20 | 0x40 | 0x2000
_UNREADABLE = (
    zipfile.BadZipFile, zlib.error, struct.error, NotImplementedError, RuntimeError, OSError, EOFError, ValueError,
    OverflowError, IndexError,
)  # fmt: skip


# --- export ---------------------------------------------------------------------------------------


def pack(bundle: JsonMapping, tools: Iterable[JsonMapping]) -> bytes:
    """Return the archive of a bundle: the same bytes for the same content.

    Tools have `slug` and `version` in addition to the fields of a PUT request.
    """
    clean, _ = strip_credentials(str(bundle["slug"]), tools)
    in_order = sorted(clean, key=lambda tool: (str(tool["slug"]), str(tool["version"])))
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        _write_entry(archive, _BUNDLE, _select_fields(bundle, _BUNDLE_FIELDS))
        for number, tool in enumerate(in_order, 1):
            # The number makes names unique on file systems that fold case or normalize non-ASCII
            # letters.
            plain = re.sub(r"[^A-Za-z0-9.-]", "_", f"{tool['slug']}-{tool['version']}")
            name = f"{_FOLDER}{number:05d}-{plain}.json"
            _write_entry(archive, name, _select_fields(tool, _TOOL_FIELDS))
    return target.getvalue()


def strip_credentials(
    bundle_slug: str, tools: Iterable[JsonMapping]
) -> tuple[list[JsonObject], list[str]]:
    """Replace literal credentials with `${secret:NAME}`; return the tools and the secret names."""
    names: dict[str, str] = {}  # by the credential

    def make_reference(location: str, value: str) -> str:
        if value not in names:
            part = "auth" if location.endswith("auth.value") else re.split(r"[.?]", location)[-1]
            stem = secret_name(bundle_slug, part)
            used = set(names.values())
            numbered = (f"{stem}_{number}" for number in count(2))
            names[value] = next(name for name in chain([stem], numbered) if name not in used)
        return f"${{secret:{names[value]}}}"

    stripped = []
    for tool in tools:
        schema = credentials.replace_in_schema(tool.get("argSchema"), make_reference)
        impl = credentials.replace(tool.get("httpImpl"), make_reference)
        stripped.append({**tool, "httpImpl": impl, "argSchema": schema})
    return stripped, list(names.values())


def _select_fields(body: JsonMapping, fields: Iterable[str]) -> JsonObject:
    return {field: body[field] for field in fields if body.get(field) is not None}


def _write_entry(archive: zipfile.ZipFile, name: str, content: JsonObject) -> None:
    entry = zipfile.ZipInfo(name)  # dated 1980 by default, so that archives are reproducible
    entry.create_system = 3
    entry.external_attr = (stat.S_IFREG | 0o644) << 16
    entry.compress_type = zipfile.ZIP_DEFLATED
    try:
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except (ValueError, TypeError, RecursionError) as error:
        raise invalid(f"{name} cannot be written as JSON: {error}") from None
    archive.writestr(entry, text)


# --- import ---------------------------------------------------------------------------------------


def unpack(data: bytes) -> BundleImport:
    """Read and validate an archive."""
    contents = dict(_read_entries(data))
    if _BUNDLE not in contents:
        raise invalid(
            f"invalid archive: no {_BUNDLE} at the top level; export a bundle to see the format"
        )
    bundle = _check_bundle(contents.pop(_BUNDLE))
    tools = [_check_tool(name, body) for name, body in contents.items()]
    _reject_duplicates(
        [(slug, version) for slug, version, _ in tools], "invalid archive: duplicate tool {}"
    )
    hosts, secrets = _list_requirements(tools)
    return BundleImport(bundle, tools, hosts, secrets)


def _read_entries(data: bytes) -> Iterator[tuple[str, JsonObject]]:
    _check_size(data)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            _check_entries(entries)
            bytes_left = min(MAX_TOTAL_BYTES, max(MIN_UNPACKED_LIMIT_BYTES, len(data) * MAX_RATIO))
            values_left = MAX_VALUES
            for entry in (entry for entry in entries if not entry.is_dir()):
                text = _read_entry(archive, entry, bytes_left)
                bytes_left = bytes_left - len(text)
                values_left = values_left - max_value_count(text)
                if values_left < 0:
                    raise _size_error("the archive contains too many values")
                yield entry.filename, _parse_json(text, entry.filename)
    except _UNREADABLE as error:
        raise invalid(f"the archive is damaged or not supported: {error!s:.200}") from None


def _check_size(data: bytes) -> None:
    if not data.startswith(_ZIP_MAGIC):
        raise invalid("not a ZIP archive")
    if len(data) > MAX_ARCHIVE_BYTES:
        raise _size_error(
            f"the archive is too large: {len(data):,} bytes (at limit {MAX_ARCHIVE_BYTES:,})"
        )
    # This is checked before zipfile creates an object for each entry.
    if data.count(_CENTRAL_DIRECTORY_MAGIC) > MAX_ENTRIES:
        raise _size_error(f"the archive is too large: more than {MAX_ENTRIES:,} entries")


def _size_error(message: str) -> BundleError:
    return BundleError(message, code="too_large", details={})


def _check_entries(entries: list[zipfile.ZipInfo]) -> None:
    for entry in entries:
        problem = _find_problem(entry)
        if problem:
            raise invalid(f"invalid archive entry {entry.orig_filename[:100]!r}: {problem}")
    _reject_duplicates(
        [entry.filename.casefold() for entry in entries], "invalid archive: duplicate entry {}"
    )


def _find_problem(entry: zipfile.ZipInfo) -> str | None:
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if entry.orig_filename == _FOLDER and entry.file_size == 0 and kind in {0, stat.S_IFDIR}:
        return None
    if entry.orig_filename != _BUNDLE and not _TOOL.fullmatch(entry.orig_filename):
        return f"expected {_BUNDLE} or tools/NAME.json"
    if kind not in {0, stat.S_IFREG}:
        return "not a regular file"
    if entry.flag_bits & _UNSUPPORTED_FLAGS:
        return "it is encrypted; use an archive without a password"
    if entry.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        return "unsupported compression method; use deflate"
    return None


def _reject_duplicates(names: list[Any], message: str) -> None:
    seen: set[Any] = set()
    for name in names:
        if name in seen:
            raise invalid(message.format(" ".join(name) if isinstance(name, tuple) else name))
        seen.add(name)


def _read_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, bytes_left: int) -> bytes:
    """Read an entry. One byte more than allowed is read to detect that it is too large."""
    limit = min(MAX_ENTRY_BYTES, bytes_left)
    with archive.open(entry) as file:
        text = file.read(limit + 1)
    if len(text) > limit:
        raise _size_error(f"the archive is too large when unpacked (at {entry.filename})")
    return text


def _parse_json(text: bytes, name: str) -> JsonObject:
    try:
        content = json.loads(text.decode("utf-8-sig"), parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise invalid(f"{name} is not valid JSON: {reason:.200}") from None
    if not isinstance(content, dict):
        raise invalid(f"{name} must contain a JSON object")
    return content


def _reject_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not valid JSON")


def _check_bundle(body: JsonObject) -> JsonObject:
    from onetool.sources.bundles.model import BundleDraft

    with _add_file_name(_BUNDLE):
        BundleDraft.of(body)
    return body


def _check_tool(name: str, body: JsonObject) -> ToolEntry:
    from onetool.sources.bundles.model import ToolDraft

    rest = {key: value for key, value in body.items() if key not in {"slug", "version"}}
    with _add_file_name(name):
        slug = check_slug(body.get("slug"))
        version = check_version_label(body.get("version"))
        ToolDraft.of(rest)
    return slug, version, rest


@contextmanager
def _add_file_name(name: str) -> Iterator[None]:
    try:
        yield
    except BundleError as error:
        raise BundleError(f"{name}: {error.message}", **error.fields) from None


def _list_requirements(tools: list[ToolEntry]) -> tuple[list[str], list[str]]:
    """Return the hosts that the tools call and the secrets that they use."""
    from onetool.sources.http.definition import HttpImpl

    hosts: dict[str, None] = {}
    secrets: dict[str, None] = {}
    for _, _, body in tools:
        if body["type"] == "http":
            impl = HttpImpl.model_validate(body["httpImpl"])
            hosts |= dict.fromkeys(parse_host(request.url_template) for request in impl.requests)
            secrets |= dict.fromkeys(sorted(impl.required_secrets))
    return list(hosts), list(secrets)
