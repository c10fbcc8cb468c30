"""The HTTP door: REST, MCP and the page in one application, behind one gate. `server` puts it together."""
