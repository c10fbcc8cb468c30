"""The `machine` pack: CPU, memory, disk and time of the computer. A small example of a pack.

A pack is a module `<pack>_tools.py`; a tool is a function listed in `__all__`. Its signature
defines the arguments, its docstring is the description, and `@tool` declares its permissions.
"""

import os
import platform
import shutil
import time
from pathlib import Path
from typing import Literal

from onetool.core.tool import tool
from onetool.errors import ToolError
from onetool.util.context import ToolContext
from onetool_child.json_types import JsonObject

__all__ = ["cpu", "disk", "memory", "now"]

Unit = Literal["bytes", "MiB", "GiB"]
SIZES: dict[str, int] = {"bytes": 1, "MiB": 1 << 20, "GiB": 1 << 30}


@tool(permissions=["read"], labels=())
def cpu() -> JsonObject:
    """Return the number of processor cores and how busy they are (load).

    Example:
        machine.cpu()
    """
    load = os.getloadavg() if hasattr(os, "getloadavg") else None
    busy = None if load is None else dict(zip(("1m", "5m", "15m"), load, strict=True))
    return {
        "cores": os.cpu_count(),
        "load": busy,
        "system": platform.system(),
        "machine": platform.machine(),
    }


@tool(permissions=["read"], labels=())
def memory(unit: Unit = "MiB") -> JsonObject:
    """Return the memory of the machine: total and available.

    Args:
        unit: Unit of the result.

    Example:
        machine.memory(unit="GiB")
    """
    values = _read_meminfo()
    return {name: round(values[key] * 1024 / SIZES[unit], 2) for name, key in MEMORY.items()} | {
        "unit": unit
    }


@tool(permissions=["read"], labels=())
def disk(context: ToolContext, unit: Unit = "GiB") -> JsonObject:
    """Return the space on the disk that holds the working directory.

    How much storage the drive has, how much is used, and how much room is left (available): total,
    used, free.

    Args:
        unit: Unit of the result.

    Example:
        machine.disk()
    """
    usage = shutil.disk_usage(context.working_dir)
    return {name: round(value / SIZES[unit], 2) for name, value in usage._asdict().items()} | {
        "unit": unit
    }


@tool(effects=["read"], labels=())
async def now(utc: bool = False) -> str:
    """Return the current time in ISO 8601 format with the UTC offset.

    Args:
        utc: Whether to use UTC instead of the local time zone.

    Example:
        machine.now(utc=True)
    """
    current = time.gmtime() if utc else time.localtime()
    offset = "+0000" if utc else time.strftime("%z", current)
    return time.strftime("%Y-%m-%dT%H:%M:%S", current) + f"{offset[:3]}:{offset[3:]}"


MEMORY = {"total": "MemTotal", "available": "MemAvailable"}


def _read_meminfo() -> dict[str, int]:
    """Return the /proc/meminfo values in KiB by name."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        raise ToolError(
            f"reading memory is not supported on {platform.system()}, only on Linux"
        ) from None
    return {
        name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)
    }
