"""Untrusted child processes, seen from the server: `channel` exchanges messages, `process` starts and ends them."""
