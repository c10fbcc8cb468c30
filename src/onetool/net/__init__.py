"""Requests to other machines: the one HTTP client, and the rules about which hosts and addresses it may reach.

`Net.send` is the way out and `HostRules` what it asks. `urls` takes a URL apart once, `hosts` knows the allow-list,
`addresses` what is public, `outgoing` what a redirect may carry on; `sending` follows, `transport` connects, `bodies`
reads. What a request is for, and whether it is tried again, others decide.
"""

from onetool.net.client import Net
from onetool.net.exchange import Request, Resolve, Response
from onetool.net.hosts import HostRules

__all__ = ["HostRules", "Net", "Request", "Resolve", "Response"]
