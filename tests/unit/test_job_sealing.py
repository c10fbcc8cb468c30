"""Messages of jobs: nobody without the key can create, change, exchange or shorten one, and keys can be replaced."""

import pytest

from onetool.errors import StorageError
from onetool.postgres.job_sealing import JobSealer

KEY, OTHER_KEY = "a1" * 32, "b2" * 32
LARGE = [bytes([number]) * 700_000 for number in range(5)]


def test_a_message_opens_under_its_own_name_with_any_of_the_keys() -> None:
    sealed = JobSealer(KEY).seal("job 1", {"pack": "heavy"}, LARGE)
    assert max(map(len, sealed.chunks)) < 1_100_000
    for keys in (KEY, f"{OTHER_KEY},{KEY}", f"{KEY},{OTHER_KEY}"):
        sealer = JobSealer(keys)
        header = sealer.open("job 1", sealed.header)
        assert header.facts == {"pack": "heavy"}
        assert b"".join(sealer.open_body("job 1", header, sealed.chunks)) == b"".join(LARGE)
    for name, keys in (("job 2", KEY), ("job 1", OTHER_KEY)):
        with pytest.raises(StorageError, match="ONETOOL_KEY"):
            JobSealer(keys).open(name, sealed.header)


def test_chunks_are_bound_to_their_message_and_position() -> None:
    sealer = JobSealer(KEY)
    sealed = sealer.seal("job 1", {}, LARGE)
    first, second, *rest = sealed.chunks
    foreign = sealer.seal("job 2", {}, LARGE).chunks
    older = sealer.seal("job 1", {}, [each + b"older" for each in LARGE]).chunks
    changed = bytes([first[0] ^ 1]) + first[1:]
    header = sealer.open("job 1", sealed.header)
    for chunks in ([second, first, *rest], [first, *rest], [first], [], foreign, older, [changed, second, *rest]):
        with pytest.raises(StorageError, match="was changed"):
            sealer.open_body("job 1", header, chunks)
