"""An MCP server over stdio with the tools of benchmark tasks, and one instance of state per task.

It runs as a script (`python task_server ...`) in the environment of the benchmark data, so it uses
only the standard library and the packages of that environment.
"""
