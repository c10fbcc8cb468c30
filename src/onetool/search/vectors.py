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
MIN_NEARNESS: Final = 0.3  # for a document with none of the words; random letters reach 0.2
NO_NEARNESS: Final = 0.1  # if no document is nearer than this, vectors have little weight


def load_embedder() -> "Embedder | None":
    """Return the embedder; None if the extra is not installed or cannot be read."""
    spec = find_spec(PACKAGE)
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    if not folders or not all((folders[0] / file).is_file() for file in (WEIGHTS, TOKENIZER)):
        return None
    try:
        return Embedder(folders[0])
    except Exception:  # noqa: BLE001 - if the package is broken, full text still works
        return None


class Embedder:
    def __init__(self, folder: Path) -> None:
        self.numpy: Any = import_module("numpy")
        tensors = import_module("safetensors.numpy").load_file(str(folder / WEIGHTS))
        self._table = tensors["embedding.weight"]
        self._tokenizer: Any = import_module("tokenizers").Tokenizer.from_file(str(folder / TOKENIZER))
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
        kept = list(rows)
        numpy = embedder.numpy
        self._embedder = embedder
        self._keys = [key for key, _ in kept]
        self._places = {key: place for place, key in enumerate(self._keys)}
        joined = numpy.frombuffer(b"".join(packed for _, packed in kept), dtype="float16")
        self._matrix = joined.reshape(len(kept), -1).astype("float32")

    def blend(
        self, text: str, scored: Scored, kinds: frozenset[Kind], passages: Callable[[Sequence[Key]], Sequence[str]]
    ) -> Scored:
        """Return the scores with similarity added, the best first, including similar documents that had no score.

        `passages` returns the texts of documents that have no vector here.
        """
        numpy = self._embedder.numpy
        wanted = self._embedder.vectors([text])[0]
        strange = [key for key, _ in scored if key not in self._places]
        nearness = numpy.concatenate([self._matrix @ wanted, self._embedder.vectors(passages(strange)) @ wanted])
        keys = [*self._keys, *strange]
        places = {key: place for place, key in enumerate(keys)}
        if kinds != KINDS:
            nearness[~numpy.isin(numpy.array([kind for kind, _ in keys]), list(kinds))] = 0
        factor = WEIGHT / max(float(nearness.max()), NO_NEARNESS)
        total = numpy.where(nearness >= MIN_NEARNESS, nearness * factor, 0)
        best = max((score for _, score in scored), default=1.0)
        for key, score in scored:
            total[places[key]] = nearness[places[key]] * factor + score / best
        order = numpy.argsort(-total, kind="stable").tolist()
        return [(keys[place], float(total[place])) for place in order if total[place] > 0]
