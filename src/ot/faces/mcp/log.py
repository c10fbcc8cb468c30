"""What the SDK's server has to say goes into our log, not to the terminal of a person."""

import logging
from typing import Any

from ot.logging import LEVELS, Log

SOURCES = ("mcp.server", "mcp.shared")


class SdkLog(logging.Handler):
    """From now on, until it is closed."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log
        for source in SOURCES:
            logging.getLogger(source).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        level = record.levelname if record.levelname in LEVELS else "WARNING"
        fields: dict[str, Any] = {"text": self.format(record)}
        self._log.event("mcp.server", level=level, **fields)

    def close(self) -> None:
        for source in SOURCES:
            logging.getLogger(source).removeHandler(self)
        super().close()
