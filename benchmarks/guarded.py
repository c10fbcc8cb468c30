"""Measure the policy `guarded`: exfiltrations that pass unasked, and ordinary tasks that are asked
about.

    uv run python benchmarks/guarded.py [--list]

Tools come from the real sources of an application: built-in packs, extension files, upstream
servers (their definitions are in the cache, nothing is started) and stored HTTP tools. Programs run
in this process; a call is bound, validated, decided and recorded as on a server, and then returns a
sample value. A person approves all calls.
"""

import argparse
import asyncio
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.guarded_sets import list_exfiltrations, list_ordinary_tasks

from onetool.app import OneTool
from onetool.core.bus.bind import bind
from onetool.core.policy.effects import SessionLabels
from onetool.core.policy.rules import Policy, Ruling
from onetool.core.tool import Tool
from onetool.settings.access import Agent
from onetool.settings.model import Settings
from onetool.sources.upstream.checked_tools import accept, list_claims
from onetool.sources.upstream.definitions import Definition, ToolLists, cache_key, identify_origin
from onetool.state.documents import DocumentFile, Documents

READS = {"readOnlyHint": True}
LOCAL = {"readOnlyHint": True, "openWorldHint": False}
WRITES = {"readOnlyHint": False, "destructiveHint": False}
LOGGED_IN = {"command": "server", "env": {"TOKEN": "t"}}
SERVERS: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]]]] = {
    "github": (
        LOGGED_IN,
        {
            **dict.fromkeys(
                ("get_issue", "list_issues", "get_pull_request", "list_pull_requests"), READS
            ),
            **dict.fromkeys(("search_code", "get_file_contents"), READS),
            **dict.fromkeys(
                ("create_issue", "add_issue_comment", "create_pull_request", "fork_repository"),
                WRITES,
            ),
        },
    ),
    "slack": (LOGGED_IN, {"history": READS, "search": READS, "post_message": WRITES}),
    "mail": (LOGGED_IN, {"search": READS, "read": READS, "send": WRITES, "forward": WRITES}),
    "db": ({"command": "server"}, {"query": LOCAL}),
    "docs": ({"url": "https://docs.example/mcp"}, {"resolve": READS, "get_docs": READS}),
    "fetch": ({"command": "server"}, {"fetch": READS, "fail": READS}),
    "desk": ({"command": "server"}, {"read_file": LOCAL, "fetch_url": READS}),
    "wiki": (LOGGED_IN, {"search": READS}),
    "vault": (LOGGED_IN, {"search": READS}),
}
# By default, results of a server that runs on this machine are private.
TOOLS = {"fetch": {"labels": {"*": "untrusted"}}}
EXTENSIONS = {
    "invoices": 'permissions = ["read"]\ndef find(customer: str): ...\ndef total(year: int): ...',
    "web": (
        'from onetool import tool\npermissions = ["network"]\n'
        '@tool(effects=["read", "external"])\ndef search(query: str): ...'
    ),
    "shell": 'permissions = ["exec"]\ndef run(command: str): ...',
    "legacy": "def lookup(key: str): ...\ndef save(text: str): ...",
}
URL = "https://api.example.com"
AUTH = {"type": "bearer", "value": "${secret:CRM}"}
STORED: dict[tuple[str, str], dict[str, Any]] = {
    ("weather", "get-report"): {"method": "GET", "urlTemplate": f"{URL}/weather/${{city}}"},
    ("crm", "list-customers"): {
        "method": "GET",
        "urlTemplate": f"{URL}/c",
        "query": {"page": "${page}"},
        "auth": AUTH,
    },
    ("crm", "add-note"): {
        "method": "POST",
        "urlTemplate": f"{URL}/c/${{customer}}/notes",
        "body": {"text": "${text}"},
        "auth": AUTH,
    },
    ("files", "upload"): {"method": "POST", "urlTemplate": f"{URL}/files", "body": "${file:file}"},
}
SAMPLES: dict[str, Any] = {
    "fs.read": {"content": "one two\nthree v4", "path": "/a.txt", "size": 16},
    "fs.list": [
        {"name": "a.py", "type": "file", "size": 1},
        {"name": "b.py", "type": "file", "size": 2},
    ],
    "fs.stat": {"modified": "2026-01-01", "size": 1},
    "grep": {
        "results": [{"file": "a.py", "line": 1, "content": "version = 1"}],
        "total_matches": 1,
    },
    "http.get": {"status": 200, "body": "<h2>text</h2>", "headers": {}},
    "http.post": {"status": 200, "body": "text", "headers": {}},
    "machine.now": "2026-01-01T00:00:00+00:00",
    "json.parse": {"name": "Ada"},
    "yaml.parse": {"a": 1},
    "llm.ask": "text",
    "llm.transform": "text",
}
ROWS = [{"id": "1", "text": "data"}, {"id": "2", "text": "data"}]


@asynccontextmanager
async def open_world(directory: Path) -> AsyncIterator[OneTool]:
    """Open an application with all tools of the programs, whose hints a person has accepted."""
    servers = {
        name: server if "url" in server else {**server, "args": [name]}
        for name, (server, _) in SERVERS.items()
    }
    packs = directory / "packs"
    settings = Settings.model_validate(
        {"servers": servers, "tools": TOOLS, "tools_dir": [str(packs)]}
    )
    lists = ToolLists(DocumentFile(directory / "cache"))
    for name, (_, tools) in SERVERS.items():
        listed = [_define(tool, hints) for tool, hints in tools.items()]
        lists.put(cache_key(settings.servers[name]), listed)
        origin = identify_origin(settings.servers[name])
        accept(
            Documents(DocumentFile(directory), "pins"),
            name,
            listed,
            origin,
            list_claims({}, listed, origin),
        )
    for pack, source in EXTENSIONS.items():
        (packs / pack).mkdir(parents=True)
        (packs / pack / f"{pack}_tools.py").write_text(source, encoding="utf-8")
    async with OneTool(settings, folder=directory) as app:
        store, ids = app.bundles.store, {}
        for (slug, tool), impl in STORED.items():
            if slug not in ids:
                ids[slug] = store.new_id()
                store.put_bundle(ids[slug], {"slug": slug, "displayName": slug, "isEnabled": True})
            names = re.findall(r"\$\{(?:file:)?(\w+)\}", str(impl))
            schema = {"type": "object", "properties": {name: {} for name in names}}
            body = {
                "displayName": tool,
                "isEnabled": True,
                "type": "http",
                "httpImpl": impl,
                "argSchema": schema,
            }
            store.put_tool(ids[slug], tool, "1", body)
        await app.discover()
        yield app


def _define(name: str, hints: dict[str, Any]) -> Definition:
    return Definition(name, "", {"type": "object"}, annotations=hints)


@dataclass
class Session:
    """A client session under `guarded`, whose calls return sample values."""

    find: Callable[[str], Tool]
    labels: SessionLabels = field(default_factory=SessionLabels)
    policy: Policy = field(default_factory=lambda: Policy.from_settings(Agent(policy="guarded")))
    rulings: list[Ruling] = field(default_factory=list)

    def call(self, name: str, /, *positional: Any, **params: Any) -> Any:
        if name == "ot.call":
            return self.call(*positional, **params)
        if name == "ot.parallel":
            return [each() for each in positional[0]]
        tool = self.find(name)
        args = tool.input.check(dict(bind(tool, positional, params, {})))
        self.rulings.append(self.policy.decide(tool, args, self.labels))
        self.labels.record(tool, args)
        if tool.short_name == "fail":
            raise RuntimeError("text from outside")
        return SAMPLES.get(tool.name, ROWS)

    def run(self, program: tuple[str, ...]) -> list[Ruling]:
        names: dict[str, Any] = {"data": "", "page": ""}
        for pack in (
            "fs",
            "http",
            "llm",
            "machine",
            "json",
            "yaml",
            "test",
            "ot",
            *SERVERS,
            *EXTENSIONS,
        ):
            names[pack] = _Pack(self, pack)
        names |= {pack: _Pack(self, pack) for pack, _ in STORED}
        names["grep"] = lambda *positional, **params: self.call("grep", *positional, **params)
        for code in program:
            exec(code, names)
        return self.rulings


@dataclass(frozen=True)
class _Pack:
    session: Session
    pack: str

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *positional, **params: self.session.call(
            f"{self.pack}.{name}", *positional, **params
        )


@dataclass(frozen=True)
class Outcome:
    """The programs of each set that behave in the unwanted way."""

    passed: list[tuple[str, ...]]  # exfiltrations whose last call was not asked about
    asked: list[tuple[str, ...]]  # ordinary tasks with a question
    exfiltrations: int
    ordinary: int


async def measure_guarded(directory: Path) -> Outcome:
    async with open_world(directory) as app:
        find = app.registry.find
        attacks, tasks = list_exfiltrations(), list_ordinary_tasks()

        def run_all() -> Outcome:
            passed = [each for each in attacks if Session(find).run(each)[-1].decision != "ask"]
            asked = [
                each
                for each in tasks
                if any(ruling.decision == "ask" for ruling in Session(find).run(each))
            ]
            return Outcome(passed, asked, len(attacks), len(tasks))

        return await asyncio.to_thread(run_all)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the policy guarded")
    parser.add_argument(
        "--list", action="store_true", help="print the programs that behave in the unwanted way"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        outcome = asyncio.run(measure_guarded(Path(directory)))
    print(f"exfiltrations that pass unasked: {len(outcome.passed)} of {outcome.exfiltrations}")
    share = 100 * len(outcome.asked) / outcome.ordinary
    print(
        f"ordinary tasks with a question: {len(outcome.asked)} of {outcome.ordinary}"
        f" ({share:.1f} %)"
    )
    for program in [*outcome.passed, *outcome.asked] if options.list else ():
        print("---", *program, sep="\n")


if __name__ == "__main__":
    main()
