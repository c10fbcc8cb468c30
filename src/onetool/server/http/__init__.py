"""REST, MCP and the admin UI in one ASGI application, behind one authentication middleware."""
