"""The identity of the user of the command line."""


def user_name() -> str:
    """Return the name of the user, for the audit log."""
    import getpass

    try:
        return f"user {getpass.getuser()}"
    except (KeyError, OSError):  # a user id without a name
        return "user"
