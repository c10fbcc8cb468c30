"""Paging: tokens cannot be forged, and unchanged items are listed exactly once during changes."""

import base64
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.bundles_support import Clock, expect_error, new_bundle, open_store, tool_body

from onetool.sources.bundles import BundleStore, Page
from onetool.sources.bundles.queries import PageTokens
from onetool.state.sealing import PageKey

FILTERS = ["tools", None, None, False]


def test_a_token_is_valid_in_every_process(tmp_path: Path) -> None:
    token = PageTokens(PageKey(tmp_path / ".key").load).make(FILTERS, ["a", 1])
    assert PageTokens(PageKey(tmp_path / ".key").load).read(token, FILTERS) == ["a", 1]
    assert (tmp_path / ".key").stat().st_mode & 0o077 == 0


def test_every_change_of_a_token_is_detected(tmp_path: Path) -> None:
    tokens = PageTokens(PageKey(tmp_path / ".key").load)
    data = bytearray(base64.urlsafe_b64decode(tokens.make(FILTERS, ["abc"]) + "=="))
    for at in range(len(data)):
        changed = bytes(data[:at]) + bytes([data[at] ^ 1]) + bytes(data[at + 1 :])
        expect_error(
            "invalid", tokens.read, base64.urlsafe_b64encode(changed).decode().rstrip("="), FILTERS
        )


@pytest.mark.parametrize("wrong", ["", "x", "a" * 2000, "é", "💣", "AAAA", "=" * 8, "\x00", 7])
def test_an_invalid_token_is_rejected(tmp_path: Path, wrong: Any) -> None:
    expect_error(
        "invalid", lambda: PageTokens(PageKey(tmp_path / ".key").load).read(wrong, FILTERS)
    )


def test_a_token_of_another_store_is_rejected(tmp_path: Path) -> None:
    token = PageTokens(PageKey(tmp_path / "a").load).make(FILTERS, [1])
    expect_error("invalid", lambda: PageTokens(PageKey(tmp_path / "b").load).read(token, FILTERS))


def test_a_damaged_key_is_replaced(tmp_path: Path) -> None:
    (tmp_path / ".key").write_text("no key")
    tokens = PageTokens(PageKey(tmp_path / ".key").load)
    assert tokens.read(tokens.make(FILTERS, [1]), FILTERS) == [1]


class ChangingTools:
    """Tools that stay, among others that are added and deleted between pages."""

    def __init__(self, store: BundleStore, clock: Clock, chance: random.Random) -> None:
        self.store, self.clock, self.chance = store, clock, chance
        self.bundles = [new_bundle(store, f"pack-{number}") for number in range(3)]
        self.here: list[tuple[str, str]] = []
        self.staying = [self._add(f"stay-{number}") for number in range(30)]
        self.moving = [self._add(f"move-{number}") for number in range(15)]

    def _add(self, slug: str) -> tuple[str, str]:
        self.clock.move(microseconds=self.chance.randint(0, 2))
        bundle = self.chance.choice(self.bundles)
        words = self.chance.sample(["apple", "aple", "pineapple", "fruit"], k=2)
        body = tool_body(displayName=words[0], description=f"{words[1]} apple", tags=["red"])
        self.store.put_tool(bundle, slug, "1", body)
        return bundle, slug

    def change(self, turn: int) -> None:
        bundle, slug = self.moving.pop(self.chance.randrange(len(self.moving)))
        self.store.delete_tool(bundle, slug, "1")
        self.moving += [
            self._add(f"move-{turn}-{number}") for number in range(self.chance.randint(0, 2))
        ]
        bundle, slug = self.chance.choice(self.moving)
        tool = self.store.get_tool(bundle, slug, "1")
        self.store.set_tool_enabled(bundle, slug, "1", not tool.is_enabled)


QUERIES: dict[str, Callable[..., Page[Any]]] = {
    "list": lambda store, **page: store.list_tools(**page),
    "by tag": lambda store, **page: store.list_tools(tags=["red", "green"], **page),
    "search": lambda store, **page: store.search("apple", **page),
    "search with a typo": lambda store, **page: store.search("appel", **page),
}


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
@pytest.mark.parametrize("seed", range(3))
def test_unchanged_items_are_listed_exactly_once_during_changes(
    tmp_path: Path, query: Callable[..., Page[Any]], seed: int
) -> None:
    chance, clock = random.Random(seed), Clock()
    with open_store(tmp_path / "bundles", clock=clock) as store:
        tools = ChangingTools(store, clock, chance)
        expected = {slug for _, slug in tools.staying} & set(_list_slugs(query(store, size=256)))
        assert len(expected) >= 10
        listed: list[str] = []
        token, turn = None, 0
        while turn == 0 or token:
            page = query(store, size=chance.randint(1, 6), token=token)
            listed, token, turn = listed + _list_slugs(page), page.next_token, turn + 1
            tools.change(turn) if len(tools.moving) > 2 else None
        stayed = [slug for slug in listed if slug.startswith("stay-")]
        assert sorted(stayed) == sorted(expected)


def _list_slugs(page: Page[Any]) -> list[str]:
    return [getattr(item, "tool", item).slug for item in page.items]


def test_pages_of_any_size_add_up_to_the_list(tmp_path: Path) -> None:
    with open_store(tmp_path / "bundles") as store:
        bundle = new_bundle(store)
        store.put_many(bundle, [(f"tool-{number}", "1", tool_body()) for number in range(40)])
        for size in (1, 3, 39, 40, 41, 256):
            listed: list[str] = []
            token = None
            while token is not None or not listed:
                page = store.list_tools(size=size, token=token)
                assert len(page.items) <= size
                listed, token = listed + _list_slugs(page), page.next_token
            assert listed == [f"tool-{number}" for number in range(40)]
