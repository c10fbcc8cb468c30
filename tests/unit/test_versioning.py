"""Versions of files: newer ones are rejected, all others are checked by their readers."""

import pytest

from onetool.util.versioning import NewerVersion, reject_newer


@pytest.mark.parametrize("version", [2, 99, 1 << 80])
def test_a_newer_version_is_rejected_with_a_hint(version: int) -> None:
    with pytest.raises(
        NewerVersion, match=rf"a\.json was written by a newer OneTool \(version {version}; this one supports 1\)"
    ):
        reject_newer(version, 1, "a.json")
    with pytest.raises(NewerVersion, match="upgrade OneTool"):
        reject_newer(version, 1, "a.json")


@pytest.mark.parametrize("version", [None, 1, 0, -5, "2", 2.0, True, [], {}])
def test_other_versions_are_accepted(version: object) -> None:
    reject_newer(version, 1, "a.json")
