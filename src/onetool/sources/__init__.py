"""Sources of tools, and the backends that execute them.

A source (`ToolSource` in `onetool.core.registry`) lists tools, and a backend executes them:

- `builtin`: functions in the server process, one module per pack; start with `machine_tools.py`
- `extensions`: files of users and packs of installed packages, in workers; start with `packs.py`
- `upstream`: other MCP servers; start with `servers.py`
- `bundles`: stored HTTP tools and OpenAPI imports; start with `source.py`. `http` executes them.

The other directories serve tools: `files` opens files, `llm` asks a language model, `search` ranks
tools, and `checks` finds the problems that `ot.health()` reports.

What holds here:

- A built-in tool does not import the bus, the runs or the application. It gets a `ToolContext`,
  whose `system` is the protocol in `system.py`.
- Code of extensions is never executed in the server. Their files are parsed, and their functions
  run in workers.
- Nothing watches directories. A source looks at the current files when a name is needed.
- A pack has tools or a problem: `problems()` says why a configured pack has none.
- Tools open files with `files`, which checks the path and opens it so that the check still holds,
  and send requests with `onetool.net`.
- Definitions, messages and results of servers, documents and files may be hostile. Their size is
  checked before they are parsed.
"""
