"""Upstream MCP servers as packs, with cached tool lists; they start on the first call.

`servers.Servers` is the source of tools. A server is one `upstream.Upstream`, the backend of its
tools, with a `session` for each sign-in; a session decides when to connect, and `connection` is
live. `definitions` caches tool lists and converts results; `checked_tools` compares definitions with
their pins and makes tools.
"""
