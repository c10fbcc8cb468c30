"""Bundles as ZIP archives: export and import are inverse, and hostile archives are rejected early."""

import contextlib
import io
import json
import stat
import struct
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tests.openapi_support import build_document, import_document

from onetool.errors import BundleError
from onetool.sources.bundles import archive
from onetool.sources.bundles.archive import pack, unpack

BUNDLE = {
    "slug": "things",
    "displayName": "Things",
    "description": "All of them.",
    "isEnabled": False,
}
HTTP = {
    "method": "GET",
    "urlTemplate": "https://api.example.com:8443/${id}",
    "headers": {"X-Key": "${secret:KEY}"},
}
TOOL = {
    "slug": "get-thing",
    "version": "1.0",
    "displayName": "Get a thing",
    "description": "One thing.",
    "tags": ["a", "b"],
    "isEnabled": True,
    "type": "http",
    "argSchema": {
        "type": "object",
        "properties": {"z": {"default": 10**30}, "id": {"type": "string"}},
    },
    "outputSchema": {"type": "object"},
    "httpImpl": HTTP,
}
PYTHON = {"slug": "größe", "version": "2", "displayName": "x", "isEnabled": False, "type": "python"}
PYTHON["pythonImpl"] = {"function": "json.parse"}
OF_A_STORE = {
    "id": "0192f0c1-7a10-7c3e-9d2b-3f5a6b7c8d9e",
    "createdAt": "2026-11-15T12:00:00Z",
    "callCount": 7,
}


def read_body(tool: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value for key, value in tool.items() if key not in {"slug", "version", *OF_A_STORE}
    }


def make_zip(
    entries: dict[str, Any], change: Callable[[zipfile.ZipInfo], None] | None = None
) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in entries.items():
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            if change is not None:
                change(entry)
            file.writestr(
                entry, content if isinstance(content, str | bytes) else json.dumps(content)
            )
    return target.getvalue()


def unpack_error(data: bytes) -> BundleError:
    with pytest.raises(BundleError) as caught:
        unpack(data)
    return caught.value


# --- export and import ----------------------------------------------------------------------------


@pytest.mark.spec("bundles.zip.round-trip")
def test_an_exported_bundle_is_imported_unchanged() -> None:
    found = unpack(pack({**BUNDLE, **OF_A_STORE}, [{**TOOL, **OF_A_STORE}, PYTHON]))
    assert found.bundle == BUNDLE
    assert found.tools == [("get-thing", "1.0", read_body(TOOL)), ("größe", "2", read_body(PYTHON))]
    assert list(found.tools[0][2]["argSchema"]["properties"]) == ["z", "id"]
    assert (found.hosts, found.secrets, found.problems) == (["api.example.com:8443"], ["KEY"], [])


@pytest.mark.spec("bundles.zip.round-trip")
def test_an_exported_imported_document_is_imported_unchanged() -> None:
    given = import_document(
        build_document({"operationId": "x", "parameters": [{"name": "ü", "in": "query"}]})
    )
    found = unpack(
        pack(given.bundle, [{"slug": s, "version": v, **body} for s, v, body in given.tools])
    )
    assert (found.bundle, found.tools, found.hosts) == (given.bundle, given.tools, given.hosts)


def test_the_same_content_is_the_same_bytes() -> None:
    tools = [
        {**TOOL, "slug": slug, "version": version}
        for slug in ("b", "B", "a")
        for version in ("2", "1")
    ]
    assert pack(BUNDLE, tools) == pack({**BUNDLE, "id": "other"}, tools[::-1])


def test_the_names_in_an_archive_suit_every_file_system() -> None:
    slugs = ["A", "a", "größe", "日本", "x" * 64]
    with zipfile.ZipFile(
        io.BytesIO(pack(BUNDLE, [{**TOOL, "slug": slug} for slug in slugs]))
    ) as file:
        names = file.namelist()
    assert len({name.lower() for name in names}) == len(slugs) + 1
    assert all(name.isascii() for name in names)


def test_data_of_one_store_is_not_in_the_archive() -> None:
    data = pack(
        {**BUNDLE, **OF_A_STORE}, [{**TOOL, **OF_A_STORE, "disabledReason": "x", "isBuiltIn": True}]
    )
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        text = b"".join(map(file.read, file.namelist())).decode()
    assert not [
        word
        for word in (*OF_A_STORE, "disabledReason", "isBuiltIn")
        if f'"{word}"' in text.replace('"id": {', "")
    ]


@pytest.mark.parametrize("value", [float("nan"), "\ud800", {1, 2}])
def test_values_that_json_cannot_represent_are_rejected(value: Any) -> None:
    with pytest.raises(BundleError, match="cannot be written as JSON"):
        pack(BUNDLE, [{**TOOL, "argSchema": {"default": value}}])


def test_an_archive_that_a_person_packed_again_is_read() -> None:
    data = make_zip({"tools/": "", "bundle.json": BUNDLE, "tools/mine.json": TOOL})
    assert [slug for slug, _, _ in unpack(data).tools] == ["get-thing"]


def test_a_bundle_may_have_no_tools() -> None:
    assert unpack(pack(BUNDLE, [])).tools == []


# --- hostile names and entry types ----------------------------------------------------------------


@pytest.mark.spec("bundles.zip.hostile-archives")
@pytest.mark.parametrize(
    "name",
    [
        "../bundle.json",
        "/etc/passwd",
        "tools/../../x.json",
        "tools\\x.json",
        "C:\\x.json",
        "tools/a/b.json",
        "tools/.json/",
        "x/bundle.json",
        "tools/ü.json",
        "tools/a.json\n",
        "tools/a.txt",
        "__MACOSX/x",
        "TOOLS/a.json",
        "bundle.json/",
        "",
        "tools//a.json",
        "./bundle.json",
        f"tools/{'x' * 300}.json",
    ],
)
def test_an_entry_with_another_name_is_rejected(name: str) -> None:
    error = unpack_error(make_zip({"bundle.json": BUNDLE, name: TOOL}))
    assert error.code == "invalid"


@pytest.mark.spec("bundles.zip.hostile-archives")
def test_a_name_with_a_null_character_is_rejected() -> None:
    data = make_zip({"bundle.json": BUNDLE, "tools/a.jsonX.exe": TOOL})
    assert unpack_error(data.replace(b"a.jsonX", b"a.json\x00")).code == "invalid"


@pytest.mark.spec("bundles.zip.hostile-archives")
@pytest.mark.parametrize(
    "kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFDIR, stat.S_IFSOCK]
)
def test_an_entry_that_is_not_a_regular_file_is_rejected(kind: int) -> None:
    def change(entry: zipfile.ZipInfo) -> None:
        entry.external_attr = (kind | 0o777) << 16

    assert "not a regular file" in unpack_error(make_zip({"bundle.json": BUNDLE}, change)).message


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    "names", [("tools/a.json", "tools/a.json"), ("tools/a.json", "tools/A.json")]
)
def test_a_duplicate_entry_is_rejected(names: tuple[str, str]) -> None:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as file:
        for name, content in (
            ("bundle.json", BUNDLE),
            (names[0], TOOL),
            (names[1], {**TOOL, "slug": "other"}),
        ):
            file.writestr(name, json.dumps(content))
    assert "duplicate" in unpack_error(target.getvalue()).message


def test_a_duplicate_tool_is_rejected() -> None:
    assert (
        "duplicate"
        in unpack_error(
            make_zip({"bundle.json": BUNDLE, "tools/a.json": TOOL, "tools/b.json": TOOL})
        ).message
    )


@pytest.mark.parametrize("flag", [0x1, 0x20, 0x40])
def test_an_encrypted_entry_is_rejected(flag: int) -> None:
    data = bytearray(make_zip({"bundle.json": BUNDLE}))
    at = data.index(b"PK\x01\x02")
    data[at + 8] |= flag
    assert "encrypted" in unpack_error(bytes(data)).message


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compression_methods_are_rejected(method: int) -> None:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as file:
        file.writestr("bundle.json", json.dumps(BUNDLE))
    assert "compression method" in unpack_error(target.getvalue()).message


# --- bombs and wrong sizes ------------------------------------------------------------------------


@pytest.mark.spec("bundles.zip.hostile-archives")
def test_a_zip_bomb_is_rejected() -> None:
    data = make_zip({"bundle.json": BUNDLE, "tools/a.json": b" " * 50_000_000})
    assert len(data) < 60_000
    assert unpack_error(data).code == "too_large"


@pytest.mark.slow
@pytest.mark.spec("bundles.zip.hostile-archives")
def test_many_small_zip_bombs_are_rejected() -> None:
    data = make_zip(
        {"bundle.json": BUNDLE, **{f"tools/{n}.json": f"{{{' ' * 1_000_000}}}" for n in range(50)}}
    )
    assert unpack_error(data).code == "too_large"


@pytest.mark.slow
@pytest.mark.spec("bundles.zip.hostile-archives")
@pytest.mark.parametrize("declared", [0, 10, 2**32 - 1])
def test_declared_sizes_are_not_trusted(declared: int) -> None:
    data = bytearray(make_zip({"bundle.json": BUNDLE, "tools/a.json": b" " * 50_000_000}))
    for signature, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        at = data.rindex(signature)
        data[at + offset : at + offset + 4] = struct.pack("<I", declared)
    assert unpack_error(bytes(data)).code in {"too_large", "invalid"}


def test_too_many_values_are_rejected_before_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_VALUES", 1_000)
    entries: dict[str, Any] = {f"tools/{n}.json": {"a": [[]] * 100} for n in range(10)}
    assert unpack_error(make_zip({"bundle.json": BUNDLE, **entries})).code == "too_large"


def test_too_many_entries_are_rejected_before_reading() -> None:
    data = b"PK\x03\x04" + b"PK\x01\x02" * (archive.MAX_ENTRIES + 1)
    assert unpack_error(data).code == "too_large"


def test_an_archive_that_is_too_large_is_rejected() -> None:
    assert unpack_error(b"PK\x03\x04" + bytes(archive.MAX_ARCHIVE_BYTES)).code == "too_large"


def test_wrong_zip64_sizes_are_rejected() -> None:
    def change(entry: zipfile.ZipInfo) -> None:
        entry.extra = struct.pack("<HHQQQ", 1, 24, 2**62, 2**62, 2**62)

    data = bytearray(make_zip({"bundle.json": BUNDLE}, change))
    at = data.index(b"PK\x01\x02")
    data[at + 20 : at + 28] = b"\xff" * 8
    data[at + 42 : at + 46] = b"\xff" * 4
    assert unpack_error(bytes(data)).code == "invalid"


# --- invalid content ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[]", "must contain a JSON object"),
        ('{"a": NaN}', "not valid JSON"),
        (b"\xff", "not valid JSON"),
        ('{"a":' * 100_000, "not valid JSON"),
        ("1" * 10_000, "not valid JSON"),
        ({**BUNDLE, "id": "x"}, "bundle.json: invalid body"),
        ({"slug": "a b"}, "bundle.json: invalid body"),
    ],
)
def test_an_invalid_bundle_is_rejected(content: Any, reason: str) -> None:
    assert reason in unpack_error(make_zip({"bundle.json": content})).message


@pytest.mark.parametrize(
    "change",
    [
        {"slug": "../x"},
        {"slug": None},
        {"version": ".."},
        {"httpImpl": None},
        {"type": "exec"},
        {"argSchema": {"type": "string"}},
        {"argSchema": {"$ref": "https://example.com/x.json"}},
        {"httpImpl": {**HTTP, "urlTemplate": "https://${host}/"}},
        {"displayName": "\ud800"},
        {"unknown": 1},
    ],
)
def test_an_invalid_tool_is_rejected_and_named(change: dict[str, Any]) -> None:
    error = unpack_error(make_zip({"bundle.json": BUNDLE, "tools/a.json": {**TOOL, **change}}))
    assert error.code == "invalid"
    assert error.message.startswith("tools/a.json: ")


def test_an_archive_without_a_bundle_is_rejected() -> None:
    assert "no bundle.json" in unpack_error(make_zip({"tools/a.json": TOOL})).message


def test_other_files_are_rejected_as_archives() -> None:
    assert unpack_error(b"{}").message == "not a ZIP archive"


# --- arbitrary input ------------------------------------------------------------------------------


@given(st.binary())
def test_arbitrary_bytes_raise_only_bundle_errors(data: bytes) -> None:
    unpack_error(data)
    unpack_error(b"PK\x03\x04" + data)


GOOD = pack(BUNDLE, [TOOL, PYTHON])


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=6)
)
@pytest.mark.filterwarnings("ignore")
def test_damaged_archives_raise_only_bundle_errors(changes: list[tuple[int, int]]) -> None:
    data = bytearray(GOOD)
    for at, value in changes:
        data[at] = value
    with contextlib.suppress(BundleError):
        assert unpack(bytes(data)).bundle == BUNDLE


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(GOOD)))
def test_a_truncated_archive_is_rejected(length: int) -> None:
    if length < len(GOOD):
        assert unpack_error(GOOD[:length]).code == "invalid"
