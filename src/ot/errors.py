"""The error tree, as the server imports it. It is defined in `ot_child.errors`: cells raise the same errors."""

from ot_child.errors import (
    ArgumentError,
    BudgetExceeded,
    BundleError,
    Cancelled,
    ConfigError,
    HttpStatusError,
    NetworkError,
    OutputInvalid,
    PermissionDenied,
    SandboxDenied,
    ToolError,
    ToolNotFound,
    ToolTimeout,
    describe,
    error_type,
)

__all__ = [
    "ArgumentError",
    "BudgetExceeded",
    "BundleError",
    "Cancelled",
    "ConfigError",
    "HttpStatusError",
    "NetworkError",
    "OutputInvalid",
    "PermissionDenied",
    "SandboxDenied",
    "ToolError",
    "ToolNotFound",
    "ToolTimeout",
    "describe",
    "error_type",
]
