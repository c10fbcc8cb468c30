"""Built-in packs: a file `<pack>_tools.py` each, which `onetool.runs.tool_loader` reads."""
