"""The client's end of a call to something published directly: it is asked, told how far it is, and shown the log.

Before 2026 a client is asked in the middle of its request. Since then a question is a result, and the answer comes
with the same request again: a call that is waiting for one is kept until then, for a while.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp.shared.message import ServerMessageMetadata
from pydantic import ValidationError

from onetool._tool import Result
from onetool.faces.mcp.callers import is_modern, session_of, wants_progress
from onetool.proxy.relay import LEVELS, Relay

LEVEL = "onetool/log_level"  # of the state of a session
USUAL_LEVEL = "info"
PASSED_ON = ("sampling", "elicitation", "roots")
KEPT = "onetool-kept:"  # before the number of a call that is waiting
KEPT_SECONDS, MOST_KEPT = 600.0, 1000
STANDARD_INPUT = "standard input"  # the one client there
Call = Callable[[Relay], Awaitable[Result]]
Outcome = tuple[Relay, Result]


class Relaying:
    """The calls of all clients; `call` is what goes the one path."""

    def __init__(self) -> None:
        self._kept: dict[str, _Conversation] = {}

    async def outcome(self, context: Any, params: Any, call: Call) -> Outcome | types.InputRequiredResult:
        if not is_modern(context):
            relay = _relay(context, lambda request: _asked_at_once(context, request))
            return relay, await call(relay)
        conversation = self._resumed(context, params) or _Conversation(context, params, call, self._has_room)
        result = await conversation.next()
        return (conversation.relay, result) if result is not None else self._keep(conversation)

    def _resumed(self, context: Any, params: Any) -> "_Conversation | None":
        state = params.request_state or ""
        if not state.startswith(KEPT):
            return None
        conversation = self._kept.pop(state.removeprefix(KEPT), None)
        if conversation is None:
            raise MCPError(types.INVALID_PARAMS, "nobody waits for this answer any more; make the call again")
        conversation.go_on(context, params.input_responses or {})
        return conversation

    def _has_room(self) -> bool:
        return len(self._kept) < MOST_KEPT

    def _keep(self, conversation: "_Conversation") -> types.InputRequiredResult:
        number = secrets.token_hex(16)
        self._kept[number] = conversation
        asyncio.get_running_loop().call_later(KEPT_SECONDS, self._give_up, number)
        return types.InputRequiredResult(input_requests=conversation.questions, request_state=f"{KEPT}{number}")

    def _give_up(self, number: str) -> None:
        if (conversation := self._kept.pop(number, None)) is not None:
            conversation.give_up()

    def close(self) -> None:
        for number in list(self._kept):
            self._give_up(number)


class _Conversation:
    """One call of a client of 2026, over as many requests as it takes."""

    def __init__(self, context: Any, params: Any, call: Call, has_room: Callable[[], bool]) -> None:
        self._context, self._has_room = context, has_room
        self.relay = _relay(context, self._asked)
        self.relay.log = self._logged
        if self.relay.progress is not None:
            self.relay.progress = self._told
        self.relay.takes_questions = True
        self.relay.input_responses, self.relay.request_state = params.input_responses, params.request_state
        self._waiting: dict[str, tuple[Any, asyncio.Future[Any]]] = {}
        self._has_asked = asyncio.Event()
        self._task: asyncio.Future[Any] = asyncio.ensure_future(call(self.relay))

    @property
    def questions(self) -> dict[str, Any]:
        return {key: request for key, (request, _) in self._waiting.items()}

    async def next(self) -> Result | None:
        """The result; None where there is a question first."""
        asking: asyncio.Future[Any] = asyncio.ensure_future(self._has_asked.wait())
        try:
            await asyncio.wait((self._task, asking), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.give_up()
            raise
        finally:
            asking.cancel()
        return self._task.result() if self._task.done() else None

    def go_on(self, context: Any, answers: Any) -> None:
        """With the answers that have come; what is still missing is asked again."""
        self._context = context
        for key in self._waiting.keys() & answers.keys():
            _, answer = self._waiting.pop(key)
            if not answer.done():
                answer.set_result(answers[key])
        if not self._waiting:
            self._has_asked.clear()

    def give_up(self) -> None:
        self._task.cancel()
        self._task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _asked(self, request: Any) -> Any:
        if (problem := _cannot(self._context, request)) is not None:
            return problem
        if not self._has_room():
            return _refused("too many calls wait for an answer")
        key = f"question-{secrets.token_hex(4)}"
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[key] = (request, answer)
        self._has_asked.set()
        return await answer

    async def _logged(self, params: Any) -> None:
        await _logged(self._context, params)

    async def _told(self, progress: float, total: float | None, message: str | None) -> None:
        await self._context.session.report_progress(progress, total, message)


def log_level_of(context: Any) -> str | None:
    if is_modern(context):
        return (context.meta or {}).get(types.LOG_LEVEL_META_KEY)
    return str(session_of(context).state.get(LEVEL, USUAL_LEVEL))


def _relay(context: Any, ask: Callable[[Any], Awaitable[Any]]) -> Relay:
    have = context.session.client_capabilities
    declared = have.model_dump(by_alias=True, mode="json", exclude_none=True) if have is not None else {}
    return Relay(
        client=_identity(context),
        ask=ask,
        log=lambda params: _logged(context, params),
        progress=context.session.report_progress if wants_progress(context) else None,
        capabilities={name: declared[name] for name in PASSED_ON if name in declared},
        log_level=log_level_of(context),
    )


def _identity(context: Any) -> object:
    """Requests of 2026 over HTTP are strangers to each other."""
    if context.request is None:
        return STANDARD_INPUT
    return object() if is_modern(context) else session_of(context)


# --- asking --------------------------------------------------------------------------------------------------------


async def _asked_at_once(context: Any, request: Any) -> Any:
    if (problem := _cannot(context, request)) is not None:
        return problem
    beside = ServerMessageMetadata(related_request_id=context.request_id)
    try:
        return await context.session.send_request(_as_before(request), _kind_of_answer(request), metadata=beside)
    except MCPError as error:
        return error.error
    except ValidationError:
        return _refused(f"the client gave no proper answer to {request.method}")


def _as_before(request: Any) -> Any:
    """A page to go to had a number, which no server of 2026 gives."""
    params = request.params
    if not isinstance(params, types.ElicitRequestURLParams) or params.elicitation_id is not None:
        return request
    return types.ElicitRequest(params=params.model_copy(update={"elicitation_id": secrets.token_hex(8)}))


def _kind_of_answer(request: Any) -> type[Any]:
    match request:
        case types.ElicitRequest():
            return types.ElicitResult
        case types.ListRootsRequest():
            return types.ListRootsResult
    with_tools = request.params.tools or request.params.tool_choice
    return types.CreateMessageResultWithTools if with_tools else types.CreateMessageResult


def _cannot(context: Any, request: Any) -> types.ErrorData | None:
    """Why this client is not to be asked this."""
    have = context.session.client_capabilities or types.ClientCapabilities()
    match request:
        case types.ElicitRequest(params=types.ElicitRequestURLParams()):
            able = have.elicitation is not None and have.elicitation.url is not None
        case types.ElicitRequest():
            able = have.elicitation is not None and (have.elicitation.form is not None or have.elicitation.url is None)
        case types.ListRootsRequest():
            able = have.roots is not None
        case _:
            wants_tools = request.params.tools or request.params.tool_choice
            able = have.sampling is not None and not (wants_tools and have.sampling.tools is None)
    return None if able else _refused(f"the client cannot do {request.method}")


def _refused(message: str) -> types.ErrorData:
    return types.ErrorData(code=types.INVALID_REQUEST, message=message)


async def _logged(context: Any, params: Any) -> None:
    wanted = log_level_of(context)
    if wanted in LEVELS and LEVELS.index(params.level) >= LEVELS.index(wanted):
        told = types.LoggingMessageNotification(params=params)
        await context.session.send_notification(told, related_request_id=context.request_id)
