"""The parts of an HTTP tool: its definition, its templates, retries, rate limits and the conversion of responses."""
