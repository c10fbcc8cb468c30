"""Specification 1, the `ot` pack: 66 named scenarios."""

from .requirement import Table, list_requirements

TABLE: Table = {
    "tools": {
        "proxy-tool-signature-from-schema": (
            "A proxied tool's signature is made from its input schema"
        ),
        "proxy-tool-arguments-from-schema": (
            "A proxied tool's argument docs are made from its input schema"
        ),
        "list-all-tools": (
            "Every registered tool is listed, at level min unless another is asked for"
        ),
        "filter-by-pattern": "A pattern keeps the tools whose name contains it, whatever the case",
        "info-level-list": "Level list gives bare tool names",
        "info-level-min": "Level min gives name and description",
        "info-level-full": (
            "Level full adds signature and source, and args, returns and example where known"
        ),
    },
    "config": {
        "show-config": "Aliases, snippets with descriptions, and server names, and no other key",
        "empty-config": "With nothing configured the three keys are empty",
    },
    "health": {
        "show-health": "Version, Python, working folder, registry and proxy are reported",
        "disconnected-server": (
            "A server that is not connected shows as disconnected and degrades the proxy"
        ),
    },
    "notify": {
        "send-notification": (
            "The message is appended to the file of its topic as one YAML document"
        ),
        "no-matching-topic": "A topic that no pattern matches is skipped, and the answer says so",
    },
    "reload": {
        "reload-config": "Everything is read from disk again and the answer confirms it",
    },
    "stats": {
        "get-all-time-stats": (
            "Calls, success rate, context and time saved, and a breakdown per tool"
        ),
        "filter-by-period": "Figures follow the period: day, week, month or all",
        "filter-by-tool": "Figures follow the tool that was asked for",
        "generate-html-report": "The report is written to the path, which the answer names",
        "stats-disabled": "Switched off in the configuration, it is an error that says so",
        "html-write-error": "A path that cannot be written is an error with path and reason",
        "invalid-period": "An unknown period is an error with the valid ones and an example",
    },
    "flow-style": {
        "flow-style-formatting": (
            "An object is an inline mapping, a list of objects a block of them"
        ),
        "readability": "Output loads back to the same data and flows for two levels at most",
    },
    "logging": {
        "span-naming": "A call of an ot function is logged as a span named after it",
    },
    "packs": {
        "proxy-pack": "A proxied server is a pack with its tools and the source proxy",
        "list-all-packs": "Every pack is listed, at level min unless another is asked for",
        "filter-by-pattern": "A pattern keeps the packs whose name contains it, whatever the case",
        "info-level-list": "Level list gives bare pack names",
        "info-level-min": "Level min gives name, source and number of tools",
        "info-level-full": (
            "Level full gives a heading, the instructions and the tools with descriptions"
        ),
        "pack-with-configured-instructions": (
            "Instructions from prompts.yaml stand in the full form"
        ),
    },
    "aliases": {
        "list-all-aliases": "Every alias is listed, at level min unless another is asked for",
        "filter-by-pattern": "A pattern looks at the alias and at its target, whatever the case",
        "info-level-list": "Level list gives bare alias names",
        "info-level-min": "Level min gives an arrow from alias to target",
        "info-level-full": "Level full gives name and target as data",
    },
    "snippets": {
        "list-all-snippets": "Every snippet is listed, at level min unless another is asked for",
        "filter-snippets-by-pattern": (
            "A pattern looks at the name and the description, whatever the case"
        ),
        "info-level-list": "Level list gives bare snippet names",
        "info-level-min": "Level min gives the name, a colon and the description",
        "info-level-full": "Level full gives description, parameters, body and an example",
        "snippet-output-format": (
            "The full form is the definition as YAML, an example and its expansion"
        ),
    },
    "help": {
        "general-help-no-query": (
            "Without a query it shows discovery, info levels, examples and tips"
        ),
        "exact-tool-lookup": "The name of a tool gives all that is known about that tool",
        "exact-pack-lookup": "The name of a pack gives its instructions and its tools",
        "no-matches": "A query that finds nothing says so and points to ot.tools() and ot.packs()",
        "snippet-lookup": (
            "A name with a dollar gives the snippet with parameters, body and example"
        ),
        "alias-lookup": "The name of an alias gives its target and how to use it",
        "fuzzy-search": "A query that is no name gives results grouped by type",
        "fuzzy-matching-with-typos": "Misspelt names are found, best match first",
        "info-level-list": "Level list gives the names of what matched",
        "info-level-min-default": "Level min, the default, gives names with short descriptions",
        "info-level-full": "Level full gives every field there is",
        "documentation-url-generation": "Every pack links to its page, by the table of slugs",
    },
    "result": {
        "basic-query-with-defaults": "A handle alone gives the first hundred lines",
        "query-with-offset-and-limit": "Offset and limit choose the window",
        "query-with-search-filter": "A regular expression filters first, then the window applies",
        "query-with-fuzzy-matching": "Fuzzy search finds similar lines, best first",
        "invalid-handle": "An unknown handle is an error that says so",
        "expired-handle": "A handle past its time is an error that says so",
        "query-response-format": "The answer has lines, total_lines, returned, offset and has_more",
        "1-indexed-offset": "The first line is number one",
        "offset-validation": "An offset below one raises ValueError with the value it got",
        "limit-validation": "A limit below one raises ValueError with the value it got",
    },
    "result-logging": {
        "span-naming": (
            "The span is ot.result, with handle, offset, limit and the search if there was one"
        ),
    },
    "version": {
        "get-version": "The version is a plain string",
    },
}

REQUIREMENTS = list_requirements("ot-pack", TABLE)
