"""What looks like a secret: by the name it goes under, or by what it is made of.

A guess. One too many costs a line in secrets.yaml; one too few ends up in a repository.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

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
_ASSIGNED = re.compile(r"-{0,2}([\w.-]+)(?:=|:\s*)(.+)", re.DOTALL)
_USER = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://(?P<user>[^/\s:@?#]*)(?::(?P<password>[^/\s@]+))?@")
_QUERY = re.compile(r"[?&;]([^=&;\s#]+)=([^&;\s#]+)")
_PATH = re.compile(r"://[^/\s?#]+(/[^\s?#\"']*)")
_SEGMENT = re.compile(r"[^/]+")
_SHORT_OPTIONS = frozenset({"k", "p", "t"})  # key or password or token, but also port or transport
_MIXED = re.compile(r"(?=.*[0-9])(?=.*[a-z])(?=.*[A-Z])[A-Za-z0-9+_=-]{16,}|[0-9a-f]{24,}")
_PLAIN_WORD = re.compile(r"[0-9.]+|.*[/:$].*", re.DOTALL)
_COMMAND_OPTION = re.compile(r"[a-z]{0,2}c")  # of `sh -c` and `bash -lc`
_IN_COMMAND = re.compile(r"(?<!\S)(?:-{0,2}([\w.-]+)=|--([\w.-]+)\s+)(\"[^\"]*\"|'[^']*'|[^\s;&|\"']+)")
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
    """Yield every text anywhere in the data that looks like a secret, so that it need not be shown."""
    waiting = [("", data)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += [(str(key), inner) for key, inner in value.items()]
        elif isinstance(value, list):
            waiting += [*zip(names_before(value), value, strict=True)]
        elif isinstance(value, str):
            yield from (value[span.start : span.end] for span in spans(name, value))


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Where in a text a secret is, and what it is called there."""

    start: int
    end: int
    name: str


def names_before(words: Sequence[Any]) -> list[str]:
    """Return, for each argument, the option before it whose value it is, as in `--token X`."""
    return [
        before.lstrip("-") if _is_option(before) and not _is_option(word) else ""
        for before, word in zip(["", *words], words, strict=False)
    ]


def _is_option(word: Any) -> bool:
    return isinstance(word, str) and word.startswith("-") and "=" not in word


def spans(name: str, text: str) -> list[Span]:
    """Return the parts of a text that look like secrets, from left to right. `name` is what the text is called."""
    found: list[Span] = []
    for span in sorted({*_by_name(name, text), *_in_json(text), *_in_urls(text), *_by_looks(name, text)}):
        is_plain = span.end > span.start and "${" not in text[span.start : span.end]
        if is_plain and (not found or span.start >= found[-1].end):
            found.append(span)
    return found


def _by_name(name: str, text: str) -> Iterator[Span]:
    """`--token=X`, `API_KEY=X`, `Authorization: Bearer X`, and a whole text that has a name."""
    if _is_command(name, text):
        yield from _in_command(text)
        return
    assigned = _assigned(text)
    if assigned and _is_one_value(assigned[2]) and looks_secret(assigned[1], assigned[2]):
        yield Span(len(text) - len(split(assigned[2])[1]), len(text), assigned[1])
    elif name and _is_one_value(text) and (looks_secret(name, text) or _is_short_secret(name, text)):
        yield Span(len(text) - len(split(text)[1]), len(text), name)


def _assigned(text: str) -> re.Match[str] | None:
    """Match a name and its value; the signs at the end of base64 are none."""
    found = _ASSIGNED.fullmatch(text) if len(text) <= _LONGEST else None
    return found if found and found[2].strip("=") else None


def _is_command(name: str, text: str) -> bool:
    return bool(_COMMAND_OPTION.fullmatch(name)) and len(text) <= _LONGEST and len(text.split()) > 1


def _in_command(text: str) -> Iterator[Span]:
    """Yield the values of variables and options in a line for a shell."""
    for found in _IN_COMMAND.finditer(text):
        value, name = found[3].strip("\"'"), found[1] or found[2]
        if _is_one_value(value) and looks_secret(name, value):
            start = found.start(3) + found[3].index(value)
            yield Span(start, start + len(value), name)


def _is_short_secret(name: str, text: str) -> bool:
    return name in _SHORT_OPTIONS and bool(_MIXED.fullmatch(text))


def unclear_options(words: Sequence[str]) -> list[str]:
    """Return the short options whose value may be a password: `-p` is a port as well."""
    named = zip(names_before(words), words, strict=True)
    unclear = (name for name, word in named if name in _SHORT_OPTIONS and not _is_plain(word))
    return [f"-{name}" for name in dict.fromkeys(unclear)]


def _is_plain(word: str) -> bool:
    return bool(_PLAIN_WORD.fullmatch(word) or _HARMLESS.fullmatch(word))


def _is_one_value(text: str) -> bool:
    """Whether the text is no URL and no JSON, of which only parts are secret."""
    return "://" not in text and not text.lstrip().startswith(("{", "[", "//"))


def _in_json(text: str) -> Iterator[Span]:
    start = text.find("{") if len(text) <= _LONGEST else -1
    if start < 0 or _REFERENCES.search(text):
        return
    try:
        data = json.loads(text[start:])
    except ValueError:
        return
    waiting = [("", data)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.items()
        elif isinstance(value, list):
            waiting += [(name, inner) for inner in value]
        elif isinstance(value, str) and looks_secret(name, value):
            yield from _written_as(text, json.dumps(split(value)[1], ensure_ascii=False)[1:-1], name)
            yield from _written_as(text, json.dumps(split(value)[1])[1:-1], name)


def _written_as(text: str, value: str, name: str) -> Iterator[Span]:
    start = text.find(value) if value else -1
    while start >= 0:
        yield Span(start, start + len(value), name)
        start = text.find(value, start + len(value))


def _in_urls(text: str) -> Iterator[Span]:
    """A password before the host, and what the query calls a key."""
    if len(text) > _LONGEST or "://" not in text:
        return
    for found in _USER.finditer(text):
        group = "password" if found["password"] else "user"
        if group == "password" or looks_secret_itself(found["user"]):
            yield Span(found.start(group), found.end(group), "PASSWORD")
    for found in _QUERY.finditer(text):
        if looks_secret(found[1], unquote(found[2])):
            yield Span(found.start(2), found.end(2), found[1])
    for path in _PATH.finditer(text):
        for found in _SEGMENT.finditer(text, path.start(1), path.end(1)):
            if _RANDOM.fullmatch(found[0]):
                yield Span(found.start(), found.end(), "")


def _by_looks(name: str, text: str) -> Iterator[Span]:
    if len(text) > _LONGEST:
        return
    if _RANDOM.fullmatch(text) and not _assigned(text):
        yield Span(0, len(text), name)
    for found in _TELLING_VALUE.finditer(text):
        if "://" not in found[0]:
            yield Span(found.start(), found.end(), name)
