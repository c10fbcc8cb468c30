"""MCP: one server with one tool, `run`, over stdio and over HTTP."""
