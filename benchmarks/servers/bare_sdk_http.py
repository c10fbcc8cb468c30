"""The baseline over HTTP: the server of `bare_sdk` at /mcp, served by the SDK on uvicorn with h11.

It prints its port.
"""

import socket
from typing import Any

import uvicorn
from bare_sdk import call_tool, list_tools  # type: ignore[import-not-found]  # in this directory
from mcp.server.lowlevel import Server


def main() -> None:
    server: Server[Any] = Server(
        "bare", version="0", on_list_tools=list_tools, on_call_tool=call_tool
    )
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listening.setsockopt(
        socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
    )  # as uvicorn does for sockets that it opens
    print(listening.getsockname()[1], flush=True)
    config = uvicorn.Config(
        server.streamable_http_app(), http="h11", log_level="error", access_log=False
    )
    uvicorn.Server(config).run([listening])


if __name__ == "__main__":
    main()
