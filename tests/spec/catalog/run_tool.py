"""Specification 2, `run`: 67 named scenarios."""

from .requirement import Table, list_requirements

TABLE: Table = {
    "fence": {
        "triple-backtick-with-language": "A fence that names a language is taken off",
        "triple-backtick-without-language": "A fence without a language is taken off",
        "inline-backticks": "Single backticks around the command are taken off",
        "nested-fences-preserved": "Fence characters inside the code are data and stay",
        "no-fences": "A command without fences is left as it is",
        "legacy-prefix-rejected": "!onetool is an error that says what to write",
    },
    "execution-path": {
        "simple-function-call": "One call goes the way all code goes",
        "python-code-block": "A block of code goes the way all code goes",
    },
    "capture": {
        "expression-result": "A single expression is the value",
        "last-expression-in-block": "The last expression of a block is the value",
        "explicit-return": "What is returned at the top level is the value",
        "no-return-value": "Code without a value succeeds and says that there is none",
        "none-return": "None is shown as None, which is not the same as no value",
        "native-dict-serialization": "A dict is shown as compact JSON, escaped once",
        "native-list-serialization": "A list is shown as compact JSON, escaped once",
        "string-passthrough": "A string is shown as it is",
        "composed-tool-results": "Results put together in code make one clean JSON object",
    },
    "indentation": {
        "already-indented-code": "Code that is indented as a whole runs",
        "mixed-indentation": "Code with tabs and spaces runs",
        "empty-lines": "Empty lines between statements do no harm",
    },
    "errors": {
        "syntax-error-location": "A syntax error names the line in the text that was sent",
        "runtime-error-context": "An exception is shown with its type and message",
        "tool-not-found": "An unknown tool lists what there is",
        "argument-error": "Wrong arguments show the signature",
    },
    "pack": {
        "simple-pack-call": "pack.tool() calls that tool of that pack",
        "unknown-pack": "An unknown pack lists the packs",
        "function-not-in-pack": "An unknown function lists the functions of its pack",
        "same-function-name-in-different-packs": "Equal names in two packs stay apart",
    },
    "alias": {
        "simple-alias": "An alias calls its target",
        "unknown-alias-passthrough": "A name that is no alias is called as it stands",
    },
    "modules": {
        "fence-processing-isolation": "Fences are the business of fence_processor",
        "tool-loading-isolation": "Finding and caching tools is the business of tool_loader",
        "pack-proxy-isolation": "Objects for dot notation are the business of pack_proxy",
        "runner-focused-on-orchestration": (
            "The runner orders the steps and imports each from its module"
        ),
    },
    "prefix": {
        "exact-parameter-match": "A full parameter name is passed on",
        "single-prefix-match": "A beginning that fits one parameter means that parameter",
        "multiple-prefix-matches-with-first-wins": "A beginning that fits several means the first",
        "partial-prefix-match": "A longer beginning tells similar parameters apart",
        "no-match-passthrough": (
            "A name that fits nothing raises the normal error for an unknown parameter"
        ),
        "mixed-exact-and-prefix-parameters": "Full and abbreviated names may stand side by side",
    },
    "prefix-scope": {
        "internal-tool-prefix-matching": "Abbreviations work for tools in the server's process",
        "ot-pack-tool-prefix-matching": "Abbreviations work for the functions of the ot pack",
        "extension-tool-prefix-matching": "Abbreviations work for extension tools in workers",
        "mcp-proxy-tool-prefix-matching": (
            "Abbreviations work for proxied tools, by their input schema"
        ),
    },
    "format": {
        "default-format-compact-json": "Without __format__ data is JSON without white space",
        "explicit-json-format": "json is the default spelt out",
        "human-readable-json-format": "json_h is JSON indented by two",
        "yaml-flow-format": "yml is YAML in flow style",
        "human-readable-yaml-format": "yml_h is YAML in block style",
        "raw-format": "raw is what str() says",
        "string-passthrough-unchanged": "A string is shown as it is under every format",
        "invalid-format-ignored": "An unknown format falls back to compact JSON",
    },
    "snippet": {
        "snippet-invocation": "$name with values expands its template and runs it",
    },
    "proj": {
        "dynamic-attribute-resolution": "proj.name is the configured folder as a ProjectPath",
        "function-priority": "A function of the pack wins over a project of that name",
        "path-operations-in-code": "A slash joins a ProjectPath and gives a ProjectPath",
        "error-message-for-unknown-project": "An unknown project lists functions and projects",
    },
    "sanitize": {
        "explicit-enable": "__sanitize__ = True wraps the result in a boundary",
        "explicit-disable": "__sanitize__ = False leaves the result alone",
        "default-behaviour": "Without __sanitize__ the result is left alone",
    },
    "large-output": {
        "output-below-threshold": "A result under the limit is shown whole",
        "output-exceeds-threshold": "A result over the limit is stored and a summary is shown",
        "summary-response-format": (
            "The summary has handle, sizes, words, preview and the next query"
        ),
        "content-file-created": "The content lies in result-{guid}.txt",
        "meta-file-created": "The facts about it lie in result-{guid}.meta.json",
    },
    "cleanup": {
        "ttl-based-expiry": "A result older than its time to live may be removed",
        "cleanup-on-store": "Storing a result removes the expired ones",
    },
}

REQUIREMENTS = list_requirements("run-tool", TABLE)
