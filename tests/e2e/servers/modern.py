"""A server of the 2026 protocol, made with the SDK. It adds tools and elicits input."""

from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel

server = MCPServer("modern")


class Answer(BaseModel):
    word: str


@server.tool()
async def grow(name: str, ctx: Context) -> str:
    """Offer one more tool from now on."""
    server.add_tool(lambda: "here", name=name, description="It came later.")
    await ctx.notify_tools_changed()
    return "grown"


@server.tool()
async def ask(ctx: Context) -> str:
    """Ask a person."""
    return (await ctx.elicit("Password?", Answer)).action


if __name__ == "__main__":
    server.run("stdio")
