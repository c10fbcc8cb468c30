"""Seals the input and the result of jobs with a key that is derived from `ONETOOL_KEY` and not in
the database.
"""

import json
from collections.abc import Callable
from typing import Any

from onetool.errors import ToolError, describe
from onetool.state.keys import make_error, open_any, parse_keys
from onetool.state.sealing import KEY_BYTES, Sealer
from onetool.util.large_data import RawJson
from onetool_child.data import encode
from onetool_child.errors import restore
from onetool_child.json_types import JsonMapping, JsonObject
from onetool_child.messages import UTF8, split_text

PURPOSE = b"onetool jobs"
MAX_BYTES = 256 << 20  # PostgreSQL returns no value whose hexadecimal form has more than 1 GB


class JobSealer:
    """Seals messages with the first of the keys, and opens them with any.

    The name of a message is sealed with it: without a key, nobody can create, change, exchange or
    shorten one.
    """

    def __init__(self, keys: str) -> None:
        self._sealers = [
            Sealer(_derive(key), "ONETOOL_KEY", make_error) for key in parse_keys(keys)
        ]

    def seal(self, name: str, facts: JsonMapping, body: bytes) -> bytes:
        if len(body) > MAX_BYTES:
            raise ToolError(
                f"the {name} is too large: a queue accepts at most {MAX_BYTES >> 20} MiB"
            )
        return self._sealers[0].seal(json.dumps(facts).encode() + b"\n" + body, name.encode())

    def open(self, name: str, sealed: bytes) -> tuple[JsonObject, bytes]:
        """Return facts and body.

        Raise StorageError if they were not sealed under this name with one of the keys.
        """
        opened, _ = open_any(self._sealers, sealed, name.encode())
        facts, _, body = opened.partition(b"\n")
        return json.loads(facts), body

    def seal_result(
        self, job: str, value: Any, error: Exception | None, redact: Callable[[Any], Any]
    ) -> bytes:
        """Seal what a tool returned or raised, without the secrets of the worker."""
        kind = "value"
        if error is not None:
            kind = "error"
            body = encode(redact(describe(error))).encode()
        elif isinstance(value, RawJson):
            kind = "raw"
            body = str(redact(b"".join(value.pieces).decode(*UTF8))).encode(*UTF8)
        else:
            body = encode(redact(value)).encode()
        try:
            return self.seal(f"result of job {job}", {"kind": kind}, body)
        except ToolError as large:
            return self.seal_result(job, None, large, redact)

    def open_result(self, job: str, sealed: bytes) -> tuple[Any, Exception | None]:
        """Return the value that a tool returned, or the error that it raised."""
        facts, body = self.open(f"result of job {job}", sealed)
        if facts["kind"] == "error":
            return None, restore(json.loads(body))
        if facts["kind"] == "raw":
            return RawJson(tuple(split_text(body.decode(*UTF8)))), None
        return json.loads(body), None


def _derive(key: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), KEY_BYTES, salt=None, info=PURPOSE).derive(key)
