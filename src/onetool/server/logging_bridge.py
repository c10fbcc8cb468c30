"""Forwards records of the standard library's `logging` to OneTool's log instead of the terminal."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from onetool.util.logging import LEVELS, Log


class EventLog(Protocol):
    def event(self, name: str, *, level: str = "INFO", **fields: Any) -> None: ...


class CurrentLog:
    """The log of the application whose client is served by the current task, or else `fallback`."""

    _current: ContextVar[Log] = ContextVar("log")

    def __init__(self, fallback: Log) -> None:
        self._fallback = fallback

    def event(self, name: str, *, level: str = "INFO", **fields: Any) -> None:
        self._current.get(self._fallback).event(name, level=level, **fields)

    @classmethod
    @contextmanager
    def use(cls, log: Log) -> Iterator[None]:
        token = cls._current.set(log)
        try:
            yield
        finally:
            cls._current.reset(token)


class _Handler(logging.Handler):
    def __init__(self, log: EventLog, name: str) -> None:
        super().__init__()
        self._log = log
        self._name = name

    def emit(self, record: logging.LogRecord) -> None:
        level = record.levelname if record.levelname in LEVELS else "INFO"
        self._log.event(self._name, level=level, text=self.format(record))


@contextmanager
def forward_logging(
    log: EventLog, name: str, *sources: str, level: int = logging.NOTSET
) -> Iterator[None]:
    """Log records of the source loggers as events with this name while the block runs."""
    handler = _Handler(log, name)
    loggers = [logging.getLogger(source) for source in sources]
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
