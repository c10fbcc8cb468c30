"""Helpers for all rooms: text, files, locks, problems, redaction, and the context of a call.

Start with `context.py`, the context that every call gets, and `problem.py`, problems as data.
`redact` removes secrets from text, `sanitize` wraps text of others for a model, `atomic`
writes and locks files that processes share, and `yaml_loader` reads YAML with line numbers.

What holds here:

- Modules import only each other, `onetool.errors` and `onetool_child`.
- What a function needs from settings or state is passed to it.
"""
