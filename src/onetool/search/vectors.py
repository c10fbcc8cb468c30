"""Semantic similarity by static word vectors, if the extra `semantic` is installed. It needs no network and no model.

The package wordllama contains weights and a tokenizer. Its own loader uses the network, so its two files are read here
and the package itself is never imported.
"""

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from onetool.search.documents import KINDS, Key, Kind, Scored

PACKAGE: Final = "wordllama"
WEIGHTS: Final = "weights/l2_supercat_256.safetensors"
TOKENIZER: Final = "tokenizers/l2_supercat_tokenizer_config.json"
WEIGHT: Final = 0.65  # of the best vector score; the best full-text score counts 1
MIN_SIMILARITY: Final = 0.3  # for a document with none of the words; random letters reach 0.2
LOW_SIMILARITY: Final = 0.1  # if no document is nearer than this, vectors have little weight


def load_embedder() -> "Embedder | None":
    """Return the embedder; None if the extra is not installed or cannot be read."""
    spec = find_spec(PACKAGE)
    directories = [Path(directory) for directory in (spec.submodule_search_locations or ())] if spec else []
    if not directories or not all((directories[0] / file).is_file() for file in (WEIGHTS, TOKENIZER)):
        return None
    try:
        return Embedder(directories[0])
    except Exception:  # noqa: BLE001 - if the package is broken, full text still works
        return None


class Embedder:
    def __init__(self, directory: Path) -> None:
        self.numpy: Any = import_module("numpy")
        tensors = import_module("safetensors.numpy").load_file(str(directory / WEIGHTS))
        self._table = tensors["embedding.weight"]
        self._tokenizer: Any = import_module("tokenizers").Tokenizer.from_file(str(directory / TOKENIZER))
        self._tokenizer.no_padding()

    def vectors(self, texts: Sequence[str]) -> Any:
        """Return a unit vector for each text; zeros if it has no words."""
        encoded = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        rows = [self._table[found.ids].astype("float32").sum(axis=0) for found in encoded]
        stacked = self.numpy.stack(rows) if rows else self.numpy.zeros((0, self._table.shape[1]), "float32")
        lengths = self.numpy.linalg.norm(stacked, axis=1, keepdims=True)
        return stacked / self.numpy.maximum(lengths, 1e-9)

    def pack(self, texts: Sequence[str]) -> list[bytes]:
        """Return the vectors as bytes for storage."""
        return [row.astype("float16").tobytes() for row in self.vectors(texts)] if texts else []


class Vectors:
    """The vectors of all documents, to be compared with the vector of a query."""

    def __init__(self, embedder: Embedder, rows: Iterable[tuple[Key, bytes]]) -> None:
        stored = list(rows)
        numpy = embedder.numpy
        self._embedder = embedder
        self._keys = [key for key, _ in stored]
        self._places = {key: place for place, key in enumerate(self._keys)}
        joined = numpy.frombuffer(b"".join(packed for _, packed in stored), dtype="float16")
        self._matrix = joined.reshape(len(stored), -1).astype("float32")

    def blend(
        self, text: str, scored: Scored, kinds: frozenset[Kind], passages: Callable[[Sequence[Key]], Sequence[str]]
    ) -> Scored:
        """Return the scores with similarity added, the best first, including similar documents that had no score.

        `passages` returns the texts of documents that have no vector here.
        """
        numpy = self._embedder.numpy
        wanted = self._embedder.vectors([text])[0]
        unstored = [key for key, _ in scored if key not in self._places]
        similarity = numpy.concatenate([self._matrix @ wanted, self._embedder.vectors(passages(unstored)) @ wanted])
        keys = [*self._keys, *unstored]
        places = {key: place for place, key in enumerate(keys)}
        if kinds != KINDS:
            similarity[~numpy.isin(numpy.array([kind for kind, _ in keys]), list(kinds))] = 0
        factor = WEIGHT / max(float(similarity.max()), LOW_SIMILARITY)
        total = numpy.where(similarity >= MIN_SIMILARITY, similarity * factor, 0)
        best = max((score for _, score in scored), default=1.0)
        for key, score in scored:
            total[places[key]] = similarity[places[key]] * factor + score / best
        order = numpy.argsort(-total, kind="stable").tolist()
        return [(keys[place], float(total[place])) for place in order if total[place] > 0]
