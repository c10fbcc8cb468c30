"""What a promise is, and how the tables beside this file become promises.

A table maps a requirement to its scenarios, and a scenario to a title: `{"fence": {"no-fences": "…"}}`. Each
document has one table of what is built and one for each issue that builds more. Whoever builds a promise
moves its line to the first.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

Table = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Promise:
    id: str
    title: str
    deferred: str | None


def document(name: str, built: Table, deferred: Mapping[str, Table]) -> tuple[Promise, ...]:
    later = (promise for issue, table in deferred.items() for promise in _rows(name, table, issue))
    return (*_rows(name, built, None), *later)


def _rows(name: str, table: Table, deferred: str | None) -> Iterator[Promise]:
    for requirement, scenarios in table.items():
        for scenario, title in scenarios.items():
            yield Promise(f"{name}.{requirement}.{scenario}", title, deferred)
