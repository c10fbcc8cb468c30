"""Short descriptions of large values."""

from typing import Any

import pytest

from onetool_child.summary import summary


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([{"file": f"f{i % 42}.py", "line": i} for i in range(847)], "847 matches in 42 files"),
        (
            {"results": [{"path": "a", "line_number": 1, "content": "x"}], "total": 1},
            "1 match in 1 file",
        ),
        (
            {"matches": [{"file": "a", "line": 1}] * 2, "truncated": True},
            "2 matches in 1 file, truncated",
        ),
        ([{"path": "/users", "method": "get"}] * 2, "list of 2 items with keys path, method"),
        (
            [{"a": i, "b": 2} for i in range(1200)] + [{"c": 3}],
            "list of 1,201 items with keys a, b, c",
        ),
        ([{"file": "a", "line": 1}, {"file": None}], "list of 2 items with keys file, line"),
        ([{"file": "a", "line": 1}, {"file": "b"}], "list of 2 items with keys file, line"),
        (["a", "b"], "list of 2 strings"),
        ([1, "b", None], "list of 3 items"),
        ([], "list of 0 items"),
        ([{}], "list of 1 item with no keys"),
        ({"only": 1}, "JSON object with key only"),
        (
            {f"k{i}": i for i in range(10)},
            "JSON object with keys k0, k1, k2, k3, k4, k5, k6, k7 and 2 more",
        ),
        ({"a\nb": 1, "": 2, "x" * 50: 3}, f"JSON object with keys 'a\\nb', '', {'x' * 40}…"),
        ("text", ""),
        (None, ""),
    ],
)
def test_a_summary_describes_the_value(value: Any, expected: str) -> None:
    assert summary(value) == expected
