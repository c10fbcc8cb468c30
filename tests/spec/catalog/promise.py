"""What a promise is, and how the tables beside this file become promises.

A table maps a requirement to its scenarios, and a scenario to a title: `{"fence": {"no-fences": "…"}}`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

Table = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Promise:
    id: str
    title: str


def document(name: str, table: Table) -> tuple[Promise, ...]:
    return tuple(
        Promise(f"{name}.{requirement}.{scenario}", title)
        for requirement, scenarios in table.items()
        for scenario, title in scenarios.items()
    )
