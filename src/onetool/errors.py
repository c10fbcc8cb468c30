"""The error tree, as the server imports it.

It is defined in `onetool_child.errors`: cells raise the same errors.
"""

from onetool_child.errors import (
    ApprovalRequired,
    ArgumentError,
    AuditUnavailable,
    BudgetExceeded,
    BundleError,
    CallRejected,
    Cancelled,
    CannotAsk,
    ConfigError,
    HttpStatusError,
    Interrupted,
    NetworkError,
    OutputInvalid,
    PermissionDenied,
    SandboxDenied,
    SignInRequired,
    StorageError,
    ToolError,
    ToolNotFound,
    ToolTimeout,
    describe,
    error_type,
)

__all__ = [
    "ApprovalRequired",
    "ArgumentError",
    "AuditUnavailable",
    "BudgetExceeded",
    "BundleError",
    "CallRejected",
    "Cancelled",
    "CannotAsk",
    "ConfigError",
    "HttpStatusError",
    "Interrupted",
    "NetworkError",
    "OutputInvalid",
    "PermissionDenied",
    "SandboxDenied",
    "SignInRequired",
    "StorageError",
    "ToolError",
    "ToolNotFound",
    "ToolTimeout",
    "describe",
    "error_type",
]
