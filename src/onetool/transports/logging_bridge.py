"""Forwards records of the standard library's `logging` to OneTool's log instead of the terminal."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from onetool.logging import LEVELS, Log


class _Handler(logging.Handler):
    def __init__(self, log: Log, name: str) -> None:
        super().__init__()
        self._log, self._name = log, name

    def emit(self, record: logging.LogRecord) -> None:
        level = record.levelname if record.levelname in LEVELS else "INFO"
        self._log.event(self._name, level=level, text=self.format(record))


@contextmanager
def forward_logging(log: Log, name: str, *sources: str, level: int = logging.NOTSET) -> Iterator[None]:
    """Forward records of the source loggers to the log as events with this name while the block runs."""
    handler, loggers = _Handler(log, name), [logging.getLogger(source) for source in sources]
    handler.setLevel(level)
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
            logger.propagate = not logger.handlers  # another server of this process may still run
