"""State that is kept in documents: the tokens of language models, and the last use of tokens."""

from contextlib import suppress

from onetool.errors import ToolError
from onetool.state.documents import Documents
from onetool.state.sqlite_database import StateDatabase

MODEL_USAGE = "model usage"  # the kind of the documents with the tokens of each day


class LastUses:
    """When each token was last used."""

    def __init__(self, database: StateDatabase) -> None:
        self._documents = Documents(database, "token use", is_announced=False)
        self._now = database.now

    def touch(self, identifier: str) -> None:
        with suppress(ToolError):
            self._documents.update(identifier, lambda _: self._now())

    def read(self, identifier: str) -> float | None:
        seconds = self._documents.get(identifier)
        return None if seconds is None else float(seconds)

    def forget(self, identifier: str) -> None:
        with suppress(ToolError):
            self._documents.update(identifier, lambda _: None)
