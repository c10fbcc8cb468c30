"""Signing in at the MCP client: a client that supports URL elicitation shows the authorization URL to its user.

The callback is on loopback, so this is for clients on the same machine.
"""

from functools import partial

from onetool.core.context import ToolContext
from onetool.errors import ToolError
from onetool.oauth.credential import Identity
from onetool.oauth.loopback_callback import LoopbackCallback
from onetool.oauth.sign_ins import SignIns

ACCEPT = "accept"
WAIT_SECONDS = 300.0  # for the person, after the client has shown the URL


async def sign_in_at_client(sign_ins: SignIns, identity: Identity, context: ToolContext) -> bool:
    """Ask the person at the client to sign in. Return whether that was done; the run does not count the time."""
    import mcp_types as types

    send_request = context.client.send_request
    if send_request is None or identity.target.is_machine:
        return False
    try:
        async with LoopbackCallback().listen(0) as callback:
            pending = await sign_ins.begin(identity, callback.redirect_uri)
            callback.accept(partial(sign_ins.try_to_finish, pending))
            message = f"Sign in to {identity.label}, so that a tool call can continue"
            request = types.ElicitRequest(params=types.ElicitRequestURLParams(message=message, url=pending.url))
            with context.client.waiting():
                answer = await send_request(request)
                if getattr(answer, "action", None) != ACCEPT:
                    sign_ins.pending.discard(pending)
                    return False
                await callback.wait(WAIT_SECONDS)
    except ToolError:
        return False  # the call reports that a sign-in is required
    return True
