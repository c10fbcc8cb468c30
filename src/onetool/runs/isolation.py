"""The isolation of code: whether there is one, and the interpreter in it."""

import importlib.metadata
import sys

from onetool.runs.cells import NOT_ANSWERING, NOT_STARTED, PROCESS_ONLY, is_isolated
from onetool.runs.wasm_launcher import INSTALL, PACKAGE, WasmLauncher, find_wasm_problem
from onetool.util.problem import OK, WARNING, Problem

PYTHON = ".".join(map(str, sys.version_info[:3]))


def check_isolation(sandbox: str, wanted: str) -> Problem:
    """Return whether code is isolated, given what cells report and the setting
    `execution.isolation`.
    """
    if wanted == "off":
        hint = "set execution.isolation to auto"
        return Problem(
            "isolation is disabled: code runs with your permissions", hint, level=WARNING
        )
    if sandbox in {NOT_STARTED, NOT_ANSWERING} or is_isolated(sandbox.split("+")):
        return Problem(f"code is isolated: {sandbox}", level=OK)
    what = (
        "code runs in a separate process with partial isolation: this machine offers only"
        f" {sandbox}"
    )
    if sandbox == PROCESS_ONLY:
        what = (
            "code runs without isolation: in a plain process with limits, which has your"
            " permissions"
        )
    return Problem(what, find_wasm_problem() or INSTALL, level=WARNING)


def find_isolation_problem(sandbox: str, wanted: str) -> Problem | None:
    """Return a problem if code is not isolated although the settings do not disable the isolation."""
    problem = check_isolation(sandbox, wanted)
    return None if wanted == "off" or problem.level == OK else problem


def describe_interpreter(cells: str) -> str:
    """Return the interpreter of cells of this kind: that of the server, or the one in the package
    of the sandbox.
    """
    if cells != WasmLauncher.kind or find_wasm_problem():
        return PYTHON
    return f"of {PACKAGE} {importlib.metadata.version(PACKAGE)}"
