"""Outputs too large to be shown: kept in files, seen in windows, searched, described, loaded back, and gone with time.

`store` is the way in. Whether an output is too large, and who may ask for it, others decide. Everything here blocks, so
that a server calls it from a thread.
"""

from onetool.results.quota import Quota
from onetool.results.store import ResultStore
from onetool.results.window import Unit

__all__ = ["Quota", "ResultStore", "Unit"]
