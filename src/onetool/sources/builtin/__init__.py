"""Built-in packs: one file `<pack>_tools.py` each, one function per tool, read by
`onetool.runs.tool_loader`.
"""
