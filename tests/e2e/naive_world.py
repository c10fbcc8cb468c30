"""The environment of the naive model: files, an extension pack, upstream servers, stored HTTP
tools.

More than 300 of its tools are real: those of public servers from npm and PyPI, and of GitHub's
OpenAPI document. No description contains the expected numbers, file names and words, so only a
result of the right tool contains them. The tasks are in `naive_tasks`.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.bundles_support import new_bundle, open_store, tool_body
from tests.extensions_support import write_pack
from tests.http_support import ReceivedRequest, Site, send_response, serve_site
from tests.openapi_support import github
from tests.proxy_support import MODERN, node_server, python_server
from tests.support import configure, run_cli

from onetool.sources.bundles.importer import import_bundle
from onetool.sources.bundles.openapi import to_bundle

WRITING_TOOLS = [
    "write_file",
    "edit_file",
    "create_directory",
    "move_file",
]  # the agent may not write
GITHUB_TAGS = {"issues", "pulls", "gists", "repos", "search", "git"}

PACK = '''\
"""What lies in the storehouse."""

permissions = ["read"]


def shelf(article: str) -> dict[str, object]:
    """Where an article is stored in the storehouse.

    Args:
        article: The name of the article.

    Example:
        storehouse.shelf(article="lamp")
    """
    return {"article": article, "row": len(article) * 111, "level": "mezzanine"}


def spare_parts() -> list[dict[str, object]]:
    """All spare parts that are in stock, in the order of their numbers."""
    return [{"number": n, "label": f"part-{n * 7919 % 99991}", "remark": "kept dry and dark"} for n in range(1, 5001)]


def journal() -> str:
    """The journal of the storehouse, a line for each event."""
    return "\\n".join(f"{n:05} {'FLOOD in cellar ' + str(n * 3) if n == 2718 else 'nothing'}" for n in range(1, 9001))
'''
BROKEN = '"""A pack that somebody is still writing."""\n\ndef unfinished(:\n'
FILES = {
    "report.txt": "The launch is on the nineteenth; the code word is marmalade.\n",
    "notes/monday.txt": "Feed the cat.\n",
    "notes/tuesday.txt": "The zeppelin lands at noon.\n",
    "notes/wednesday.txt": "Water the plants.\n",
    "memory.jsonl": (
        '{"type": "entity", "name": "lighthouse", "entityType": "house", "observations": ["red'
        ' lamp"]}\n'
    ),
    "sales.csv": "region,amount\nnorth,1200\nsouth,340\neast,77\nwest,4000\n",
}
SETTINGS: dict[str, Any] = {
    "aliases": {"room": "machine.disk"},
    "snippets": {
        "shout": {
            "description": "Say a sentence in capital letters, with an exclamation mark",
            "params": {"sentence": {"description": "What to say"}},
            "body": '"{{ sentence }}".upper() + "!"',
        }
    },
    "agents": {"builder": {"permissions": ["read", "write", "network"], "clients": ["builder"]}},
}


@contextmanager
def prepare(home: Path) -> Iterator[None]:
    """Write all files to the home directory, and serve the HTTP API."""
    with serve_site() as site:
        site.pages |= {"/persons/": _person, "/orders": _order}
        site.pages |= dict.fromkeys(("/repos/**", "/gists/**", "/search/**"), _repeat_request)
        servers = {
            "every": node_server("everything", tools={"exclude": ["get-env", "toggle-*"]}),
            "clock": python_server("mcp-server-time"),
            "modern": {"command": sys.executable, "args": [str(MODERN)]},
            "files": node_server(
                "filesystem", str(home), cwd="project", tools={"exclude": WRITING_TOOLS}
            ),
            "memory": node_server("memory", env={"MEMORY_FILE_PATH": str(home / "memory.jsonl")}),
            "git": python_server("mcp-server-git", "--repository", str(home / "garden")),
        }
        http = {"allowedHosts": ["127.0.0.1"], "allowPrivateAddresses": True}
        configure(home, json.dumps({**SETTINGS, "servers": servers, "http": http}))
        _write_files(home)
        _store_tools(home, site)
        _import_github(home, site)
        _create_repository(home / "garden")
        failed = run_cli(home, "run", "storehouse.shelf()")  # a failed call for the statistics
        assert "requires 'article'" in failed.stdout + failed.stderr
        listed = run_cli(
            home, "run", f"len([{', '.join(servers)}])"
        )  # a search does not wait for slow servers
        assert listed.stdout == f"{len(servers)}\n", listed.stderr
        yield


def _write_files(home: Path) -> None:
    for name, text in FILES.items():
        file = home / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    write_pack(home / ".onetool" / "tools", "storehouse", PACK)
    write_pack(home / ".onetool" / "tools", "unfinished", BROKEN)


def _store_tools(home: Path, site: Site) -> None:
    person = {"method": "GET", "urlTemplate": site.url("/persons/${person_id}")}
    order = {
        "method": "POST",
        "urlTemplate": site.url("/orders"),
        "body": {"item": "${item}", "count": "${quantity}"},
    }
    with open_store(home / ".onetool" / "bundles") as store:
        bundle = new_bundle(store, "office", description="The API of the office")
        store.put_tool(
            bundle,
            "person",
            "1",
            _http_tool("Look a person up in the directory", person, "person_id"),
        )
        store.put_tool(
            bundle, "order", "1", _http_tool("Order something", order, "item", "quantity")
        )


def _import_github(home: Path, site: Site) -> None:
    """Import the part of GitHub's OpenAPI document with these tags.

    The site answers instead of GitHub.
    """
    document = json.loads(github().read_text(encoding="utf-8"))
    paths = {
        path: {method: operation for method, operation in item.items() if _has_tag(operation)}
        for path, item in document["paths"].items()
    }
    document["paths"] = {path: item for path, item in paths.items() if item}
    document["servers"] = [{"url": site.url("").rstrip("/")}]
    with open_store(home / ".onetool" / "bundles") as store:
        import_bundle(store, to_bundle(json.dumps(document), name="github"))


def _has_tag(operation: Any) -> bool:
    return isinstance(operation, dict) and bool(GITHUB_TAGS.intersection(operation.get("tags", ())))


def _create_repository(directory: Path) -> None:
    directory.mkdir()
    (directory / "plants.txt").write_text("apple\n", encoding="utf-8")
    author = ("-c", "user.name=gardener", "-c", "user.email=gardener@example.com")
    for command in (
        ["init", "-q"],
        ["add", "."],
        [*author, "commit", "-q", "-m", "Plant the orchard"],
    ):
        subprocess.run(["git", *command], cwd=directory, check=True)
    subprocess.run(["git", "branch", "south-wall"], cwd=directory, check=True)
    (directory / "plants.txt").write_text("apple\nquince\n", encoding="utf-8")


def _http_tool(description: str, impl: dict[str, Any], *needed: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {
            name: {"type": "integer" if name == "quantity" else "string"} for name in needed
        },
        "required": list(needed),
    }
    body = {
        "displayName": description,
        "description": description,
        "argSchema": schema,
        "httpImpl": impl,
    }
    return {
        key: value
        for key, value in {**tool_body(), **body, "type": "http"}.items()
        if key != "pythonImpl"
    }


async def _repeat_request(received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    """Answer with the request, which shows that the right operation was called."""
    body = received.body.decode() if received.body else ""
    answer = {"received": f"{received.method} {received.path}", "body": body}
    send_response(writer, json.dumps(answer).encode(), ("Content-Type", "application/json"))


async def _person(received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    person = {"id": received.argument, "surname": f"Quill-{received.argument[::-1]}"}
    send_response(writer, json.dumps(person).encode(), ("Content-Type", "application/json"))


async def _order(received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    order_body = json.loads(received.body)
    receipt = {"receipt": f"R-{int(order_body['count']) * 37}-{order_body['item']}"}
    send_response(
        writer, json.dumps(receipt).encode(), ("Content-Type", "application/json"), status=201
    )
