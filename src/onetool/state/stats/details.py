"""StoredValues of runs and calls: printed output, arguments, results and error messages, for people
who look at a run.

They are redacted and truncated in the thread that writes them, kept for some days, and limited in
total size. Failures with the same tool, type and message are also counted together, so that a list
of errors does not read every call.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onetool.state.run_records import StoredValues
from onetool.util.large_data import RawJson

if TYPE_CHECKING:
    from onetool.state.sqlite_database import Transaction
    from onetool.state.stats.database import StatisticsDatabase

BYTES_PER_TOKEN = 4
MAX_VALUE_BYTES = 64 << 10  # of each value
MARGIN_CHARS = 4 << 10  # kept beyond the limit, so that a secret at the border is found
MAX_ITEMS = 5_000  # of a list, because encoding blocks the event loop
MAX_CALLS = 200  # of one run whose values are kept
MAX_PENDING_BYTES = 32 << 20  # of values that wait to be written; further ones are dropped
MAX_MESSAGE_CHARS = 300
MAX_NAME_CHARS = 200
MAX_LISTED_FAILURES = 200
MAX_FAILURES = 5_000  # groups, those with the latest failures
CUT = "… (truncated)"
NUMBERS = re.compile(r"0x[0-9a-fA-F]+|[0-9a-fA-F]{16,}|\d+")
SCHEMA = """
CREATE TABLE details (
    run_id TEXT, call_id BIGINT, printed TEXT, arguments TEXT, result TEXT, error TEXT, size BIGINT,
    at DOUBLE PRECISION, PRIMARY KEY (run_id, call_id)
);
CREATE INDEX details_at ON details (at, size);
CREATE TABLE failures (
    agent TEXT, actor TEXT, token_id TEXT, name TEXT, error_type TEXT, pattern TEXT, message TEXT, count BIGINT,
    run_id TEXT, first DOUBLE PRECISION, last DOUBLE PRECISION,
    PRIMARY KEY (agent, actor, token_id, name, error_type, pattern)
);
CREATE INDEX failures_last ON failures (last);
"""
INSERT_DETAIL = """
INSERT INTO details VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (run_id, call_id) DO UPDATE SET
printed = excluded.printed, arguments = excluded.arguments, result = excluded.result, error = excluded.error,
size = excluded.size, at = excluded.at
"""
COUNT_FAILURE = """
INSERT INTO failures VALUES (?, ?, ?, ?, ?, ?, ?, 1, ?, ?, ?)
ON CONFLICT (agent, actor, token_id, name, error_type, pattern) DO UPDATE SET count = failures.count + 1,
message = excluded.message, run_id = excluded.run_id, last = excluded.last
"""
COLUMNS = "printed, arguments, result, error"
DETAILS = f"SELECT call_id, {COLUMNS} FROM details WHERE run_id = :run_id"  # noqa: S608 - a constant
DELETE_OLD = "DELETE FROM details WHERE at < :before"
SIZE = "SELECT coalesce(sum(size), 0) FROM details"
# The oldest values until enough bytes are free.
DELETE_SURPLUS = """
DELETE FROM details WHERE at <= (
    SELECT max(at) FROM (
        SELECT at, sum(size) OVER (ORDER BY at, run_id, call_id) - size AS freed FROM details
    ) AS sums WHERE freed < :surplus
)"""
DELETE_FAILURES = """
DELETE FROM failures WHERE last < :before OR last < (
    SELECT last FROM failures ORDER BY last DESC LIMIT 1 OFFSET :most
)"""
FAILURES = """
SELECT agent, actor, name, error_type, message, count, run_id, first, last FROM failures
WHERE coalesce(agent = :agent, true) AND coalesce(token_id = :token_id, true) ORDER BY last DESC LIMIT :limit
"""
Redact = Callable[[str, int], str]  # the first characters of a text, without secrets


@dataclass(slots=True)
class FailureRecord:
    """A failed call, or a run whose code failed."""

    agent: str
    actor: str
    token_id: str
    name: str
    error_type: str
    message: str
    run_id: str
    at: float = 0.0


@dataclass(slots=True)
class FailureGroup:
    """Failures with the same tool, type and message apart from numbers; `message` and `run_id` are
    of the last one.
    """

    agent: str
    actor: str
    name: str
    type: str
    message: str
    count: int
    run_id: str
    first_at: float
    last_at: float


def encode_value(value: Any) -> tuple[str, int]:
    """Return the start of a value as JSON, or the text itself, and its size in bytes, which may be
    estimated.
    """
    limit = MAX_VALUE_BYTES + MARGIN_CHARS
    if isinstance(value, str):
        return value[:limit], (
            len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
        )
    if isinstance(value, RawJson):
        return _join(value.pieces, limit), value.size
    if isinstance(value, list) and len(value) > 2 * MAX_ITEMS:
        sample = value[:: len(value) // MAX_ITEMS]
        return encode_value(value[:MAX_ITEMS])[0], round(
            _encode(sample)[1] * len(value) / len(sample)
        )
    return _encode(value)


def count_tokens(value: Any) -> int:
    """Return the estimated tokens of a text, or of a value as JSON: bytes of UTF-8 divided by four."""
    return -(-encode_value(value)[1] // BYTES_PER_TOKEN)


def _encode(value: Any) -> tuple[str, int]:
    import orjson

    try:
        data = orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS)
    except Exception:  # noqa: BLE001 - integers over 64 bits, cycles, errors in methods of the object
        data = describe(value).encode("utf-8", "backslashreplace")
    return data[: MAX_VALUE_BYTES + MARGIN_CHARS].decode("utf-8", "ignore"), len(data)


def describe(value: object) -> str:
    """Return the value as text, or an empty string if that fails."""
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - its __str__ may raise anything
        return ""


def _join(pieces: Iterable[bytes], limit: int) -> str:
    found = []
    size = 0
    for piece in pieces:
        found.append(piece[: limit - size])
        size += len(found[-1])
        if size >= limit:
            break
    return b"".join(found).decode("utf-8", "ignore")


def build_row(
    run_id: str, call_id: int, values: StoredValues, at: float, redact: Redact
) -> tuple[Any, ...]:
    """Return the row of a call, or of the run itself if `call_id` is 0, without secrets."""
    texts = [None if text is None else _redact(text, redact) for text in values]
    size = sum(len(text.encode()) for text in texts if text)
    return run_id, call_id, *texts, size, at


def _redact(text: str, redact: Redact) -> str:
    shown = to_text(redact(text, MAX_VALUE_BYTES))
    data = shown.encode()
    if len(text) <= MAX_VALUE_BYTES and len(data) <= MAX_VALUE_BYTES:
        return shown
    return data[:MAX_VALUE_BYTES].decode("utf-8", "ignore") + CUT


def build_failure_row(record: FailureRecord, redact: Redact) -> tuple[Any, ...]:
    message = to_text(redact(record.message, MAX_MESSAGE_CHARS))
    if len(record.message) > MAX_MESSAGE_CHARS:
        message += "…"
    owner = record.agent, record.actor, record.token_id
    names = map(to_column, (*owner, record.name, record.error_type))
    return *names, NUMBERS.sub("#", message), message, record.run_id, record.at, record.at


def to_text(text: str) -> str:
    """Return text that both databases store: without NUL characters and lone surrogates."""
    return text.replace("\0", "").encode("utf-8", "backslashreplace").decode()


def to_column(value: Any, max_chars: int = MAX_NAME_CHARS) -> Any:
    """Return the start of a text as both databases store it. Other values are returned unchanged."""
    return to_text(value[:max_chars]) if isinstance(value, str) else value


def prune(database: "Transaction", before: float, max_bytes: int, failures_before: float) -> None:
    """Delete values that are too old or too many, and old groups of failures."""
    database.execute(DELETE_OLD, {"before": before})
    (size,) = database.execute(SIZE).fetchone()
    if size > max_bytes:
        database.execute(DELETE_SURPLUS, {"surplus": int(size) - max_bytes})
    database.execute(DELETE_FAILURES, {"before": failures_before, "most": MAX_FAILURES})


def read_values(database: "Transaction", run_id: str) -> dict[int, StoredValues]:
    """Return the stored values of a run by the number of the call; 0 is the run itself."""
    return {row[0]: StoredValues(*row[1:]) for row in database.execute(DETAILS, {"run_id": run_id})}


def list_failures(
    statistics: "StatisticsDatabase", agent: str | None = None, token_id: str | None = None
) -> list[FailureGroup]:
    """Return groups of failures, the latest first."""
    filters = {
        "agent": to_column(agent),
        "token_id": to_column(token_id),
        "limit": MAX_LISTED_FAILURES,
    }
    with statistics.reading() as database:
        return [FailureGroup(*row) for row in database.execute(FAILURES, filters)]
