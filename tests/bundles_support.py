"""Helpers for tests of the bundle store: a store, a clock, and request bodies."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from onetool.errors import BundleError
from onetool.sources.bundles import BundleStore

START = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)


class Clock:
    """A clock that advances only when `move` is called."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def read_seconds(self) -> float:
        return self.now.timestamp()

    def move(self, **by: float) -> None:
        self.now += timedelta(**by)


@contextmanager
def open_store(directory: Path, **settings: Any) -> Iterator[BundleStore]:
    store = BundleStore(directory, **settings)
    try:
        yield store
    finally:
        store.close()


def bundle_body(slug: str = "tools", **more: Any) -> dict[str, Any]:
    return {"slug": slug, "displayName": slug, "isEnabled": True, **more}


def tool_body(**more: Any) -> dict[str, Any]:
    return {
        "displayName": "A tool",
        "isEnabled": True,
        "type": "python",
        "pythonImpl": {"function": "some.function"},
        **more,
    }


def new_bundle(store: BundleStore, slug: str = "tools", **more: Any) -> str:
    bundle_id = store.new_id()
    store.put_bundle(bundle_id, bundle_body(slug, **more))
    return bundle_id


def bundle_directory(root: Path, bundle_id: str) -> Path:
    (found,) = root.glob(f"*-{bundle_id}")
    return found


def expect_error(code: str, action: Callable[..., object], *args: Any, **named: Any) -> BundleError:
    with pytest.raises(BundleError) as caught:
        action(*args, **named)
    assert caught.value.code == code, caught.value.message
    assert isinstance(caught.value.details, dict)
    return caught.value


def search_slugs(store: BundleStore, q: str, **more: Any) -> list[str]:
    return [hit.tool.slug for hit in store.search(q, **more).items]


def list_slugs(store: BundleStore, **more: Any) -> list[str]:
    return [tool.slug for tool in store.list_tools(size=256, **more).items]
