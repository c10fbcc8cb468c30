"""Change notifications for MCP clients: lists of tools, prompts and resources, and single
resources.

Clients of the 2026 protocol listen with a long-lived request; older clients get notifications in
their session.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

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

from onetool.server.mcp.client_identity import get_session, on_session_end
from onetool.util.background import BackgroundTasks

if TYPE_CHECKING:
    from onetool_child.json_types import JsonObject

EVENTS = {
    "tools": ToolsListChanged,
    "prompts": PromptsListChanged,
    "resources": ResourcesListChanged,
}
SUBSCRIPTIONS = "onetool/watched"  # key in the state of a session
MAX_SUBSCRIPTIONS = 1000  # per client
MAX_URI_CHARS = 200
Unsubscribe = Callable[[], Awaitable[None]]
Watch = Callable[
    [Any, str], Awaitable[Unsubscribe | None]
]  # (request, URI) -> unsubscribe function, or None


class ChangeNotifier:
    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._bus = InMemorySubscriptionBus()
        self._listen_handler = ListenHandler(self._bus)
        self._sessions: set[Connection] = set()
        self._tasks = BackgroundTasks(lambda _: None)  # errors of disconnected clients are ignored

    def publish(self, what: str, uri: str = "") -> None:
        """Notify listening clients.

        `what` is the changed list (tools, prompts, resources) or "resource".
        """
        self._tasks.start(self._bus.publish(_event(what, uri)))

    def notify_all(self, what: str, uri: str = "") -> None:
        """Notify listening clients and the sessions of older protocols."""
        self.publish(what, uri)
        method = event_to_notification(_event(what, uri), {}).method
        params = {"uri": uri} if uri else None
        for session in self._sessions:
            if what != "resource" or uri in session.state[SUBSCRIPTIONS]:
                self._tasks.start(session.notify(method, params))

    # --- protocols before 2026 --------------------------------------------------------------------

    def register_session(self, session: Connection) -> None:
        """Register a new session."""
        if session not in self._sessions:
            self._sessions.add(session)
            session.state[SUBSCRIPTIONS] = {}
            on_session_end(session, lambda: self._remove_session(session))

    def _remove_session(self, session: Connection) -> None:
        self._sessions.discard(session)
        for unsubscribe in session.state.pop(SUBSCRIPTIONS).values():
            self._tasks.start(unsubscribe())

    async def subscribe(
        self, context: Any, params: types.SubscribeRequestParams
    ) -> types.EmptyResult:
        session = get_session(context)
        self.register_session(session)
        subscriptions: JsonObject = session.state[SUBSCRIPTIONS]
        if params.uri not in subscriptions and len(subscriptions) < MAX_SUBSCRIPTIONS:
            unsubscribe = await self._watch(context, params.uri)
            if unsubscribe is None:
                raise MCPError(types.INVALID_PARAMS, f"no resource {params.uri[:MAX_URI_CHARS]!r}")
            subscriptions[params.uri] = unsubscribe
        return types.EmptyResult()

    async def unsubscribe(
        self, context: Any, params: types.UnsubscribeRequestParams
    ) -> types.EmptyResult:
        unsubscribe = get_session(context).state.get(SUBSCRIPTIONS, {}).pop(params.uri, None)
        if unsubscribe is not None:
            await unsubscribe()
        return types.EmptyResult()

    # --- protocol of 2026 -------------------------------------------------------------------------

    async def listen(
        self, context: Any, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Subscribe to changes.

        The acknowledgment lists only the resources that the client may read.
        """
        uris = list(dict.fromkeys(params.notifications.resource_subscriptions or ()))[
            :MAX_SUBSCRIPTIONS
        ]
        subscribed = {uri: await self._watch(context, uri) for uri in uris}
        unsubscribers = {
            uri: unsubscribe for uri, unsubscribe in subscribed.items() if unsubscribe is not None
        }
        notifications = params.notifications.model_copy(
            update={"resource_subscriptions": list(unsubscribers)}
        )
        try:
            return await self._listen_handler(
                context, params.model_copy(update={"notifications": notifications})
            )
        finally:
            for unsubscribe in unsubscribers.values():
                self._tasks.start(unsubscribe())

    def close(self) -> None:
        """End the streams of listening clients."""
        self._listen_handler.close()


def _event(what: str, uri: str) -> Any:
    return ResourceUpdated(uri) if what == "resource" else EVENTS[what]()
