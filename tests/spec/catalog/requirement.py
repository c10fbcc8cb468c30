"""Requirements, and their construction from the tables in this package.

A table maps a requirement to its scenarios, and a scenario to a title: `{"fence": {"no-fences":
"…"}}`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

Table = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Requirement:
    id: str
    title: str


def list_requirements(name: str, table: Table) -> tuple[Requirement, ...]:
    return tuple(
        Requirement(f"{name}.{requirement}.{scenario}", title)
        for requirement, scenarios in table.items()
        for scenario, title in scenarios.items()
    )
