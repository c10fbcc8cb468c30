"""Everything that is kept, in SQLite and files, or in PostgreSQL for replicas.

Start with `State` in `storage.py`, which has one field for each kind of state, and with
`opening.py`, which opens it. `documents` has JSON documents by kind and name, `run_store` durable
runs, `stats` calls and runs, and `changes` the change feed of an application.

What holds here:

- Callers depend on `State` and the interfaces in `storage.py`. Nobody outside of this room asks
  which store there is.
- A kind has one implementation over `StateDatabase`, with statements that are valid in SQLite and
  PostgreSQL, wherever that is possible. Other kinds have one class for files, in `file_kinds`, and
  one for PostgreSQL, in `replica_kinds`.
- Other processes read what was written. A killed process leaves the old or the new state, and
  concurrent writers lose nothing. `tests/contract/test_storage.py` tests this for each kind.
- Methods may block, unless they say that they return at once. Callers on an event loop use a
  thread.
- If state cannot be written, methods raise a ToolError with the code `storage_unavailable`. What is
  written in the background sets `problem` instead.
- State that a newer version wrote is rejected and left unchanged. A released migration in
  `schema.py` is never changed.
- In PostgreSQL, expiries use the clock of the database, because clocks of replicas differ.
"""
