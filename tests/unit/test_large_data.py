"""Data is large if it has many characters, or if nobody knows how many."""

from datetime import UTC, datetime
from typing import Any

import pytest

from onetool.util.large_data import is_large


@pytest.mark.parametrize("value", [None, True, 1, 1.5, "a", b"a", ["a", {"b": (1, None)}]])
def test_plain_data_is_small(value: Any) -> None:
    assert not is_large(value)


@pytest.mark.parametrize("value", ["a" * 9_000, b"a" * 9_000, [0] * 500, {"a": ["b" * 5_000] * 2}])
def test_many_characters_and_members_are_large(value: Any) -> None:
    assert is_large(value)


def test_objects_of_unknown_size_are_large() -> None:
    assert is_large({"at": datetime.now(UTC)})
    assert is_large([{1, 2}])


def test_data_that_contains_itself_is_large() -> None:
    circle: list[Any] = []
    circle.append(circle)
    assert is_large(circle)
