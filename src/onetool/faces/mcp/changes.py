"""What has changed, told to the clients that want to hear it: lists, and single resources.

Clients of 2026 listen on a request of their own; to those of before it is sent, in their session. Who publishes tells
`Changes`, and is asked to watch the resources that somebody wants to hear of.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp.server.connection import Connection
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from mcp.shared.subscriptions import event_to_notification

from onetool.faces.mcp.callers import at_end, session_of
from onetool.util.background_tasks import BackgroundTasks

EVENTS = {"tools": ToolsListChanged, "prompts": PromptsListChanged, "resources": ResourcesListChanged}
WATCHED = "onetool/watched"  # of the state of a session
MOST_WATCHED = 1000  # by one client
LONGEST_SHOWN = 200
End = Callable[[], Awaitable[None]]
Watch = Callable[[Any, str], Awaitable[End | None]]  # a request and an address; gives what ends it, None for a no


class Changes:
    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._bus = InMemorySubscriptionBus()
        self._listening = ListenHandler(self._bus)
        self._sessions: set[Connection] = set()
        self._tasks = BackgroundTasks(lambda _: None)  # a client that has gone hears nothing

    def publish(self, what: str, uri: str = "") -> None:
        """To those who listen: `what` is tools, prompts or resources, whose list is new; or resource, which is."""
        self._tasks.start(self._bus.publish(_event(what, uri)))

    def tell(self, what: str, uri: str = "") -> None:
        """The same, also in the sessions of before 2026."""
        self.publish(what, uri)
        method, params = event_to_notification(_event(what, uri), {}).method, {"uri": uri} if uri else None
        for session in self._sessions:
            if what != "resource" or uri in session.state[WATCHED]:
                self._tasks.start(session.notify(method, params))

    # --- clients of before 2026 -------------------------------------------------------------------------------------

    def meet(self, session: Connection) -> None:
        """A client that has a session from now on."""
        if session not in self._sessions:
            self._sessions.add(session)
            session.state[WATCHED] = {}
            at_end(session, lambda: self._left(session))

    def _left(self, session: Connection) -> None:
        self._sessions.discard(session)
        for end in session.state.pop(WATCHED).values():
            self._tasks.start(end())

    async def subscribe(self, context: Any, params: types.SubscribeRequestParams) -> types.EmptyResult:
        session = session_of(context)
        self.meet(session)
        watched: dict[str, Any] = session.state[WATCHED]
        if params.uri not in watched and len(watched) < MOST_WATCHED:
            end = await self._watch(context, params.uri)
            if end is None:
                raise MCPError(types.INVALID_PARAMS, f"there is no resource {params.uri[:LONGEST_SHOWN]}")
            watched[params.uri] = end
        return types.EmptyResult()

    async def unsubscribe(self, context: Any, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        end = session_of(context).state.get(WATCHED, {}).pop(params.uri, None)
        if end is not None:
            await end()
        return types.EmptyResult()

    # --- clients of 2026 --------------------------------------------------------------------------------------------

    async def listen(
        self, context: Any, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Resources that the client may not have are left out, and the acknowledgement says so."""
        wanted = list(dict.fromkeys(params.notifications.resource_subscriptions or ()))[:MOST_WATCHED]
        found = {uri: await self._watch(context, uri) for uri in wanted}
        ends = {uri: end for uri, end in found.items() if end is not None}
        notifications = params.notifications.model_copy(update={"resource_subscriptions": list(ends)})
        try:
            return await self._listening(context, params.model_copy(update={"notifications": notifications}))
        finally:
            for end in ends.values():
                self._tasks.start(end())

    def close(self) -> None:
        """Let those who listen know that there is nothing more to come."""
        self._listening.close()


def _event(what: str, uri: str) -> Any:
    return ResourceUpdated(uri) if what == "resource" else EVENTS[what]()
