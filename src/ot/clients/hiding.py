"""What looks like a secret: by the name it goes under, or by what it is made of.

A guess. One too many costs a line in secrets.yaml; one too few ends up in a repository.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

_TELLING_NAME = re.compile(
    r"(?i)(token|secret|passw|passphrase|pwd|api[_-]?key|apikey|access[_-]?key|private[_-]?key|_key$|^key$|-key$|auth"
    r"|credential|bearer|cookie|signature|webhook|dsn$|connection[_-]?string|(^|_)pat$|license)"
)
_HARMLESS = re.compile(r"(?i)(|true|false|none|null|yes|no|on|off|[a-z]{1,6}|[0-9]{1,5}|oauth2?|bearer|basic)")
_TELLING_VALUE = re.compile(
    r"(sk|pk|rk)[-_][A-Za-z0-9_-]{16,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abeoprs]-[\w-]{10,}"
    r"|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|hf_\w{20,}|npm_\w{20,}|eyJ[\w-]{10,}\.[\w-]+\.[\w-]*|ya29\.[\w-]{20,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----|(?<![a-z0-9+.-])[a-z][a-z0-9+.-]*://[^/\s:@]+:[^/\s@]+@"
)
_RANDOM = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])[A-Za-z0-9+_=-]{32,}")
_REFERENCES = re.compile(r"\$\{[^}]*\}")
_LONGEST = 8192  # beyond it stands a text, not a key
_SCHEME = re.compile(r"(?i)((?:bearer|basic|token|apikey)\s+)(.+)", re.DOTALL)


def looks_secret(name: str, value: str) -> bool:
    if len(value) > _LONGEST:
        return bool(_TELLING_NAME.search(name))
    rest = _REFERENCES.sub("", value).strip()  # what is a reference already gives nothing away
    if looks_secret_itself(rest):
        return True
    with_scheme = _SCHEME.fullmatch(rest)
    bare = with_scheme[2] if with_scheme else rest
    return bool(_TELLING_NAME.search(name)) and not _HARMLESS.fullmatch(bare)


def looks_secret_itself(value: str) -> bool:
    return len(value) <= _LONGEST and bool(_TELLING_VALUE.search(value) or _RANDOM.fullmatch(value))


def split(value: str) -> tuple[str, str]:
    """The scheme of a header such as `Bearer `, and the secret behind it."""
    found = _SCHEME.fullmatch(value)
    return (found[1], found[2]) if found else ("", value)


def secrets_in(data: Any) -> Iterator[str]:
    """Every text anywhere in the data that looks like a secret, so that it need not be shown."""
    waiting = [("", data)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += [(str(key), inner) for key, inner in value.items()]
        elif isinstance(value, list):
            waiting += [("", inner) for inner in value]
        elif isinstance(value, str) and looks_secret(name, value):
            yield split(value)[1]
