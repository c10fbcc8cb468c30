"""Serve the tools of a world over stdio, and its control over a Unix socket.

The worlds are `bfcl`, and `retail` and `airline` of tau-bench, which need its directory. The
control socket takes one JSON object per line, `{"do": COMMAND, ...}`, and answers each with one
line. It loads tasks, chooses the published tools and compares the state with the expected one. With
`--task`, the server loads one task instead, and writes the comparison to `--result` after each
call. Models never see either.
"""

import argparse
import importlib
import json
import socket
import sys
import threading
from pathlib import Path
from typing import Any

PROTOCOL = "2025-06-18"
METHOD_NOT_FOUND = -32601


class TaskServer:
    """Answers requests of one MCP client on stdio, and of one controller."""

    def __init__(self, world: Any, result: Path | None = None) -> None:
        self._world, self._result = world, result
        self._definitions = {each["name"]: each for each in world.definitions()}
        self._offered = list(self._definitions.values())
        self._state_lock, self._write_lock = threading.Lock(), threading.Lock()

    # --- MCP --------------------------------------------------------------------------------------

    def serve_mcp(self) -> None:
        for line in sys.stdin:
            request = json.loads(line)
            if "id" not in request or "method" not in request:
                continue
            answer = self._answer(request["method"], request.get("params") or {})
            self._send({"id": request["id"], **answer})

    def _answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        match method:
            case "initialize":
                about = {"name": "onetool-bench", "version": "1"}
                capabilities = {"tools": {"listChanged": True}}
                return {
                    "result": {
                        "protocolVersion": PROTOCOL,
                        "capabilities": capabilities,
                        "serverInfo": about,
                    }
                }
            case "ping":
                return {"result": {}}
            case "tools/list":
                return {"result": {"tools": self._offered}}
            case "tools/call":
                return {"result": self._call(params["name"], params.get("arguments") or {})}
        return {"error": {"code": METHOD_NOT_FOUND, "message": f"unknown method {method}"}}

    def _call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        with self._state_lock:
            try:
                return {"content": [{"type": "text", "text": self._world.call(name, arguments)}]}
            except Exception as error:  # noqa: BLE001 - the classes of the tasks raise anything
                return {
                    "content": [{"type": "text", "text": f"{type(error).__name__}: {error}"}],
                    "isError": True,
                }
            finally:
                self.write_result()

    def write_result(self) -> None:
        if self._result is not None:
            self._result.write_text(json.dumps(self._world.check()), encoding="utf-8")

    def _send(self, message: dict[str, Any]) -> None:
        line = json.dumps({"jsonrpc": "2.0", **message}) + "\n"
        with self._write_lock:
            sys.stdout.write(line)
            sys.stdout.flush()

    # --- control ----------------------------------------------------------------------------------

    def serve_control(self, listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            with connection, connection.makefile("rw", encoding="utf-8") as stream:
                for line in stream:
                    stream.write(json.dumps(self._control(json.loads(line))) + "\n")
                    stream.flush()

    def _control(self, request: dict[str, Any]) -> Any:
        with self._state_lock:
            match request["do"]:
                case "outline":
                    return self._world.outline()
                case "describe":
                    return self._world.describe(request["task"])
                case "definitions":
                    return list(self._definitions.values())
                case "load":
                    return self._world.load(request["task"])
                case "check":
                    return self._world.check()
        if self.offer(request["tools"]):
            self._send({"method": "notifications/tools/list_changed"})
        return None

    def offer(self, names: list[str]) -> bool:
        """Choose the published tools; return whether they changed."""
        before, self._offered = self._offered, [self._definitions[name] for name in names]
        return before != self._offered


def create_world(name: str, directory: str) -> Any:
    """Import only the module of this world, from the directory of this script."""
    if name == "bfcl":
        return importlib.import_module("bfcl").BfclWorld()
    return importlib.import_module("tau").TauWorld(name, directory)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("world", choices=("bfcl", "retail", "airline"))
    parser.add_argument("directory", nargs="?", default="")
    parser.add_argument("--control", metavar="SOCKET")
    parser.add_argument("--task", metavar="ID")
    parser.add_argument("--result", type=Path, metavar="FILE")
    parser.add_argument("--tools", nargs="*", metavar="NAME")
    options = parser.parse_args()
    world = create_world(options.world, options.directory)
    server = TaskServer(world, options.result)
    if options.task:
        world.load(options.task)
        server.offer(options.tools)
        server.write_result()
    if options.control:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(options.control)
        listener.listen(1)
        threading.Thread(target=server.serve_control, args=(listener,), daemon=True).start()
    server.serve_mcp()


if __name__ == "__main__":
    main()
