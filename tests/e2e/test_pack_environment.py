"""A pack with pydantic, attrs, NumPy, Pillow and matplotlib in an environment of its own, through
an MCP client.
"""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.extensions_support import write_pack
from tests.support import Connection, connect

SOURCE = '''\
# /// script
# dependencies = ["pydantic==2.14.3", "attrs==26.1.0", "numpy==2.4.6", "pillow==12.0.0",
#   "matplotlib==3.11.2", "pandas==3.1.1"]
# ///
from __future__ import annotations

import datetime as dt
from importlib.util import find_spec

import attrs
from onetool import Context
from pydantic import BaseModel, Field, field_validator


class Line(BaseModel):
    sku: str
    price: float = Field(gt=0)


class Order(BaseModel):
    day: dt.date
    lines: list[Line]

    @field_validator("lines")
    @classmethod
    def sort(cls, lines: list[Line]) -> list[Line]:
        return sorted(lines, key=lambda line: line.sku)


class Invoice(BaseModel):
    order: Order
    total: float


@attrs.define
class Size:
    width: float
    _steps: list[float] = attrs.field(factory=list)


def tables() -> dict:
    import pandas as pd

    days = pd.to_datetime(["2024-02-29", None, None])
    table = pd.DataFrame({"kind": ["a", "b", "a"], "count": [1, 2, 3], "day": days})
    totals = table.groupby("kind")[["count"]].sum()
    return {"table": table, "totals": totals, "column": totals["count"], "array": table["count"].to_numpy()}


def large_table(rows: int):
    import pandas as pd

    return pd.DataFrame({"number": range(rows), "text": ["word"] * rows})


def doubled():
    import pandas as pd

    return pd.Series([1, 2], index=["same", "same"])


def bill(order: Order) -> Invoice:
    """Make an invoice."""
    assert isinstance(order.lines[0], Line) and type(order.lines[0].price) is float
    return Invoice(order=order, total=sum(line.price for line in order.lines))


def measure(size: Size) -> Size:
    assert {type(each) for each in (size.width, *size._steps)} == {float}
    return size


def has_mcp() -> bool:
    return find_spec("mcp") is not None


def stats() -> dict:
    import numpy as np

    values = np.array([[1, 2], [3, 4]])
    numbers = {"mean": values.mean(), "count": np.int64(4), "any": np.bool_(True)}
    return {"all": values, **numbers, "day": np.datetime64("2024-02-29")}


def square(ctx: Context):
    from PIL import Image

    ctx.progress(1, 1)
    return Image.new("RGB", (3, 2), "red")


def chart():
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1, 1))
    figure.subplots().plot([1, 2])
    return figure
'''
ORDER = {"day": "2024-02-29", "lines": [{"sku": "b", "price": 2}, {"sku": "a", "price": 1}]}
SORTED = {"day": "2024-02-29", "lines": [{"sku": "a", "price": 1.0}, {"sku": "b", "price": 2.0}]}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    home = tmp_path_factory.mktemp("home")
    write_pack(home / ".onetool" / "tools", "shop", SOURCE)
    with connect(home) as client:
        yield client


def run(client: Connection, code: str) -> Any:
    result = client.run(code)
    assert not result.is_error, result.content
    return json.loads(result.content[0].text)  # type: ignore[union-attr]


def test_models_are_parameters_and_results(client: Connection) -> None:
    assert run(client, f"shop.bill({ORDER!r})") == {"order": SORTED, "total": 3.0}
    assert run(client, "shop.measure({'width': 1, 'steps': [2]})") == {"width": 1.0, "steps": [2.0]}
    assert run(client, "shop.measure({'width': 1})") == {"width": 1.0, "steps": []}
    assert run(client, "[shop.has_mcp()]") == [False]  # a package of the server
    for wrong, message in (
        ("{'day': 'x', 'lines': []}", "invalid value order.day='x'"),
        (
            "{'day': '2024-02-29', 'lines': [{'sku': 'a', 'price': 0}]}",
            "order.lines[0].price: 0 is less than or equal",
        ),
    ):
        assert message in str(client.run(f"shop.bill({wrong})").content), wrong


def test_values_of_numpy_are_data(client: Connection) -> None:
    expected = {"all": [[1, 2], [3, 4]], "mean": 2.5, "count": 4, "any": True, "day": "2024-02-29"}
    assert run(client, "shop.stats()") == expected


def test_values_of_pandas_are_data(client: Connection) -> None:
    day = "2024-02-29T00:00:00"
    records = [{"kind": "a", "count": 1, "day": day}, {"kind": "b", "count": 2, "day": None}]
    assert run(client, "shop.tables()") == {
        "table": [*records, {"kind": "a", "count": 3, "day": None}],
        "totals": [{"kind": "a", "count": 4}, {"kind": "b", "count": 2}],
        "column": {"a": 4, "b": 2},
        "array": [1, 2, 3],
    }
    assert "duplicate labels" in str(client.run("shop.doubled()").content)
    assert run(client, "[len(shop.large_table(100_000)), shop.large_table(3)[2]]") == [
        100_000,
        {"number": 2, "text": "word"},
    ]
    assert "handle" in run(client, "__format__ = 'json'\nshop.large_table(100_000)")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("tool", ["square", "chart"])
def test_images_of_pillow_and_matplotlib_are_content(client: Connection, tool: str) -> None:
    text, image = client.run(f"shop.{tool}()").content
    assert (image.type, image.mime_type) == ("image", "image/png")  # type: ignore[union-attr]
    data = base64.b64decode(image.data)  # type: ignore[union-attr]
    assert data.startswith(b"\x89PNG")
    assert json.loads(text.text)["size"] == len(data)  # type: ignore[union-attr]
