"""Seals the arguments and results of jobs with keys that are derived from `ONETOOL_KEY` and not in the database.

A message is a sealed header, which contains a short body, and sealed chunks of a long one. The name of a message is
sealed with it, so nobody can create, change, exchange or shorten one without the key.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from onetool.state.keys import make_error, open_any, parse_keys
from onetool.state.result_rows import join_chunks
from onetool.state.sealing import KEY_BYTES, Sealer

MAX_INLINE_BYTES: Final = 64 << 10
PURPOSE: Final = b"onetool jobs"


class SealedMessage(NamedTuple):
    header: bytes
    chunks: Sequence[bytes] = ()


class OpenedHeader(NamedTuple):
    """The facts of a message, with its body or the number of its chunks."""

    facts: Mapping[str, Any]
    body: bytes
    chunk_count: int
    digest: str


class JobSealer:
    """Seals messages with the first of the keys, and opens them with any."""

    def __init__(self, keys: str) -> None:
        self._sealers = [Sealer(_derive(key), "ONETOOL_KEY", make_error) for key in parse_keys(keys)]

    def seal(self, name: str, facts: Mapping[str, Any], body: Iterable[bytes] = ()) -> SealedMessage:
        chunks = list(join_chunks(body))
        digest = digest_body(chunks)
        is_inline = sum(map(len, chunks)) <= MAX_INLINE_BYTES
        header = {"facts": facts, "chunks": 0 if is_inline else len(chunks), "digest": digest}
        text = json.dumps(header).encode() + b"\n" + (b"".join(chunks) if is_inline else b"")
        sealer = self._sealers[0]
        pieces = () if is_inline else enumerate(chunks)
        sealed = [sealer.seal(chunk, _name_chunk(name, number)) for number, chunk in pieces]
        return SealedMessage(sealer.seal(text, name.encode()), sealed)

    def open(self, name: str, header: bytes) -> OpenedHeader:
        """Return the header. Raise StorageError if it was not sealed under this name with one of the keys."""
        text, _, body = open_any(self._sealers, header, name.encode())[0].partition(b"\n")
        data = json.loads(text)
        return OpenedHeader(data["facts"], body, data["chunks"], data["digest"])

    def open_body(self, name: str, header: OpenedHeader, chunks: Sequence[bytes]) -> list[bytes]:
        """Return the body of a message in chunks. Raise StorageError if it is not the one that was sealed."""
        if not header.chunk_count:
            return [header.body]
        opened = [open_any(self._sealers, each, _name_chunk(name, n))[0] for n, each in enumerate(chunks)]
        if len(opened) != header.chunk_count or digest_body(opened) != header.digest:
            raise make_error(f"the content of {name} was changed")
        return opened


def digest_body(chunks: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def _derive(key: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), KEY_BYTES, salt=None, info=PURPOSE).derive(key)


def _name_chunk(name: str, number: int) -> bytes:
    return f"{name}, chunk {number}".encode()
