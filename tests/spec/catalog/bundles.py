"""Specification 4, bundles, HTTP tools and REST, as read by section 4 of the reading.

The document has no named scenarios, so the names are ours. Of its pending items, OAuth2 is not a
requirement yet.
"""

from .requirement import Table, list_requirements

TABLE: Table = {
    "type": {
        "python-or-http": "A tool is of type python or http and of no other",
        "go-means-python": "go is accepted for python and stored as it was sent",
        "function-disappears": (
            "A tool without its function shows as disabled and why, its file untouched"
        ),
        "function-returns": "When the function is back, so is the tool",
    },
    "pack": {
        "called-from-code": "A stored tool is called in run as bundle.tool()",
        "other-characters-become-underscores": (
            "What cannot stand in an identifier becomes an underscore"
        ),
        "newest-enabled-version-answers": (
            "Of several versions the enabled one modified last is called"
        ),
        "version-is-chosen": "__version__ in code and name@version in ot.call choose a version",
        "collisions-stay-reachable": (
            "Names that collide are callable by ot.call, and health reports them"
        ),
    },
    "id": {
        "uuid-7": (
            "Bundles and tools have ids that are UUIDs of version 7, and no other id is taken"
        ),
    },
    "slug": {
        "letters-digits-and-dash": (
            "Letters and decimal digits of any script and the ASCII dash are allowed"
        ),
        "nothing-else": "Underscore, space, slash, dot, control characters and symbols are refused",
        "one-to-64-code-points": "Length is counted in code points, from 1 to 64",
        "compared-exactly": "Slugs that differ in case, or only look alike, are different",
        "unique-among-live-bundles": "A second live bundle with the slug is refused as slug_taken",
        "any-file-system": (
            "Every legal slug and version survives on disk, whatever the file system folds"
        ),
    },
    "version": {
        "slug-characters-and-dot": (
            "A version has a slug's characters and length, and may have dots"
        ),
        "no-dot-names": "A single dot and two dots are no versions",
        "opaque": "Versions are labels without an order",
        "unique-within-a-bundle": "A pair of slug and version exists once in a bundle",
        "may-repeat-across-bundles": "The same pair may exist in another bundle",
    },
    "tags": {
        "shape": (
            "A tag is a letter or underscore, then up to 63 letters, digits, underscores or dashes"
        ),
        "no-duplicates": "A tag given twice is refused",
    },
    "time": {
        "created-at-never-moves": "The time of creation is that of the first insertion",
        "modified-at-moves-with-content": "A structural change moves the time of modification",
        "modified-at-ignores-toggles": "Switching on or off does not move the time of modification",
    },
    "routes": {
        "global-list-and-search": "List and search over all bundles answer at both of their paths",
        "camel-case": "JSON over REST is spelt in camel case",
        "body-fields": "A body with unknown fields, or without required ones, is refused",
        "list-parameters": "Parameters that are lists may repeat or be separated by commas",
    },
    "bundle": {
        "put-creates": "PUT of a new id answers 201 with the bundle",
        "put-replaces": "PUT of a known id answers 200 with the bundle",
        "patch-toggles": "PATCH changes isEnabled and nothing else",
        "list": "GET lists bundles, or those of bundleIDs",
        "list-hides-disabled": "Disabled bundles are listed only with includeDisabled",
        "group-switch": (
            "Switching a bundle off takes all its tools out of use, and on brings them back"
        ),
    },
    "deletion": {
        "soft": "DELETE of a bundle marks it with the time and keeps its file",
        "not-empty": "DELETE of a bundle with tools is refused as bundle_not_empty",
        "hidden": "A deleted bundle is seen nowhere",
        "revived": "PUT of the id within two days brings the bundle back",
        "reaped": "After two days a deleted bundle that is still empty is removed",
        "reaper-spares-content": "A folder that is not empty is never removed",
    },
    "tool": {
        "put-creates": "PUT of a new pair answers 201 with the tool",
        "put-of-existing-pair": (
            "PUT of a pair that exists is refused and leaves the tool as it was"
        ),
        "patch-toggles": "PATCH changes isEnabled and nothing else",
        "delete": "DELETE removes the tool at once and for good",
        "get": "GET answers with the tool",
        "list": "The global list has the tools of every bundle, or of bundleIDs",
        "list-by-tags": "Several tags keep the tools that have any of them",
        "list-hides-disabled": "Disabled tools are listed only with includeDisabled",
    },
    "state": {
        "disabled-bundle": (
            "PUT and PATCH inside a disabled bundle, also a built-in one, are bundle_disabled"
        ),
        "deleted-bundle": "A deleted bundle is hidden, and so is what is inside it: not_found",
        "disabled-tool": "Calling a disabled tool is refused as tool_disabled",
    },
    "builtin": {
        "content-is-read-only": (
            "PUT, DELETE and every PATCH but the switch are refused for a built-in"
        ),
        "switch-works": "A built-in is switched on and off, and the choice lasts",
        "ordinary-routes": (
            "Built-ins are listed, found and called through the same routes as all others"
        ),
    },
    "error": {
        "uniform-body": "Every refusal has a body with code, message and details",
        "status": "Malformed is 400, unknown 404, built-in 403, duplicate and state 409",
        "transport-status": "Wrong method is 405, too large 413, wrong media type 415, busy 503",
        "precedence": (
            "The first reason counts: malformed id, unknown, built-in, state, body, duplicate"
        ),
    },
    "page": {
        "size": "A page has 25 items unless asked; over 256 means 256; under 1 or no number is 400",
        "recommended-size": "The global list takes its size as recommendedPageSize",
        "token-is-signed": "A token that was made up or changed is 400",
        "token-survives-restart": "A token from before a restart still continues",
        "token-pins-filters": (
            "A token continues the list it came from; other filters with it are 400"
        ),
        "steady": "What did not change is given exactly once while other items come and go",
    },
    "search": {
        "classes": (
            "Slug or display name starting with the query beats a whole word, which beats likeness"
        ),
        "best-class-counts": "A row stands in the best class that any of its fields reaches",
        "field-order": "Within a class slug comes before display name, tags and description",
        "recency-last": "What is equal otherwise is ordered by the last modification",
        "case-and-diacritics": "Case and diacritics make no difference",
        "hides-disabled": "Disabled rows are found only with includeDisabled",
        "blank-query": "A blank query is 400",
        "plain-text": "Characters of a query language are ordinary characters",
        "at-once": "A change is found by the next search",
    },
    "invoke": {
        "arguments-are-checked": "Arguments that do not fit argSchema are 400, and nothing runs",
        "python-dispatch": "A python tool's function gets context and arguments",
        "http-dispatch": "An http tool's request is built from its templates",
        "success": "A call that worked answers ok true with the value",
        "failure": "A tool that ran and failed answers 200 with ok false and the error",
        "refusal": "A call that is refused answers 4xx; without the permission it is 403",
        "output-is-checked": (
            "A value that does not fit outputSchema is a failure of type output_validation"
        ),
    },
    "usage": {
        "off-the-path": "Counting a call never delays its answer",
        "exact": "After a flush callCount and lastCalledAt are exact over all processes",
        "apart": "Counting never touches the tool's own file",
    },
    "http": {
        "url-scheme": "A urlTemplate starts with http:// or https://",
        "steps": "A tool sends several requests, and later ones use the responses of earlier ones",
        "hmac": "A recipe signs a request with HMAC",
        "events": "Server-sent events are collected up to a limit",
        "body": "An object is sent as JSON, a string as it is",
        "failed-status": "A status outside successCodes is a failure, or null with errorMode empty",
        "api-key": "An apiKey is sent in the header or the query parameter it names",
        "bearer": "A bearer token is sent as such",
        "basic": "user:password is sent as basic authentication",
        "response-modes": "A response is read as JSON, as text, or by its content type",
        "selector": "A JMESPath selector takes its part of the response",
    },
    "template": {
        "arguments": "A placeholder is filled from the arguments, also from deep inside them",
        "secrets": "A secret placeholder is filled from the secrets",
        "literal": "Two dollars before the brace mean the text itself",
        "never-in-the-authority": "A placeholder where the host stands is refused at PUT",
        "values-keep-their-place": (
            "No value changes host, path, parameters, headers or JSON around it"
        ),
        "missing-optional": "A missing optional argument drops its query or header entry",
        "missing-required": "A missing required argument is an error",
    },
    "host": {
        "patterns": "allowedHosts has exact names, *.names, a star, and ports; empty admits none",
        "final-url": "The host is checked on the finished URL when the tool is called",
        "every-redirect": "Each redirect is checked again",
        "special-addresses": (
            "Loopback, private, link-local and other special addresses are refused"
        ),
        "address-really-used": "What is checked is the address that the connection goes to",
        "allow-private-addresses": "The setting admits private addresses",
        "secrets-stay": "Secrets never reach another host, a log, an error or a result",
    },
    "retry": {
        "what": "Connect errors, 429, 502, 503 and 504 are tried again, and nothing else is",
        "how-often": "There are no more repetitions than retries says",
        "idempotent-only": (
            "Methods that are not idempotent are tried again only if the tool says so"
        ),
        "back-off": "Pauses grow and vary, and Retry-After is honoured",
        "within-the-timeout": "All attempts together stay inside the timeout",
    },
    "limit": {
        "response-while-streaming": (
            "A response is cut at its limit while it comes, after decompression"
        ),
        "request-bytes": "A request over its limit is not sent",
        "calls-per-minute": "Calls over maxCallsPerMinute are refused",
        "number-of-tools": "The store takes no more tools than it is allowed",
    },
    "store": {
        "readable-json": "What users define lies in JSON files that a person can read",
        "offline": "Everything but calling an http tool works without a network",
        "atomic": "A reader sees the old file or the new one, never a part",
        "unique-across-processes": (
            "Of two processes that write the same pair one gets the conflict"
        ),
        "whole-after-a-kill": "After a kill at any moment the store opens whole",
        "foreign-files": "A foreign or damaged file is reported and skipped, never deleted",
        "index-is-a-cache": "Losing the search index loses nothing",
    },
    "zip": {
        "round-trip": "A bundle exported as ZIP and imported again is the same bundle",
        "hostile-archives": "Path tricks and bombs in an archive are refused",
    },
    "screen": {
        "admin": "Bundles and tools are listed, created, changed, deleted and switched on the page",
        "live-tester": "A tool is tried from a form made of its schema",
        "palette": "Plus opens the palette, which finds a tool and calls it",
        "recipe-form": "An http tool is made in a form, without writing JSON",
        "languages": "All words stand in one table, so that a second language is one file",
    },
}

REQUIREMENTS = list_requirements("bundles", TABLE)
