"""Find literal secrets by the name of a value or by its form.

This is a heuristic. A false positive costs a line in secrets.yaml or a mask; a false negative may
end up in a repository. References such as `${NAME}` are not secrets. Repetitions in patterns are
bounded or apply to short text, so that no text takes long.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
SECRET_WORDS = frozenset({
    "auth", "authorization", "bearer", "cookie", "credential", "credentials", "hmac", "jwt", "otp", "pass",
    "passphrase", "sig", "signature",
})  # fmt: skip
SECRET_ENDINGS = (
    "password",
    "passwords",
    "passwd",
    "pwd",
    "secret",
    "secrets",
    "token",
)  # of a word
SECRET_PARTS = (
    "accesskey", "apikey", "appkey", "authkey", "clientsecret", "connectionstring", "encryptionkey", "licensekey",
    "masterkey", "privatekey", "secretkey", "sessionid", "sessionkey", "sharedkey", "signingkey", "subscriptionkey",
    "accesstoken", "webhook",
)  # fmt: skip
KEY_WORDS = frozenset({"dsn", "key", "pat"})
HARMLESS_KEYS = frozenset(
    {"cache", "idempotency", "partition", "primary", "public", "routing", "sort"}
)
HARMLESS_ENDINGS = frozenset({
    "algorithm", "count", "email", "enabled", "endpoint", "expires", "expiry", "field", "format", "header", "id",
    "length", "limit", "method", "mode", "name", "policy", "realm", "required", "scope", "size", "style", "ttl", "type",
    "uri", "url", "user", "username", "version",
})  # fmt: skip
HARMLESS_VALUE = re.compile(
    r"(?i)\s*+(|true|false|none|null|yes|no|on|off|[0-9]{1,5}|oauth2?|bearer|basic)\s*+"
)
SECRET_VALUE = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}|A[KS]IA[0-9A-Z]{16}|AIza[\w-]{30,}|hf_\w{20,}|npm_\w{20,}"
    r"|ya29\.[\w-]{20,}|SG\.[\w-]{16,100}\.[\w-]{16,100}|T[A-Z0-9]{8,20}/B[A-Z0-9]{8,20}/\w{20,100})"
    r"|(?<![\w-])eyJ[\w-]{10,2000}\.[\w-]{1,4000}\.[\w-]{0,1000}"
    r"|(?:sk|pk|rk)[-_](?:live|test|prod|proj|ant)[-_][\w-]{8,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|xox[abeoprs]-[\w-]{10,}|(?<![0-9])[0-9]{8,10}:[\w-]{35}"
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----(?:-?[^-]){0,8000}(?:-----END [A-Z ]{0,30}PRIVATE"
    r" KEY-----)?"
)
SCHEME = re.compile(
    r"(?i)\s*(?:bearer|basic|digest|token|apikey|api-key|key|negotiate|hmac|splunk|sso-key)\s+(?=\S)"
)
MAX_SECRET_CHARS = 8192  # longer values are text, not keys
_RANDOM = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])[A-Za-z0-9+_=-]{32,}")
_REFERENCES = re.compile(r"\$\{[^${}]*+\}")
_ASSIGNED = re.compile(r"-{0,2}([\w.-]+)(?:=|:\s*)(.+)", re.DOTALL)
_USER = re.compile(r"(?<=[a-zA-Z0-9+.-])://(?P<user>[^/\s:@?#]*+)(?::(?P<password>[^/\s@]++))?@")
_QUERY = re.compile(r"[?&;]([^?=&;\s#]++)=([^&;\s#]++)")
_PATH = re.compile(r"://[^/\s?#]+(/[^\s?#\"']*)")
_SEGMENT = re.compile(r"[^/]+")
_SHORT_OPTIONS = frozenset({"k", "p", "t"})  # key or password or token, but also port or transport
_MIXED = re.compile(r"(?=.*[0-9])(?=.*[a-z])(?=.*[A-Z])[A-Za-z0-9+_=-]{16,}|[0-9a-f]{24,}")
_PLAIN_WORD = re.compile(r"[0-9.]+|[a-zA-Z]{1,6}|.*[/:$].*", re.DOTALL)
_COMMAND_OPTION = re.compile(r"[a-z]{0,2}c")  # of `sh -c` and `bash -lc`
_IN_COMMAND = re.compile(
    r"(?<!\S)(?:-{0,2}([\w.-]+)=|--([\w.-]+)\s+)(\"[^\"]*\"|'[^']*'|[^\s;&|\"']+)"
)


class Span(NamedTuple):
    """The position and the name of a secret in a text."""

    start: int
    end: int
    name: str


def is_secret_name(name: str, *, or_key: bool = False) -> bool:
    """Return whether a name indicates a secret value; with `or_key`, `key` and `X-Some-Key` do too."""
    words = [word.lower() for word in WORD.findall(name)]
    if any(part in "".join(words) for part in SECRET_PARTS):
        return True
    if not words or words[-1] in HARMLESS_ENDINGS:
        return False
    if or_key and words[-1] in KEY_WORDS and HARMLESS_KEYS.isdisjoint(words):
        return True
    return any(word in SECRET_WORDS or word.endswith(SECRET_ENDINGS) for word in words)


def looks_secret(name: str, value: str) -> bool:
    if len(value) > MAX_SECRET_CHARS:
        return is_secret_name(name, or_key=True)
    rest = _REFERENCES.sub("", value).strip()
    if _is_secret_value(rest):
        return True
    return is_secret_name(name, or_key=True) and not HARMLESS_VALUE.fullmatch(split_scheme(rest)[1])


def _is_secret_value(value: str) -> bool:
    if len(value) > MAX_SECRET_CHARS:
        return False
    has_password = any(match["user"] and match["password"] for match in _USER.finditer(value))
    return has_password or bool(SECRET_VALUE.search(value) or _RANDOM.fullmatch(value))


def split_scheme(value: str) -> tuple[str, str]:
    """Return the scheme of a header such as `Bearer `, and the secret after it."""
    scheme = SCHEME.match(value)
    return (scheme[0], value[scheme.end() :]) if scheme else ("", value)


def secret_name(*words: str) -> str:
    """Return a name for a secret, made of these words."""
    name = re.sub(r"[^A-Z0-9]+", "_", "_".join(words).upper()).strip("_")
    return name if re.match(r"[A-Z]", name) else f"SECRET_{name}".rstrip("_")


def find_secrets(data: Any) -> Iterator[str]:
    """Yield all strings in the data that look like secrets."""
    queue = [("", data)]
    while queue:
        name, value = queue.pop()
        if isinstance(value, Mapping):
            queue += [(str(key), inner) for key, inner in value.items()]
        elif isinstance(value, list):
            queue += [*zip(names_before(value), value, strict=True)]
        elif isinstance(value, str):
            yield from (value[span.start : span.end] for span in spans(name, value))


def names_before(words: Sequence[Any]) -> list[str]:
    """Return, for each argument, the option before it whose value it is, as in `--token X`."""
    are_options = [
        isinstance(word, str) and word.startswith("-") and "=" not in word for word in words
    ]
    before = zip(["", *words], [False, *are_options], are_options, strict=False)
    return [
        word.lstrip("-") if was_option and not is_option else ""
        for word, was_option, is_option in before
    ]


def unclear_options(words: Sequence[str]) -> list[str]:
    """Return the short options whose value may be a password: `-p` is a port as well."""
    unclear = (
        name
        for name, word in zip(names_before(words), words, strict=True)
        if name in _SHORT_OPTIONS
        and not (_PLAIN_WORD.fullmatch(word) or HARMLESS_VALUE.fullmatch(word))
    )
    return [f"-{name}" for name in dict.fromkeys(unclear)]


def spans(name: str, text: str) -> list[Span]:
    """Return the parts of a text that look like secrets, from left to right.

    `name` is the name of the text.
    """
    disjoint: list[Span] = []
    for span in sorted(
        {
            *_find_by_name(name, text),
            *_find_in_json(text),
            *_find_in_urls(text),
            *_find_by_form(name, text),
        }
    ):
        is_plain = span.end > span.start and "${" not in text[span.start : span.end]
        if is_plain and (not disjoint or span.start >= disjoint[-1].end):
            disjoint.append(span)
    return disjoint


def _find_by_name(name: str, text: str) -> Iterator[Span]:
    """Yield the secrets in `--token=X`, `API_KEY=X`, `Authorization: Bearer X` and in a named text."""
    if _COMMAND_OPTION.fullmatch(name) and len(text) <= MAX_SECRET_CHARS and len(text.split()) > 1:
        yield from _find_in_command(text)
        return
    assigned = _match_assignment(text)
    if assigned and _is_one_value(assigned[2]) and looks_secret(assigned[1], assigned[2]):
        yield Span(len(text) - len(split_scheme(assigned[2])[1]), len(text), assigned[1])
    elif name and _is_one_value(text):
        is_short_secret = name in _SHORT_OPTIONS and _MIXED.fullmatch(text)
        if is_short_secret or looks_secret(name, text):
            yield Span(len(text) - len(split_scheme(text)[1]), len(text), name)


def _match_assignment(text: str) -> re.Match[str] | None:
    """Match a name and its value; the padding at the end of base64 is not an assignment."""
    assignment = _ASSIGNED.fullmatch(text) if len(text) <= MAX_SECRET_CHARS else None
    return assignment if assignment and assignment[2].strip("=") else None


def _find_in_command(text: str) -> Iterator[Span]:
    """Yield the secrets among the variables and options of a shell command."""
    for assignment in _IN_COMMAND.finditer(text):
        value = assignment[3].strip("\"'")
        name = assignment[1] or assignment[2]
        if _is_one_value(value) and looks_secret(name, value):
            start = assignment.start(3) + assignment[3].index(value)
            yield Span(start, start + len(value), name)


def _is_one_value(text: str) -> bool:
    """Return whether the text is neither a URL nor JSON, of which only parts are secret."""
    return "://" not in text and not text.lstrip().startswith(("{", "[", "//"))


def _find_in_json(text: str) -> Iterator[Span]:
    start = text.find("{") if len(text) <= MAX_SECRET_CHARS else -1
    if start < 0 or _REFERENCES.search(text):
        return
    try:
        data = json.loads(text[start:])
    except (ValueError, RecursionError):
        return
    queue = [("", data)]
    while queue:
        name, value = queue.pop()
        if isinstance(value, dict):
            queue += value.items()
        elif isinstance(value, list):
            queue += [(name, inner) for inner in value]
        elif isinstance(value, str) and looks_secret(name, value):
            secret = split_scheme(value)[1]
            for written in {
                json.dumps(secret, ensure_ascii=is_ascii)[1:-1] for is_ascii in (True, False)
            } - {""}:
                yield from (
                    Span(at.start(), at.end(), name) for at in re.finditer(re.escape(written), text)
                )


def _find_in_urls(text: str) -> Iterator[Span]:
    """Yield passwords, secrets in the query, and random path parts."""
    if len(text) > MAX_SECRET_CHARS or "://" not in text:
        return
    for match in _USER.finditer(text):
        group = "password" if match["password"] else "user"
        if group == "password" or _is_secret_value(match["user"]):
            yield Span(match.start(group), match.end(group), "PASSWORD")
    for match in _QUERY.finditer(text):
        if looks_secret(match[1], unquote(match[2])):
            yield Span(match.start(2), match.end(2), match[1])
    for path in _PATH.finditer(text):
        for match in _SEGMENT.finditer(text, path.start(1), path.end(1)):
            if _RANDOM.fullmatch(match[0]):
                yield Span(match.start(), match.end(), "")


def _find_by_form(name: str, text: str) -> Iterator[Span]:
    if len(text) > MAX_SECRET_CHARS:
        return
    if _RANDOM.fullmatch(text) and not _match_assignment(text):
        yield Span(0, len(text), name)
    yield from (Span(match.start(), match.end(), name) for match in SECRET_VALUE.finditer(text))
