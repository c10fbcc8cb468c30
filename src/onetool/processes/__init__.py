"""Child processes, seen from the server: start and end them, and exchange messages with them.

Start with `channel.py`, which exchanges messages with cells and workers, and `process.py`, which
starts and ends processes. `supervised` starts a child on demand and stops it when it is idle,
and lets several applications share it; `programs` runs programs for tools. `daemon_client` is the
other side: the thin client of the shared server, with `daemon_connection` and `stdio_bridge`.

What holds here:

- Children are not trusted. The size of a message is checked before it is parsed; a message over a
  limit, or one that is not JSON-RPC, closes the channel.
- One child cannot take the event loop: one that sends much is read slowly (`Pace`), and only a
  limited number of its requests is answered at the same time.
- Descendants end with their process, also if the server is killed: `onetool_child.guard` ends them.
- A supervised child is started once for all callers. Cancelling a caller does not cancel the start,
  and after a failure the next attempt waits.
- What one user of a shared child does never affects the calls of the others.
- The client of the shared server imports only the standard library and sends no request twice.

Of the other rooms, this one imports only `onetool.util`.
"""
