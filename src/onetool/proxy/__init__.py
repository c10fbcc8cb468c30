"""Other MCP servers as packs: their tools are known from a list on disk, and they start when they are called.

`servers.Servers` is the way in. `connection` is one live server, `upstream` decides when there is one, `definitions`
remembers what it offers, `content` makes data of its answers, and `pins` tells what has changed.
"""
