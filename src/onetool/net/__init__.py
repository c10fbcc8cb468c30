"""The HTTP client for outgoing requests, and the rules for the hosts and addresses it may reach.

Start with `Net.send` in `client.py`, which sends a request that `HostRules` allow. `hosts` parses
URLs, identifies public addresses and has the allow-list; `transport` connects and reads responses.
`oauth` signs in to upstream servers, APIs and the admin UI; start with `oauth/sign_ins.py`.

What holds here:

- An empty list of hosts allows none. Each redirect is checked like the first request.
- A host is resolved once, and the request goes to an address that was checked. A private address is
  reached only if the settings allow it, even if its host is listed, or if the settings name the
  address itself as the URL of a server.
- Tools never reach the ports of OneTool's own servers, which would treat a request from this
  machine as the owner's.
- A URL is parsed once, so that the checked parts are those that are used.
- Every request has a timeout for all of its redirects, and a size limit for the decompressed body.
- Messages show only the origin of a URL, because paths and queries may contain secrets.
- Callers decide about retries.
- Documents of authorization servers are hostile until proven otherwise: see
  `oauth/guarded_http.py`.
"""

from onetool.net.client import Net, Request, Resolve, Response
from onetool.net.hosts import ANY_HOST, HostRules

__all__ = ["ANY_HOST", "HostRules", "Net", "Request", "Resolve", "Response"]
