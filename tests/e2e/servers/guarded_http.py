"""An HTTP server, made with the SDK, that requires a header."""

import sys
from typing import Any

import uvicorn
from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("guarded")


@server.tool()
async def whoami(ctx: Context) -> str:
    """The key that was sent."""
    request = ctx.request_context.request
    return str(request.headers["x-key"]) if request is not None else ""


def require_header(app: Any) -> Any:
    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and (b"x-key", b"open") not in scope["headers"]:
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b"no key"})
            return
        await app(scope, receive, send)

    return serve


if __name__ == "__main__":
    uvicorn.run(
        require_header(server.streamable_http_app()),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        log_level="error",
    )
