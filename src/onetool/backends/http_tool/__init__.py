"""The parts of an HTTP tool: its definition, its templates, repetition, and how an answer becomes a value."""
