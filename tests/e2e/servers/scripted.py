"""An upstream server over stdio.

A JSON file has its tools and results: `{name: {"tool": {}, "result": {}}}`.
"""

import json
import sys
from pathlib import Path
from typing import Any

SCRIPT: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))


def respond(message: dict[str, Any]) -> dict[str, Any]:
    params = message.get("params") or {}
    match message["method"]:
        case "initialize":
            info = {"name": "scripted", "version": "1"}
            result: Any = {"capabilities": {"tools": {}}, "serverInfo": info}
            return {"result": {**result, "protocolVersion": params["protocolVersion"]}}
        case "tools/list":
            return {
                "result": {
                    "tools": [{"name": name, **part["tool"]} for name, part in SCRIPT.items()]
                }
            }
        case "tools/call":
            return {"result": SCRIPT[params["name"]]["result"]}
        case "ping":
            return {"result": {}}
    return {"error": {"code": -32601, "message": "Method not found"}}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        sys.stdout.write(
            json.dumps({"jsonrpc": "2.0", "id": request["id"], **respond(request)}) + "\n"
        )
        sys.stdout.flush()
