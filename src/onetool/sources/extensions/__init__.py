"""Extension packs: Python files of the user, analyzed without running them, and run in workers.

`packs.Extensions` is the entry point. `static_analysis` reads a file, `environments` creates its
environment with uv, `worker` is one process, and `backends` supervises the process of a pack or
creates jobs for its queue. `onetool_child.worker` runs inside the worker.
"""
