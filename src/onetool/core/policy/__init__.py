"""Effects of tools, and the policies of agents that decide which calls a person must approve."""
