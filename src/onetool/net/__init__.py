"""The HTTP client for outgoing requests, and the rules for the hosts and addresses it may reach.

`Net.send` sends a request that `HostRules` allow. `urls` parses URLs, `hosts` is the allow-list, `addresses` identifies
public addresses, `messages` decides what a redirect keeps, `transport` connects and `response_body` reads responses.
Callers decide about retries.
"""

from onetool.net.client import Net
from onetool.net.hosts import ANY_HOST, HostRules
from onetool.net.messages import Request, Resolve, Response

__all__ = ["ANY_HOST", "HostRules", "Net", "Request", "Resolve", "Response"]
