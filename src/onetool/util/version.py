"""The version, in the one place that the build and the product both read."""

__version__ = "0.1.0"
