"""The identity of the user of the command line, and of a command."""

import os
from typing import TypedDict


class CommandIdentity(TypedDict):
    client: str
    session: str


def identify_command() -> CommandIdentity:
    """Return the client and a session of its own: in a shared server, no command depends on an earlier one."""
    return {"client": "cli", "session": os.urandom(8).hex()}


def user_name() -> str:
    """Return the name of the user, for the audit log."""
    import getpass

    try:
        return f"user {getpass.getuser()}"
    except (KeyError, OSError):  # a user id without a name
        return "user"
