"""Storage of large results in files: reading parts, searching, summaries, loading, and removal
after some time.

`store` is the entry point. Callers decide which results are too large and who may read them.
Everything here blocks, so the server calls it from a thread.
"""
