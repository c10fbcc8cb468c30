"""The identity of the user of the command line, and of a command."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onetool.admin.person import Person
    from onetool.core.context import Caller


def make_caller(agent: str) -> "Caller":
    """Return the owner as this agent, with a session of its own: no command depends on an earlier one."""
    from onetool.core.context import Caller

    return Caller(agent, is_owner=True, client="cli", session=os.urandom(8).hex())


def identify_owner() -> "Person":
    """Return the person who types commands on this machine: the owner."""
    from onetool.admin.person import Person

    return Person(user_name(), "owner", transport="cli")


def user_name() -> str:
    """Return the name of the user, for the audit log."""
    import getpass

    try:
        return f"user {getpass.getuser()}"
    except (KeyError, OSError):  # a user id without a name
        return "user"
