"""Keep tools away from OneTool's own HTTP servers, where a request from this machine counts as its owner's."""

import socket
from collections.abc import Callable, Collection, Iterable
from typing import Final

import anyio.to_thread

from ot.errors import NetworkError
from ot.net.addresses import parsed

OwnPorts = Callable[[], Collection[int]]
ANY_PORT: Final = 0


async def refuse_own_servers(own_ports: OwnPorts, host: str, addresses: Iterable[str], port: int) -> None:
    """Raise if an address is one of this machine and a OneTool server listens on the port. `own_ports` may block."""
    local = next((address for address in addresses if is_local(address)), None)
    if local is None or port not in await anyio.to_thread.run_sync(own_ports):
        return
    raise NetworkError(
        f"{host}:{port} is a OneTool server on this machine: tools cannot send requests to it",
        reason="address_not_allowed",
        host=host,
    )


def is_local(address: str) -> bool:
    """Tell whether a connection to the address stays on this machine."""
    found = parsed(address)
    found = getattr(found, "ipv4_mapped", None) or found
    if found is None:
        return False
    return found.is_loopback or found.is_unspecified or _can_bind(str(found))


def _can_bind(address: str) -> bool:
    """Only an address of this machine can be bound to."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, ANY_PORT))
    except OSError:
        return False
    return True
