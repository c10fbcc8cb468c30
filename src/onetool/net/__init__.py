"""The HTTP client for outgoing requests, and the rules for the hosts and addresses it may reach.

`Net.send` sends a request that `HostRules` allow. `urls` parses URLs, `hosts` is the allow-list, `addresses` knows
public addresses, `outgoing` decides what a redirect keeps, `sending` follows redirects, `transport` connects and
`bodies` reads responses. Callers decide about retries.
"""

from onetool.net.client import Net
from onetool.net.exchange import Request, Resolve, Response
from onetool.net.hosts import HostRules

__all__ = ["HostRules", "Net", "Request", "Resolve", "Response"]
