"""A dictionary with a maximum size."""

from onetool.util.bounded_dict import BoundedDict


def test_the_oldest_entries_are_forgotten() -> None:
    entries: BoundedDict[str, int] = BoundedDict(2)
    for number, name in enumerate("abc"):
        entries[name] = number
    assert list(entries.items()) == [("b", 1), ("c", 2)]


def test_setting_an_entry_again_makes_it_the_newest() -> None:
    entries: BoundedDict[str, int] = BoundedDict(2)
    for name in "abac":
        entries[name] = 0
    assert list(entries) == ["a", "c"]
