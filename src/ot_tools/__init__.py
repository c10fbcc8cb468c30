"""The packs that ship with OneTool: `<pack>_tools.py` each, one function a tool, read by `ot.runner.tool_loader`."""
