"""Processes that are not ours to trust, seen from the server: `channel` is the line to one, `process` its life."""
