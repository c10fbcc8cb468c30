"""A FastMCP server with one tool that returns its argument. It runs in an environment of its own."""

from fastmcp import FastMCP

server = FastMCP("echo")


@server.tool
def echo(text: str) -> str:
    """Give back the text."""
    return text


if __name__ == "__main__":
    server.run(show_banner=False, log_level="ERROR")
