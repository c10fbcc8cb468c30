"""The environment of the naive model: files, an extension pack, upstream servers, stored HTTP tools.

No description contains the expected numbers, file names and words, so only a result of the right tool contains them.
The tasks are in `naive_tasks`.
"""

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.bundles_support import new_bundle, open_store, tool_body
from tests.extensions_support import write_pack
from tests.http_support import ReceivedRequest, Site, send_response, serve_site
from tests.proxy_support import MODERN, node_server, python_server
from tests.support import configure, run_cli

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
        servers = {
            "every": node_server("everything", tools={"exclude": ["get-env", "toggle-*"]}),
            "clock": python_server("mcp-server-time"),
            "modern": {"command": sys.executable, "args": [str(MODERN)]},
        }
        http = {"allowedHosts": ["127.0.0.1"], "allowPrivateAddresses": True}
        configure(home, json.dumps({**SETTINGS, "servers": servers, "http": http}))
        _write_files(home)
        _store_tools(home, site)
        failed = run_cli(home, "run", "storehouse.shelf()")  # a failed call for the statistics
        assert "requires 'article'" in failed.stdout + failed.stderr
        listed = run_cli(home, "run", "len([every, clock, modern])")  # a search does not wait for slow servers
        assert listed.stdout == "3\n", listed.stderr
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
    order = {"method": "POST", "urlTemplate": site.url("/orders"), "body": {"item": "${item}", "count": "${quantity}"}}
    with open_store(home / ".onetool" / "bundles") as store:
        bundle = new_bundle(store, "office", description="The API of the office")
        store.put_tool(bundle, "person", "1", _http_tool("Look a person up in the directory", person, "person_id"))
        store.put_tool(bundle, "order", "1", _http_tool("Order something", order, "item", "quantity"))


def _http_tool(description: str, impl: dict[str, Any], *needed: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {name: {"type": "integer" if name == "quantity" else "string"} for name in needed},
        "required": list(needed),
    }
    body = {"displayName": description, "description": description, "argSchema": schema, "httpImpl": impl}
    return {key: value for key, value in {**tool_body(), **body, "type": "http"}.items() if key != "pythonImpl"}


async def _person(received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    person = {"id": received.argument, "surname": f"Quill-{received.argument[::-1]}"}
    send_response(writer, json.dumps(person).encode(), ("Content-Type", "application/json"))


async def _order(received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    order_body = json.loads(received.body)
    receipt = {"receipt": f"R-{int(order_body['count']) * 37}-{order_body['item']}"}
    send_response(writer, json.dumps(receipt).encode(), ("Content-Type", "application/json"), status=201)
