"""What libraries tell the standard library's logging goes into our log, not to the terminal of a person."""

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
def forwarded(log: Log, name: str, *sources: str, level: int = logging.NOTSET) -> Iterator[None]:
    """While the block runs, log what the sources report as events of this name, and nowhere else."""
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
