"""MCP, REST, the admin UI and the shared server: they translate protocols into calls.

Start with `mcp/mcp_server.py` for MCP, `http/asgi_app.py` for REST, and `daemon/daemon.py` for the
server that all clients of a user share. `http/route_table.py` lists the routes of actions, `ui` has
the files of the admin UI, `fair_queue` limits concurrent runs and calls, and `settings_watcher`
reloads settings.

What holds here:

- Calls of tools go to the bus, code to `Runs`, and everything else that people do to
  `onetool.admin`, as from the command line.
- Every HTTP request passes `http/auth.py`. Without a token, only requests from this machine to a
  loopback address are accepted; approvals and administration need a token or session even then.
- REST errors have one form, `{"error": {"code", "message", "details"}}`, and one table of status
  codes, both in `http/errors.py`.
- REST redacts secrets in responses, unless a route in the table says otherwise (`is_redacted`).
- A failed run is an MCP result with `isError`, never a protocol error.
- Slow and silent clients cannot block others: heads, bodies and connections are limited. The call
  of a client that has disconnected is cancelled.
- MCP over stdio loads nothing of `http`.
"""
