"""Semantic similarity by larger word vectors, if the extra `semantic` is installed. It needs no network and no model.

The package wordllama contains weights and a tokenizer. Its own loader uses the network, so its two files are read here
and the package itself is never imported.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from onetool.search.documents import SearchDocument
from onetool.search.index import MAX_CHARACTERS
from onetool.search.word_vectors import FIELD_WEIGHTS
from onetool.search.words import drop_stop_words, split_names

PACKAGE: Final = "wordllama"
WEIGHTS: Final = "weights/l2_supercat_256.safetensors"
TOKENIZER: Final = "tokenizers/l2_supercat_tokenizer_config.json"
MAX_WORDS: Final = 400  # of a field


def load_embedder() -> "Embedder | None":
    """Return the embedder; None if the extra is not installed or cannot be read."""
    spec = find_spec(PACKAGE)
    directories = [Path(directory) for directory in (spec.submodule_search_locations or ())] if spec else []
    if not directories or not all((directories[0] / file).is_file() for file in (WEIGHTS, TOKENIZER)):
        return None
    try:
        return Embedder(directories[0])
    except Exception:  # noqa: BLE001 - if the package is broken, the rest of the search still works
        return None


class Embedder:
    def __init__(self, directory: Path) -> None:
        self.numpy: Any = import_module("numpy")
        tensors = import_module("safetensors.numpy").load_file(str(directory / WEIGHTS))
        self._table = tensors["embedding.weight"]
        self._tokenizer: Any = import_module("tokenizers").Tokenizer.from_file(str(directory / TOKENIZER))
        self._tokenizer.no_padding()

    def encode(self, texts: Sequence[str]) -> Any:
        """Return a unit vector for each text; zeros if it has no words."""
        cut = [" ".join(drop_stop_words(split_names(text[:MAX_CHARACTERS]))[:MAX_WORDS]) for text in texts]
        encoded = self._tokenizer.encode_batch(cut, add_special_tokens=False)
        rows = [self._table[found.ids].astype("float32").sum(axis=0) for found in encoded]
        return self._normalize(self.numpy.stack(rows) if rows else self._make_empty())

    def encode_documents(self, fields: Sequence[Sequence[str]]) -> Any:
        """Return a unit vector for each document. Its fields count equally, whatever their length."""
        total = self._make_empty() if not fields else 0
        for texts, weight in zip(zip(*fields, strict=True), FIELD_WEIGHTS, strict=False):
            total = total + weight * self.encode(texts)
        return self._normalize(total)

    def pack(self, documents: Iterable[SearchDocument]) -> list[bytes]:
        """Return the vectors as bytes for storage."""
        fields = [(one.name, one.description, one.arguments) for one in documents]
        return [row.astype("float16").tobytes() for row in self.encode_documents(fields)]

    def _normalize(self, vectors: Any) -> Any:
        lengths = self.numpy.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors / self.numpy.maximum(lengths, 1e-9)

    def _make_empty(self) -> Any:
        return self.numpy.zeros((0, self._table.shape[1]), "float32")


class Vectors:
    """The vectors of all documents of a shelf, to be compared with the vector of a query."""

    def __init__(self, embedder: Embedder, rows: Sequence[tuple[int, bytes]]) -> None:
        if len({len(vector or b"") for _, vector in rows}) != 1:
            raise sqlite3.DatabaseError("the vectors have different sizes")
        self._numpy: Any = embedder.numpy
        self._numbers = [number for number, _ in rows]
        self._places = {number: place for place, number in enumerate(self._numbers)}
        joined = self._numpy.frombuffer(b"".join(packed for _, packed in rows), dtype="float16")
        self._matrix = joined.reshape(len(rows), -1).astype("float32")

    def find(self, query: Any, limit: int) -> list[int]:
        """Return the nearest rows."""
        similarity = self._matrix @ query
        count = min(limit, len(similarity))
        return [self._numbers[place] for place in self._numpy.argpartition(-similarity, count - 1)[:count]]

    def compare(self, query: Any, numbers: Sequence[int]) -> list[float]:
        places = [self._places[number] for number in numbers]
        found: list[float] = (self._matrix[places] @ query).tolist()
        return found
