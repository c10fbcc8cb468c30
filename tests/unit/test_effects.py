"""Effects of the tools of every source, from declarations, hints and settings, and where they are
shown.
"""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from benchmarks.guarded import open_world
from tests.rest_support import serve_app
from tests.support import open_app

from onetool import tool
from onetool.app import OneTool
from onetool.core.bus.bus import ToolBus
from onetool.core.policy.effects import (
    ALL,
    UNTRUSTED,
    SessionLabels,
    describe_effects,
    get_effects,
    get_labels,
    is_declared,
    read_hints,
    sort_effects,
)
from onetool.errors import ToolError
from onetool.runs.tool_loader import load_builtin_tools
from onetool.settings.model import Server, Settings
from onetool.settings.settings_reader import wrap_settings
from onetool.sources.builtin import ot_tools
from onetool.sources.bundles.stored_tools import read_effects
from onetool.sources.extensions import static_analysis
from onetool.sources.upstream.checked_tools import accept, list_claims
from onetool.sources.upstream.definitions import Definition, ToolLists, cache_key, identify_origin
from onetool.state.documents import DocumentFile, Documents
from onetool.util.context import RunScope, ToolContext

# --- every source ---------------------------------------------------------------------------------


def test_built_in_tools_declare_their_effects() -> None:
    tools = {tool.name: tool for tool in load_builtin_tools()}
    assert [name for name, each in tools.items() if not is_declared(each)] == []
    effects = {name: " ".join(sort_effects(get_effects(each))) for name, each in tools.items()}
    changing = {name: text for name, text in effects.items() if text != "read"}
    assert changing == {
        "fs.copy": "read write",
        "fs.delete": "write",
        "fs.edit": "read write",
        "fs.move": "write",
        "fs.write": "write",
        "http.get": "read external",
        "http.post": "write external",
        "llm.ask": "read external",
        "llm.transform": "read external",
        "ot.notify": "write",
        "ot.prompt": "read external",
        "ot.resources": "read external",
        "ot.save_snippet": "write",
        "ot.scaffold": "write",
        "test.run": "exec",
    }


def test_tools_of_every_source_have_effects(tmp_path: Path) -> None:
    async def collect() -> dict[str, str]:
        async with open_world(tmp_path) as app:
            tools = [app.registry.find(entry.name) for entry in app.registry.entries()]
            return {
                each.name: describe_effects(each)
                for each in tools
                if each.source != "local" or each.file
            }

    found = anyio.run(collect)
    undeclared = {name for name, text in found.items() if "not declared" in text}
    assert undeclared == {"legacy.lookup", "legacy.save"}
    assert found["github.get_issue"] == "read, external"
    assert found["github.create_issue"] == "write, external"
    assert found["db.query"] == found["invoices.find"] == "read"
    assert found["shell.run"] == "exec"
    assert found["web.search"] == "read, external"
    assert found["weather.get-report"] == "read, external (idempotent)"
    assert found["crm.add-note"] == "write, external"
    assert found["legacy.lookup"] == "write, external (not declared)"


@pytest.mark.parametrize(
    ("impl", "effects", "is_idempotent", "labels"),
    [
        ({"method": "get"}, "read external", True, {"untrusted"}),
        ({"method": "HEAD", "auth": {}}, "read external", True, ALL),
        ({"method": "PUT"}, "write external", True, {"untrusted"}),
        ({"method": "DELETE"}, "write external", True, {"untrusted"}),
        ({"method": "POST"}, "write external", False, {"untrusted"}),
        ({"method": "PATCH"}, "write external", False, {"untrusted"}),
        ({"method": "GET", "steps": [{"method": "POST"}]}, "write external", False, {"untrusted"}),
        (
            {"method": "GET", "response": {"saveTo": "${path}"}},
            "write external",
            True,
            {"untrusted"},
        ),
        ({"method": "POST", "body": "${file:report}"}, "write external", False, ALL),
        ({"method": "GET", "headers": {"X-Key": "${secret:KEY}"}}, "read external", True, ALL),
        ({}, "write external", False, {"untrusted"}),
        (None, "read", False, set()),
    ],
)
def test_stored_tools_have_the_effects_of_their_methods(
    impl: dict[str, Any] | None, effects: str, is_idempotent: bool, labels: set[str]
) -> None:
    found = read_effects(impl)
    assert (" ".join(sort_effects(found[0])), found[1], set(found[2])) == (
        effects,
        is_idempotent,
        labels,
    )


# --- upstream servers -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotations", "effects", "is_idempotent"),
    [
        (None, None, False),
        ({"title": "Get"}, None, False),
        ({"readOnlyHint": "yes"}, None, False),
        ({"readOnlyHint": True}, "read external", False),
        ({"readOnlyHint": True, "openWorldHint": False}, "read", False),
        ({"readOnlyHint": True, "destructiveHint": True}, "write external", False),
        ({"readOnlyHint": False, "openWorldHint": False, "idempotentHint": True}, "write", True),
        ({"openWorldHint": False}, "write", False),
        ({"destructiveHint": False}, "write external", False),
    ],
)
def test_hints_are_effects(
    annotations: dict[str, Any] | None, effects: str | None, is_idempotent: bool
) -> None:
    found = read_hints(annotations)
    listed = None if found.effects is None else " ".join(sort_effects(found.effects))
    assert (listed, found.is_idempotent) == (effects, is_idempotent)


@asynccontextmanager
async def open_server(
    directory: Path,
    annotations: Mapping[str, Any] | None,
    packs: Mapping[str, Any] | None = None,
    **server: Any,
) -> AsyncIterator[OneTool]:
    """Open an application with one server, whose list of tools is in the cache."""
    settings = Settings.model_validate(
        {"servers": {"gh": {"command": "gh", **server}}, "tools": packs or {}}
    )
    definition = Definition("list", "", {"type": "object"}, annotations=annotations)
    ToolLists(DocumentFile(directory / "cache")).put(
        cache_key(settings.servers["gh"]), [definition]
    )
    async with OneTool(settings, folder=directory) as app:
        await app.discover()
        yield app


async def read_server_effects(
    directory: Path, annotations: Mapping[str, Any] | None, **server: Any
) -> str:
    async with open_server(directory, annotations, **server) as app:
        return describe_effects(app.registry.find("gh.list"))


def test_a_hint_adds_effects_at_once_and_removes_them_only_after_a_person_accepted_it(
    tmp_path: Path,
) -> None:
    harmless = {"readOnlyHint": True, "openWorldHint": False, "idempotentHint": True}
    pins, listed = (
        Documents(DocumentFile(tmp_path), "pins"),
        [Definition("list", "", {"type": "object"}, annotations=harmless)],
    )
    origin = identify_origin(Server(command="gh"))

    async def check() -> None:
        assert await read_server_effects(tmp_path, harmless) == "read, write, external", (
            "first seen is not accepted"
        )
        accept(pins, "gh", listed, origin)
        assert await read_server_effects(tmp_path, harmless) == "read, write, external", (
            "nobody has seen the hints"
        )
        accept(pins, "gh", listed, origin, {"list": "it only reads"})
        assert await read_server_effects(tmp_path, harmless) == "read, write, external", (
            "these are others"
        )
        claims = list_claims(pins.get("gh") or {}, listed, origin)
        assert claims == {
            "list": "it only reads, it reaches nothing outside, repeating a call changes nothing"
        }
        accept(pins, "gh", listed, origin, claims)
        assert list_claims(pins.get("gh") or {}, listed, origin) == {}
        assert await read_server_effects(tmp_path, harmless) == "read (idempotent)"
        accept(pins, "gh", listed, origin)
        assert await read_server_effects(tmp_path, harmless) == "read (idempotent)", (
            "they stay accepted"
        )
        assert (
            await read_server_effects(tmp_path, {"readOnlyHint": False}) == "read, write, external"
        )
        assert await read_server_effects(tmp_path, None) == "read, write, external"
        assert await read_server_effects(tmp_path, harmless, pin="off") == "read, write, external"

    anyio.run(check)


def test_an_accepted_hint_is_that_of_one_program_and_one_definition(tmp_path: Path) -> None:
    harmless, local = {"readOnlyHint": True}, {"openWorldHint": False}
    pins, origin = Documents(DocumentFile(tmp_path), "pins"), identify_origin(Server(command="gh"))

    def accept_hints(annotations: Mapping[str, Any], **hints: str) -> dict[str, str]:
        listed = [Definition("list", "", {"type": "object"}, annotations=annotations)]
        accept(pins, "gh", listed, origin, hints)
        return list_claims(pins.get("gh") or {}, listed, origin)

    async def check() -> None:
        assert accept_hints(harmless, list="it only reads") == {}
        assert (
            await read_server_effects(tmp_path, harmless, env={"TOKEN": "other"})
            == "read, external"
        )
        for server in (
            {"command": "other"},
            {"args": ["evil"]},
            {"command": None, "url": "https://evil.example"},
        ):
            assert (
                await read_server_effects(tmp_path, harmless, **server) == "read, write, external"
            ), server
        other = [Definition("list", "", {"type": "object"}, annotations=local)]
        assert list_claims(pins.get("gh") or {}, other, origin) == {
            "list": "it reaches nothing outside"
        }
        assert accept_hints(local) == {"list": "it reaches nothing outside"}
        assert await read_server_effects(tmp_path, local) == "write, external"
        listed = [Definition("list", "", {"type": "object"}, annotations=harmless)]
        accept(pins, "gh", listed, "another program")
        assert list_claims(pins.get("gh") or {}, listed, "another program") == {
            "list": "it only reads"
        }

    anyio.run(check)


def test_results_are_untrusted_until_a_person_has_accepted_that_they_are_not(
    tmp_path: Path,
) -> None:
    async def check() -> None:
        local = {"readOnlyHint": True, "openWorldHint": False}
        async with open_server(tmp_path, local) as app:
            assert UNTRUSTED in get_labels(app.registry.find("gh.list"))
        listed = [Definition("list", "", {"type": "object"}, annotations=local)]
        origin = app.servers.upstream("gh").origin
        accept(
            Documents(DocumentFile(tmp_path), "pins"),
            "gh",
            listed,
            origin,
            list_claims({}, listed, origin),
        )
        async with open_server(tmp_path, local) as app:
            assert UNTRUSTED not in get_labels(app.registry.find("gh.list"))

    anyio.run(check)


@pytest.mark.parametrize(
    ("annotations", "settings", "permissions"),
    [
        (None, {}, "network"),
        ({"readOnlyHint": True}, {}, "network"),
        ({"readOnlyHint": True, "openWorldHint": False}, {}, "network"),
        ({"readOnlyHint": False}, {}, "write network"),
        ({"readOnlyHint": False}, {"list": ["read"]}, "network"),
        (None, {"*": ["exec"]}, "exec network"),
    ],
)
def test_hints_and_settings_of_an_upstream_server_imply_permissions(
    tmp_path: Path, annotations: dict[str, Any] | None, settings: dict[str, Any], permissions: str
) -> None:
    async def read() -> list[str]:
        async with open_server(tmp_path, annotations, packs={"gh": {"effects": settings}}) as app:
            found: list[str] = app.bus.tool_info("gh.list")["permissions"]
            return found

    assert anyio.run(read) == permissions.split()


def test_a_tool_that_no_longer_says_that_it_writes_keeps_the_permission(tmp_path: Path) -> None:
    async def read(annotations: Mapping[str, Any]) -> list[str]:
        async with open_server(tmp_path, annotations) as app:
            found: list[str] = app.bus.tool_info("gh.list")["permissions"]
            return found

    for annotations in ({"readOnlyHint": False}, {"readOnlyHint": True}):
        assert anyio.run(read, annotations) == ["write", "network"]


# --- extensions and programs ----------------------------------------------------------------------


def test_an_extension_declares_effects_with_the_decorator(tmp_path: Path) -> None:
    file = tmp_path / "a_tools.py"
    file.write_text(
        "import onetool\nfrom onetool import tool\n"
        '@tool(effects=["read", "external"], idempotent=True)\ndef one(): ...\n'
        '@onetool.tool(effects=["write"])\ndef two(): ...\n'
        "@other(effects=load())\ndef three(): ...\n"
        "@tool(effects=load())\ndef four(): ...\n"
        '@tool(effects=["reads"])\ndef five(): ...\n',
        encoding="utf-8",
    )
    extension = static_analysis.read(file)
    found = {each.name: (each.effects, each.is_idempotent) for each in extension.functions}
    assert found == {
        "one": ({"read", "external"}, True),
        "two": ({"write"}, False),
        "three": (None, False),
    }
    messages = [each.message for each in extension.problems]
    assert any("four: line 9: effects must be a literal" in message for message in messages)
    assert any(
        "five: unknown effect 'reads': expected some of read, write, exec, external" in each
        for each in messages
    )


EFFECTFUL = """
pack = "notes"
from onetool import tool
@tool(effects=["write"])
def save(): open("saved", "w").close()
@tool(effects=["exec", "external"], permissions=["read"])
def start(): ...
@tool(effects=["read"])
def count(): return 1
def plain(): return 2
"""


def test_effects_of_an_extension_imply_permissions(tmp_path: Path) -> None:
    file = tmp_path / "tools" / "notes_tools.py"
    file.parent.mkdir()
    file.write_text(EFFECTFUL, encoding="utf-8")

    async def check(packs: Mapping[str, Any]) -> dict[str, list[str]]:
        settings = Settings.model_validate({"tools_dir": [str(file.parent)], "tools": packs})
        async with OneTool(settings, folder=tmp_path) as app:
            await app.discover()
            names = [
                entry.name for entry in app.registry.entries() if entry.name.startswith("notes.")
            ]
            return {name: app.bus.tool_info(name)["permissions"] for name in names}

    needed = {"notes.count": [], "notes.plain": [], "notes.save": ["write"]}
    assert anyio.run(check, {}) == {**needed, "notes.start": ["read", "exec", "network"]}
    corrected = anyio.run(check, {"notes": {"effects": {"save": ["read"], "plain": ["write"]}}})
    assert (corrected["notes.save"], corrected["notes.plain"]) == ([], ["write"])
    assert set(map(tuple, anyio.run(check, {"notes": {"permissions": ["read"]}}).values())) == {
        ("read",)
    }


def test_programs_declare_effects() -> None:
    class Report:
        """Write a report."""

        name, permissions, effects, idempotent = "report.write", (), ["write"], True

        def call(self, _params: dict[str, Any], _context: ToolContext) -> str:
            return "done"

    bus = ToolBus()
    bus.register_tool(tool("a.read", effects=["read"], labels=["private"])(lambda: None))
    bus.register_tool(Report())
    bus.register_tool(tool("a.fetch", permissions=["network"])(lambda: None))
    bus.register_tool(lambda: None, name="a.plain", permissions=["read"])
    facts = {name: bus.tool_info(name) for name in bus.list_tools()}
    assert {name: each["effects"] for name, each in facts.items()} == {
        "a.fetch": ["write", "external"],
        "a.plain": ["read"],
        "a.read": ["read"],
        "report.write": ["write"],
    }
    assert (facts["report.write"]["idempotent"], facts["a.read"]["labels"]) == (True, ["private"])
    with pytest.raises(ValueError, match="unknown effect 'reads'"):
        tool("a.bad", effects=["reads"])


def test_an_unknown_effect_cannot_be_registered() -> None:
    class Bad:
        name, permissions, effects = "bad.tool", (), ["reads"]

        def call(self, _params: dict[str, Any], _context: ToolContext) -> None: ...

    with pytest.raises(ToolError, match=r"cannot register bad\.tool: unknown effect 'reads'"):
        ToolBus().register_tool(Bad())


# --- settings and views ---------------------------------------------------------------------------


def test_settings_win_and_follow_a_reload(tmp_path: Path) -> None:
    packs = {
        "gh": {"effects": {"l*": ["read"]}, "labels": {"*": []}},
        "fs": {
            "effects": {"re*": "external", "read": "write"},
            "idempotent": ["write"],
            "permissions": ["network"],
        },
        "grep": {"effects": {"grep": "exec"}},
        "own": {"effects": {"*": "read"}},
    }
    servers = {"gh": {"command": "gh"}}
    current: dict[str, Any] = {"servers": servers}
    settings = Settings.model_validate(current)
    ToolLists(DocumentFile(tmp_path / "cache")).put(
        cache_key(settings.servers["gh"]), [Definition("list", "", {})]
    )

    async def check() -> None:
        async with OneTool(
            read=lambda: wrap_settings(Settings.model_validate(current), tmp_path)
        ) as app:
            await app.discover()
            app.bus.register_tool(tool("own.tool")(lambda: None))
            names = ["fs.read", "fs.write", "fs.list", "grep", "gh.list", "own.tool"]
            undeclared = "write, external (not declared)"
            declared = ["read", "write", "read", "read", undeclared, undeclared]
            for tools, expected in (
                ({}, declared),
                (packs, ["write", "write (idempotent)", "read", "exec", "read", "read"]),
                ({}, declared),
            ):
                current["tools"] = tools
                await app.live_settings.reload()
                assert [describe_effects(app.registry.find(name)) for name in names] == expected
                assert get_labels(app.registry.find("gh.list")) == (set() if tools else ALL)

    anyio.run(check)


def test_effects_are_shown(tmp_path: Path) -> None:
    with serve_app(tmp_path) as server:
        body = server.rest.get("/api/tools/fs.edit")
        assert (body["effects"], body["isIdempotent"], body["labels"]) == (
            ["read", "write"],
            False,
            ["private"],
        )
    with open_app() as app:
        assert "Effects: read, external" in app.data("ot.help(query='http.get')")
        assert app.data("ot.tools(pattern='ot.notify', info='full')")[0]["effects"] == "write"


def test_health_names_packs_without_declared_effects_if_a_policy_can_ask() -> None:
    tools = [
        tool("crm.add")(lambda: None),
        tool("crm.list")(lambda: None),
        tool("b.c", effects=["read"])(lambda: None),
    ]
    with open_app({"agents": {"default": {"policy": "ask-writes"}}}, tools) as app:
        (found,) = [each for each in app.data("ot.health()")["problems"] if "effects" in each]
    assert (
        found
        == "2 tools of crm without declared effects, and the policy of default can ask. Hint: such"
        " tools count as write and external; declare them: tools: {crm: {effects: {NAME: read}}}"
    )
    with open_app({"agents": {"default": {"policy": "read-only"}}}, tools) as app:
        assert "without declared effects" not in json.dumps(app.data("ot.health()"))


def test_health_names_rules_that_match_no_tool() -> None:
    patterns = ["fs.wirte", "fs.write", "fs", "f?.write", "grep", "gone.*", "fs.*", "*"]
    policy = [{"tools": pattern, "decision": "deny"} for pattern in patterns]
    with open_app({"agents": {"default": {"policy": policy}}}) as app:
        found = [each for each in app.data("ot.health()")["problems"] if "no tool matches" in each]
    assert len(found) == 2
    assert "no tool matches 'fs.wirte', so the rule has no effect" in found[0]
    assert "no tool matches 'gone.*'" in found[1]


def test_a_stored_result_keeps_the_labels_of_its_session() -> None:
    labels, later = SessionLabels(), SessionLabels()
    labels.merge({"private": {"fs": "fs.read"}, "untrusted": "http.get"})
    with open_app() as app:
        results = app.onetool.results
        stored = results.put("text", tool="run", labels=labels.to_json())
        context = replace(
            app.onetool.context("default"), run=RunScope(gate=SimpleNamespace(labels=later))
        )
        assert app.portal.call(partial(ot_tools.load, context, stored["handle"])) == "text"
        assert later.to_json() == labels.to_json()
        older = results.put("text", tool="run")
        latest = SessionLabels()
        context = replace(context, run=RunScope(gate=SimpleNamespace(labels=latest)))
        app.portal.call(partial(ot_tools.result, context, older["handle"]))
        assert latest.untrusted == "an earlier call"
