"""Specification 5, tool bus, permissions, sandbox and built-in tools, as read by section 5 of the
reading.

The document has no named scenarios, so the names are ours. Requirements of all transports that the
bus fulfills (binding, defaults, one kind of error) are included.
"""

from .requirement import Table, list_requirements

TABLE: Table = {
    "contract": {
        "decorated-function": "A function under @tool is a tool",
        "object": "An object with name, permissions and call(params, context) is a tool",
        "optional-parts": (
            "validate_params and param_schema may be left out, and then check nothing"
        ),
        "names": "A name is pack.tool, or bare",
        "returned-value": "What the tool returns is the value",
        "returned-result": "A Result that the tool returns is taken as it is",
        "raised-error": "A ToolError that the tool raises is its failure",
        "returned-tuple": (
            "An object may return (ok, value) or (error, reason); a function returns data"
        ),
    },
    "register": {
        "listed-afterwards": "A registered tool is listed and can be called",
        "not-a-tool": "Registering what does not keep the contract raises and says what is missing",
        "duplicate-name": "A name that is taken is refused and the first tool stays",
        "unregister": "An unregistered tool is gone, and its name is free",
        "entry-points": "Installed packages bring tools through the entry-point group",
    },
    "list": {
        "names": "The list has the names of all registered tools",
        "starts-empty": "A new bus has no tools and needs no configuration",
    },
    "get": {
        "known": "A known name gives the tool",
        "unknown": "An unknown name is not_found",
    },
    "info": {
        "known": "A known name gives name, permissions, schema and where the tool comes from",
        "unknown": "An unknown name is not_found",
    },
    "call": {
        "answers-with-a-result": "A call answers with a Result, whether it worked or failed",
        "unwrap": "unwrap gives the value or raises the original exception",
        "unknown-tool": "A call of an unknown name is a not_found failure",
        "refused-before-it-runs": "Permissions and parameters are checked before the tool runs",
    },
    "validation": {
        "schema": (
            "Parameters that do not fit the schema are a validation_error that names the field"
        ),
        "own-validator": "validate_params may refuse, and its words are the message",
    },
    "bind": {
        "prefix": "Abbreviated parameter names mean the first parameter they fit",
        "two-keys-one-parameter": "Two keys that land on one parameter are an error",
        "unknown-parameter": "A parameter that fits nothing is an error with the signature",
        "defaults": "Defaults of the schema are filled in before the tool runs",
    },
    "async": {
        "sync-tool": "A plain function is a tool",
        "async-tool": "A coroutine function is a tool",
        "slow-tool": "A slow tool, sync or async, holds up no other call",
    },
    "permission": {
        "four-words": "The permissions are read, write, exec and network, and no other word is one",
        "all-required": "Every permission a tool needs must be granted",
        "none-implied": "No permission includes another",
        "none-granted": "A context that grants nothing may call only what needs nothing",
        "message": "The refusal says what is required and what the agent has",
        "fields": "The refusal has the fields required and granted",
        "spelling": "read, :read and ':read' are the same word",
    },
    "context": {
        "fields": "Agent, configuration, folder, permissions, sandbox, budget, id and metadata",
        "reaches-the-tool": "A tool gets the very context of its call",
        "frozen": "Nobody changes a context in flight",
        "working-directory": "The working directory may be a string, as in the example",
        "metadata": "Metadata is empty unless given",
    },
    "error": {
        "type-and-message": "Every failure has a type and a message, whatever was raised",
        "fields-are-kept": "Fields that a tool gave its error come through",
        "class-is-kept": "An exception that is no ToolError keeps its class",
        "timeout": "A call that took too long fails with type timeout and the time it had",
    },
    "reload": {
        "new-code": "After a reload the new code answers, without a restart",
        "unknown": "Reloading an unknown name is an error",
        "failed": "A reload that fails keeps the old version",
        "calls-in-flight": "Calls under way finish on the version they started with",
    },
    "compose": {
        "no-deadlock": "A tool may call the bus, however many calls are under way",
        "same-limits": "A call from a tool runs under the context of the tool's caller",
    },
    "agent": {
        "from-files": "Agents are read from the agents folder",
        "from-configuration": "Agents are read from the configuration",
        "permissions-in-two-places": (
            "Permissions stand at the top or under budgets; a conflict is an error"
        ),
        "tools-narrow": "The list of tools narrows what an agent may call and never widens it",
        "by-client-name": "A connection gets the agent that names its client, else default",
        "by-token": "A connection with a token gets the agent of that token",
    },
    "tool-config": {
        "reaches-the-tool": "A tool finds its part of tool_config in the context",
        "reaches-extensions": (
            "A tool in a worker finds its part of tool_config in the context, as the example does"
        ),
        "precedence": "Parameters of the call beat tool_config, which beats the default",
        "limits-only-tighten": "A call may lower a configured limit and never raise it",
    },
    "sandbox": {
        "none": "Without a sandbox, or with one switched off, every path is open",
        "working-folder": "Enabled without allowed paths means the working folder",
        "inside": "A path inside an allowed one is open",
        "outside": "A path outside is refused with a message that names it",
        "whole-components": "An allowed folder does not admit its namesakes with a longer name",
        "symlinks": "Links are followed before the decision",
        "swapped-links": "The opened file is checked again, so that swapping a link wins nothing",
        "denied-beats-allowed": "A denied pattern wins over an allowed path",
        "name-patterns": "A pattern without a slash fits a name at any depth",
        "double-star": "A leading double star also fits no folder at all",
        "files-to-come": "Patterns hold for files that do not exist yet",
        "regular-files": "Only regular files are opened",
        "silent-refusal": "A refusal does not tell whether the file exists",
    },
    "fs-read": {
        "result": "Reading gives content, full path and size, and needs read",
        "working-folder": "A relative path starts at the working folder",
        "default-limit": "Without max_size the limit is 2 MiB",
        "too-large": "A file over the limit is an error with its size",
        "missing": "A missing file is an error that names it",
        "unreadable": "A file that may not be read is an error that names it",
    },
    "fs-write": {
        "result": "Writing gives path, size and the path of the backup, and needs write",
        "atomic": "A reader sees the old content or the new, never a part",
        "backup": "The old bytes are kept beside the file, unless backup is off",
        "mode": "A new file is 0644 or what mode says; an old one keeps its own",
    },
    "grep": {
        "result": "Matches have file, line and content, with total and time, and it needs read",
        "default-path": "Without a path it searches the working folder",
        "limit": (
            "More than max_results, 1000 by default, are cut and reported as truncated; the total"
            " counts all"
        ),
        "timeout": "At its timeout the whole process group is killed",
        "case": "Case counts unless switched off",
        "pattern-is-no-option": "No pattern can act as an option of the program",
        "sandbox": "What fs.read would refuse is never searched",
    },
    "http": {
        "get": "A GET gives status, headers, body and time, and needs network",
        "post": "A POST sends text as it is and a mapping as JSON or as a form, and needs network",
        "headers": "Headers of the caller are sent",
        "timeout": "A request ends at timeout_ms, 30 seconds by default",
        "redirects": "Redirects are followed unless switched off",
        "host-rules": "Hosts, addresses and redirects are checked as for stored http tools",
    },
    "json": {
        "parse": "JSON text becomes data, and it needs read",
        "schema": "Data that does not fit the schema is an error",
        "inverse": "Parsing gives back whatever was encoded",
        "hostile": "Depth and size from an attacker end in a clear error",
    },
    "yaml": {
        "parse": "YAML text becomes data, and it needs read",
        "schema": "Data that does not fit the schema is an error",
        "hostile": "Depth, size and alias bombs end in a clear error",
    },
    "test-run": {
        "result": "A run gives passed, failed, skipped, duration and failures, and needs exec",
        "pytest": "Python tests are read from the machine report",
        "mix": "A folder with a mix.exs is tested by mix",
        "path": "Without a path all tests run, with one only those",
        "env": "Given variables reach the tests",
        "timeout": "At its timeout, a minute by default, the whole tree is killed",
        "never-half-a-success": "A run that was cut is never reported as a success",
    },
    "budget": {
        "four-kinds": "Time, calls, tokens and cost are limited",
        "warns-once": "At 80 % there is one warning",
        "refuses": "At 100 % the next call is refused as budget_exceeded",
        "no-overspending": "Calls side by side never overspend time or calls",
        "crossing-call": (
            "The call that crosses a token or cost limit is charged and its result withheld"
        ),
        "cost": "A call costs what the configuration of its pack says",
    },
}

REQUIREMENTS = list_requirements("toolbus", TABLE)
