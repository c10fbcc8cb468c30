"""Upstream MCP servers as packs: their tool lists are cached on disk, and they start on the first call.

`servers.Servers` is the entry point. `upstream` is the backend of a server, `connection_manager` decides when to
connect, `connection` is a live connection, `definitions` caches tool lists, `content` converts results and `pins`
detects changes.
"""
