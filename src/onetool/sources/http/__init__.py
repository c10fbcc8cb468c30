"""HTTP tools: `backend` executes a call of a stored `definition`, with the other modules."""
