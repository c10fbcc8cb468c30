"""HTTP tools: `backend` executes a call, `definition` is what is stored, and the other modules are
its parts.
"""
