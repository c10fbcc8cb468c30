"""Tools and calls: what they are, and the one path that every call takes.

Start with `tool.py`, then read `ToolBus.call_tool` in `bus/bus.py` from top to bottom. `registry`
finds tools, `schema` validates arguments, `policy` decides which calls a person must approve, and
`agents` gives a caller its permissions and limits.

What holds here:

- Every call goes through `ToolBus.call_tool`, whatever the transport, also a call that a tool
  makes. There is no middleware and there are no hooks: a new step is a line in `_run_steps`.
- `Tool` is immutable data. Only its `backend` knows how to carry out a call.
- An exception of a tool becomes a `Result` in one place, `_call_safely`. Callers get a `Result`.
- A call is authorized before its arguments are validated, because a schema can make validation
  slow. The audit log records a call that writes, executes or uses the network before it is made.
- The registry is an ordered view over sources and copies nothing. The first source with exactly
  this name wins, so the order of discovery does not matter. `peek`, `is_pack`, `packs`, `problems`
  and iteration never block; everything else may read the disk.
- Listeners of `bus/events.py` observe calls. An exception in one of them cannot make a call fail.
- Schemas of others (`foreign_schema`) may be hostile: work that they cause is limited.

This room imports no source, no run and no transport.
"""
