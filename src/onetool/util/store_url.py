"""The URL of the store: what is a valid one, and how it is shown.

Imports nothing of the database driver.
"""

from urllib.parse import unquote, urlsplit

SCHEMES = ("postgresql://", "postgres://")
FILES = "files"


def describe_url(url: str) -> str:
    """Return the URL without credentials and options, for messages."""
    parts = urlsplit(url)
    try:
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        port = ""
    return f"postgresql://{parts.hostname or 'localhost'}{port}/{parts.path.lstrip('/')}"


def find_passwords(url: str) -> set[str]:
    """Return the parts of the URL that must never be shown, as they are written and decoded."""
    if not url.startswith(SCHEMES):
        return set()
    from urllib.parse import parse_qsl

    parts = urlsplit(url)
    secret_options = {value for name, value in parse_qsl(parts.query) if "password" in name.lower()}
    passwords = {parts.password or "", *secret_options}
    return {url, *passwords, *map(unquote, passwords)} - {""}
