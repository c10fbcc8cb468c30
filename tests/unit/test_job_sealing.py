"""Messages of jobs: nobody without the key can create, change, exchange or shorten one, and keys
can be replaced.
"""

import pytest

from onetool.errors import StorageError
from onetool.state.jobs import JobSealer

KEY, OTHER_KEY = "a1" * 32, "b2" * 32
BODY = bytes(range(256)) * 10_000


def test_a_message_opens_under_its_own_name_with_any_of_the_keys() -> None:
    sealed = JobSealer(KEY).seal("job 1", {"pack": "heavy"}, BODY)
    for keys in (KEY, f"{OTHER_KEY},{KEY}", f"{KEY},{OTHER_KEY}"):
        assert JobSealer(keys).open("job 1", sealed) == ({"pack": "heavy"}, BODY)
    for name, keys in (("job 2", KEY), ("job 1", OTHER_KEY)):
        with pytest.raises(StorageError, match="ONETOOL_KEY"):
            JobSealer(keys).open(name, sealed)


def test_a_changed_or_shortened_message_does_not_open() -> None:
    sealer = JobSealer(KEY)
    sealed = sealer.seal("job 1", {}, BODY)
    changed = sealed[:100] + bytes([sealed[100] ^ 1]) + sealed[101:]
    for message in (changed, sealed[:-1], sealed[:20], b"", sealed + b"x"):
        with pytest.raises(StorageError, match="was changed"):
            sealer.open("job 1", message)
