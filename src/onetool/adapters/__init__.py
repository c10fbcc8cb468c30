"""Adapters to model providers and agent frameworks. Each module that needs a package has an extra of its own."""
