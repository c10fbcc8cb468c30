"""The `machine` pack: how the computer that OneTool runs on is doing. Small and real: read it as the example.

A pack is a file `<pack>_tools.py`; a tool is a function named in `__all__`. Its signature is what callers may pass,
its docstring is what they read, `@tool` says what it needs to be allowed.
"""

import os
import platform
import shutil
import time
from pathlib import Path
from typing import Any, Literal

from onetool._tool import tool
from onetool.context import ToolContext
from onetool.errors import ToolError

__all__ = ["cpu", "disk", "memory", "now"]

Unit = Literal["bytes", "MiB", "GiB"]
SIZES: dict[str, int] = {"bytes": 1, "MiB": 1 << 20, "GiB": 1 << 30}


@tool(permissions=["read"])
def cpu() -> dict[str, Any]:
    """Processor cores and how busy they are.

    Example:
        machine.cpu()
    """
    load = os.getloadavg() if hasattr(os, "getloadavg") else None
    busy = None if load is None else dict(zip(("1m", "5m", "15m"), load, strict=True))
    return {"cores": os.cpu_count(), "load": busy, "system": platform.system(), "machine": platform.machine()}


@tool(permissions=["read"])
def memory(unit: Unit = "MiB") -> dict[str, Any]:
    """Memory of the machine: total and available.

    Args:
        unit: In what to count.

    Example:
        machine.memory(unit="GiB")
    """
    facts = _meminfo()
    return {name: round(facts[key] * 1024 / SIZES[unit], 2) for name, key in MEMORY.items()} | {"unit": unit}


@tool(permissions=["read"])
def disk(context: ToolContext, unit: Unit = "GiB") -> dict[str, Any]:
    """Space on the disk that holds the working folder.

    How much storage the drive has, how much is used, and how much room is left: what is available is `free`.

    Args:
        unit: In what to count.

    Example:
        machine.disk()
    """
    usage = shutil.disk_usage(context.working_dir)
    return {name: round(value / SIZES[unit], 2) for name, value in usage._asdict().items()} | {"unit": unit}


@tool()
async def now(utc: bool = False) -> str:
    """The time now, as ISO text with the offset from UTC.

    Args:
        utc: Whether to tell the time in UTC instead of the machine's own zone.

    Example:
        machine.now(utc=True)
    """
    moment = time.gmtime() if utc else time.localtime()
    offset = "+0000" if utc else time.strftime("%z", moment)
    return time.strftime("%Y-%m-%dT%H:%M:%S", moment) + f"{offset[:3]}:{offset[3:]}"


MEMORY = {"total": "MemTotal", "available": "MemAvailable"}


def _meminfo() -> dict[str, int]:
    """Kibibytes by name, as Linux tells them."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        raise ToolError(f"the memory of {platform.system()} cannot be read yet; Linux can") from None
    return {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)}
