"""Tools and calls: what they are, and the one path that every call takes.

Start with `tool.py`, then read `ToolBus.call_tool` in `bus/bus.py` from top to bottom.
"""
