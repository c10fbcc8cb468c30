"""Relays upstream requests, log messages and progress to the client during a call or run.

Before the 2026 protocol, the client is asked while its request is open. Since then, a question is
returned as a result and the client repeats the request with the answer: the pending call is kept
until then, up to PENDING_SECONDS.
"""

import asyncio
import json
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio
import mcp_types as types
from anyio.to_thread import run_sync as run_in_thread
from mcp import MCPError
from mcp.shared.message import ServerMessageMetadata
from pydantic import ValidationError

from onetool.core.foreign_schema import ForeignSchema
from onetool.errors import CannotAsk
from onetool.runs.questions import Question
from onetool.runs.run_output import RunOutput
from onetool.server.mcp.client_identity import get_progress, get_session, is_modern
from onetool.sources.upstream.relay import LEVELS, Progress, Relay
from onetool.util.redact import Redactor
from onetool.util.tasks import retrieve_error
from onetool.util.text import pluralize
from onetool_child.json_types import JsonMapping, JsonObject

IDLE_SECONDS = 1.0  # without output, before a progress message
OUTPUT_SECONDS = 0.05  # between two progress messages
MAX_MESSAGE_CHARS = 4000
LEVEL = "onetool/log_level"  # key in the state of a session
DEFAULT_LEVEL = "info"
RELAYED_CAPABILITIES = ("sampling", "elicitation", "roots")
PENDING_PREFIX = "onetool-kept:"  # prefix of the id of a pending call
PENDING_SECONDS = 600.0
MAX_PENDING = 1000
MAX_UNSENT_LOGS = 100
MAX_FORM_CHARS = 100_000  # of a question and its form
FLUSH_SECONDS = 1.0
MIN_PROGRESS = 0.001  # between two messages without a number
STANDARD_INPUT = "standard input"  # stdio has one client
Call = Callable[[Relay], Awaitable[Any]]
Outcome = tuple[Relay, Any]
# Applies the answers to a question that was asked before a restart, given its state.
Restore = Callable[[Any, str, JsonMapping], Awaitable[Any]]


class ClientRelay:
    """The pending calls of all clients."""

    def __init__(self, max_pending: int = MAX_PENDING, restore: Restore | None = None) -> None:
        self._max_pending = max_pending
        self._restore = restore
        self._pending: dict[str, _Conversation] = {}

    async def run(
        self, context: Any, params: Any, call: Call
    ) -> Outcome | types.InputRequiredResult:
        if not is_modern(context):
            relay = create_relay(context)
            return relay, await call(relay)
        state = params.request_state or ""
        if state.startswith(PENDING_PREFIX):
            call_id, _, question = state.removeprefix(PENDING_PREFIX).partition(":")
            if (
                call_id not in self._pending and question and self._restore is not None
            ):  # asked before a restart
                return create_relay(context), await self._restore(
                    context, question, params.input_responses or {}
                )
        conversation = self._resume(context, params) or _Conversation(
            context, params, call, self._has_room
        )
        result = await conversation.next()
        return (conversation.relay, result) if result is not None else self._suspend(conversation)

    def _resume(self, context: Any, params: Any) -> "_Conversation | None":
        state = params.request_state or ""
        if not state.startswith(PENDING_PREFIX):
            return None
        conversation = self._pending.pop(state.removeprefix(PENDING_PREFIX).partition(":")[0], None)
        if conversation is None:
            raise MCPError(types.INVALID_PARAMS, "the call has expired: repeat it")
        conversation.resume(context, params.input_responses or {})
        return conversation

    def _has_room(self) -> bool:
        return len(self._pending) < self._max_pending

    def _suspend(self, conversation: "_Conversation") -> types.InputRequiredResult:
        call_id = secrets.token_hex(16)
        self._pending[call_id] = conversation
        asyncio.get_running_loop().call_later(PENDING_SECONDS, self._expire, call_id)
        # With another question, after a restart nobody could tell to which of them an answer
        # belongs.
        question = conversation.relay.resume_with if len(conversation.questions) == 1 else ""
        state = f"{PENDING_PREFIX}{call_id}:{question}" if question else PENDING_PREFIX + call_id
        return types.InputRequiredResult(input_requests=conversation.questions, request_state=state)

    def _expire(self, call_id: str) -> None:
        if (conversation := self._pending.pop(call_id, None)) is not None:
            conversation.cancel()

    def close(self) -> None:
        for call_id in list(self._pending):
            self._expire(call_id)


class _Conversation:
    """One call of a client of the 2026 protocol, over several requests."""

    def __init__(self, context: Any, params: Any, call: Call, has_room: Callable[[], bool]) -> None:
        self._context = context
        self._has_room = has_room
        self.relay = create_relay(context, self._ask)
        self.relay.log = self._send_log
        if self.relay.progress is not None:
            self.relay.progress = self._report_progress
        self.relay.takes_questions = True
        self.relay.input_responses = params.input_responses
        self.relay.request_state = params.request_state
        self._waiting: dict[str, tuple[Any, asyncio.Future[Any]]] = {}
        self._has_asked = asyncio.Event()
        self._task: asyncio.Future[Any] = asyncio.ensure_future(call(self.relay))

    @property
    def questions(self) -> JsonObject:
        return {key: request for key, (request, _) in self._waiting.items()}

    async def next(self) -> Any:
        """Return the result, or None if the server has a question first."""
        asking: asyncio.Future[Any] = asyncio.ensure_future(self._has_asked.wait())
        try:
            await asyncio.wait((self._task, asking), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.cancel()
            raise
        finally:
            asking.cancel()
        return self._task.result() if self._task.done() else None

    def resume(self, context: Any, answers: Any) -> None:
        """Continue with the answers received; missing ones are asked again."""
        self._context = context
        self.relay.resume_with = ""
        for key in self._waiting.keys() & answers.keys():
            _, answer = self._waiting.pop(key)
            if not answer.done():
                answer.set_result(answers[key])
        if not self._waiting:
            self._has_asked.clear()

    def cancel(self) -> None:
        self._task.cancel()
        self._task.add_done_callback(retrieve_error)

    async def _ask(self, request: Any) -> Any:
        if (problem := _find_unsupported(self._context, request)) is not None:
            return problem
        if not self._has_room():
            return _error_data("too many calls are waiting for an answer")
        key = f"question-{secrets.token_hex(4)}"
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[key] = (request, answer)
        self._has_asked.set()
        try:
            return await answer
        finally:
            self._waiting.pop(key, None)  # a call that no longer waits

    async def _send_log(self, params: Any) -> None:
        await _send_log(self._context, params)

    async def _report_progress(
        self, progress: float, total: float | None, message: str | None
    ) -> None:
        if self._has_asked.is_set():  # the request has ended
            return
        await self._context.session.report_progress(progress, total, message)


class ClientMessages:
    """Progress, log messages and questions of a tool to the client of its call.

    Progress and log messages may come from any thread and are sent one at a time. Progress that is
    not sent yet is replaced; log messages over a limit are dropped.
    """

    def __init__(self, relay: Relay, redact: Redactor, tool: str) -> None:
        self._relay = relay
        self._redact = redact
        self._tool = tool
        self._loop = asyncio.get_running_loop()
        self._progress: tuple[float, float | None, str] | None = None
        self._logs: deque[types.LoggingMessageNotificationParams] = deque(maxlen=MAX_UNSENT_LOGS)
        self._sending: asyncio.Task[None] | None = None
        self._done = 0.0

    def report_progress(
        self, message: str, done: float | None = None, total: float | None = None
    ) -> None:
        self._loop.call_soon_threadsafe(self._put_progress, message, done, total)

    def log(self, message: str, level: str) -> None:
        data = {"level": level, "logger": self._tool, "data": self._redact(message)}
        self._loop.call_soon_threadsafe(
            self._put_log, types.LoggingMessageNotificationParams.model_validate(data)
        )

    async def ask(self, message: str, schema: JsonMapping) -> Any:
        """Ask the person at the client. Return the answer as a dict, or None if it is declined."""
        return read_form(await self._send_form(message, schema), schema)

    async def approve(self, question: Question) -> JsonMapping | None:
        """Ask the person to approve calls.

        None means no; if the question was dismissed, raise CannotAsk.
        """
        self._relay.resume_with = question.state
        try:
            response = await self._send_form(question.text, question.form)
        finally:
            self._relay.resume_with = ""
        if isinstance(response, types.ElicitResult) and response.action == "cancel":
            raise CannotAsk("the person dismissed the question")
        return read_form(response, question.form)

    async def _send_form(self, message: str, schema: JsonMapping) -> Any:
        if (problem := _explain_large_form(message, schema)) is not None:
            raise CannotAsk(problem)
        text, shown = await run_in_thread(
            lambda: (self._redact(message), self._redact.redact_data(dict(schema)))
        )
        params = types.ElicitRequestFormParams(message=text, requested_schema=shown)
        return await self._relay.ask_client(types.ElicitRequest(params=params))

    async def flush(self) -> None:
        """Wait for unsent messages, which belong before the response."""
        await asyncio.sleep(0)  # messages of threads are put by the event loop
        if self._sending is not None:
            await asyncio.wait((self._sending,), timeout=FLUSH_SECONDS)

    def _put_progress(self, message: str, done: float | None, total: float | None) -> None:
        """Queue progress. The protocol requires that it increases."""
        self._done = done if done is not None and done > self._done else self._done + MIN_PROGRESS
        self._progress = (self._done, total, self._redact(message))
        self._start_sending()

    def _put_log(self, params: types.LoggingMessageNotificationParams) -> None:
        self._logs.append(params)
        self._start_sending()

    def _start_sending(self) -> None:
        if self._sending is None or self._sending.done():
            self._sending = asyncio.ensure_future(self._send())

    async def _send(self) -> None:
        with suppress(
            MCPError, anyio.BrokenResourceError, anyio.ClosedResourceError
        ):  # the client is gone
            while self._progress is not None or self._logs:
                while self._logs:
                    await self._relay.log(self._logs.popleft())
                latest = self._progress
                self._progress = None
                if latest is not None and self._relay.progress is not None:
                    await self._relay.progress(*latest)


def read_form(response: Any, schema: JsonMapping) -> JsonObject | None:
    """Return the content of a form, or None if the person declined."""
    if not isinstance(response, types.ElicitResult):
        reason = "it sent another response"
        if isinstance(response, types.ErrorData):
            reason = response.message
        raise CannotAsk(f"cannot ask: {reason}")
    if response.action != "accept":
        return None
    answer = dict(response.content or {})
    foreign = ForeignSchema.from_json(schema)
    problem = "it is too large" if foreign.is_costly(answer) else foreign.problem(answer)
    if problem is not None:
        raise CannotAsk(f"the answer of the client does not match the schema: {problem}")
    return answer


def get_log_level(context: Any) -> str | None:
    if is_modern(context):
        return (context.meta or {}).get(types.LOG_LEVEL_META_KEY)
    return str(get_session(context).state.get(LEVEL, DEFAULT_LEVEL))


def wants_log(context: Any) -> bool:
    """Return whether the client asked for log messages, here or with logging/setLevel."""
    if is_modern(context):
        return get_log_level(context) is not None
    return LEVEL in get_session(context).state


def create_relay(context: Any, ask: Callable[[Any], Awaitable[Any]] | None = None) -> Relay:
    """Return a relay to the client of a request.

    By default, the client is asked while its request is open.
    """
    capabilities = context.session.client_capabilities
    if capabilities is not None:
        declared = capabilities.model_dump(by_alias=True, mode="json", exclude_none=True)
    else:
        declared = {}
    return Relay(
        client=_get_client_key(context),
        ask=ask or partial(_ask_directly, context),
        log=lambda params: _send_log(context, params),
        progress=get_progress(context),
        capabilities={name: declared[name] for name in RELAYED_CAPABILITIES if name in declared},
        log_level=get_log_level(context),
    )


def supports_sampling(context: Any) -> bool:
    capabilities = context.session.client_capabilities
    return capabilities is not None and capabilities.sampling is not None


def _get_client_key(context: Any) -> object:
    """Return an identity for the client. Requests of the 2026 protocol over HTTP share none."""
    if context.request is None:
        return STANDARD_INPUT
    return object() if is_modern(context) else get_session(context)


# --- asking ---------------------------------------------------------------------------------------


async def _ask_directly(context: Any, request: Any) -> Any:
    if (problem := _find_unsupported(context, request)) is not None:
        return problem
    metadata = ServerMessageMetadata(related_request_id=context.request_id)
    try:
        return await context.session.send_request(
            _to_legacy(request), _result_type(request), metadata=metadata
        )
    except MCPError as error:
        return error.error
    except ValidationError:
        return _error_data(f"the client returned an invalid response to {request.method}")


def _to_legacy(request: Any) -> Any:
    """Add the elicitation id that older protocols require."""
    params = request.params
    if not isinstance(params, types.ElicitRequestURLParams) or params.elicitation_id is not None:
        return request
    return types.ElicitRequest(
        params=params.model_copy(update={"elicitation_id": secrets.token_hex(8)})
    )


def _result_type(request: Any) -> type[Any]:
    match request:
        case types.ElicitRequest():
            return types.ElicitResult
        case types.ListRootsRequest():
            return types.ListRootsResult
    with_tools = request.params.tools or request.params.tool_choice
    return types.CreateMessageResultWithTools if with_tools else types.CreateMessageResult


def _find_unsupported(context: Any, request: Any) -> types.ErrorData | None:
    """Return an error if the client does not support the request."""
    capabilities = context.session.client_capabilities or types.ClientCapabilities()
    match request:
        case types.ElicitRequest(params=types.ElicitRequestURLParams()):
            is_supported = (
                capabilities.elicitation is not None and capabilities.elicitation.url is not None
            )
        case types.ElicitRequest(params=types.ElicitRequestFormParams() as form):
            if (problem := _explain_large_form(form.message, form.requested_schema)) is not None:
                return _error_data(problem)
            is_supported = _supports_forms(capabilities)
        case types.ListRootsRequest():
            is_supported = capabilities.roots is not None
        case _:
            wants_tools = request.params.tools or request.params.tool_choice
            is_supported = capabilities.sampling is not None and not (
                wants_tools and capabilities.sampling.tools is None
            )
    return None if is_supported else _error_data(f"the client does not support {request.method}")


def _explain_large_form(message: str, schema: JsonMapping) -> str | None:
    """Return the problem with a question that no person could read; None if it is short enough."""
    size = len(message) + len(json.dumps(schema))
    if size > MAX_FORM_CHARS:
        return f"the question has {size:,} characters, the limit is {MAX_FORM_CHARS:,}"
    return None


def can_ask(context: Any) -> bool:
    """Return whether the client can show a form to a person."""
    capabilities = context.session.client_capabilities
    return capabilities is not None and _supports_forms(capabilities)


def _supports_forms(capabilities: types.ClientCapabilities) -> bool:
    declared = capabilities.elicitation
    return declared is not None and (declared.form is not None or declared.url is None)


def _error_data(message: str) -> types.ErrorData:
    return types.ErrorData(code=types.INVALID_REQUEST, message=message)


async def _send_log(context: Any, params: Any) -> None:
    min_level = get_log_level(context)
    if min_level in LEVELS and LEVELS.index(params.level) >= LEVELS.index(min_level):
        notification = types.LoggingMessageNotification(params=params)
        await context.session.send_notification(notification, related_request_id=context.request_id)


# --- progress of a run -----------------------------------------------------------------------------


@asynccontextmanager
async def report_progress(progress: Progress | None, output: RunOutput) -> AsyncIterator[None]:
    """Send output as progress messages within 100 ms, if the client asked for progress.

    Messages are limited in number and length; the result has the complete output.
    """
    if progress is None:
        yield
        return
    started = time.perf_counter()
    has_output = asyncio.Event()
    printed = ""

    def on_event(event: str, data: Any) -> None:
        nonlocal printed
        if event == "output":
            printed = (printed + data)[-MAX_MESSAGE_CHARS:]
            has_output.set()

    async def report() -> None:
        nonlocal printed
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(IDLE_SECONDS):
                    await has_output.wait()
            has_output.clear()
            seconds = time.perf_counter() - started
            message = printed
            printed = ""
            await progress(round(seconds, 3), None, message or _describe_progress(output, seconds))
            await asyncio.sleep(OUTPUT_SECONDS)

    output.channel.listener = on_event
    task = asyncio.ensure_future(report())
    try:
        yield
    finally:
        task.cancel()


def _describe_progress(output: RunOutput, seconds: float) -> str:
    last = f", last {output.calls[-1][0]}" if output.calls else ""
    activity = f"; {output.doing}" if output.doing else ""
    return (
        f"running for {seconds:.0f} s, {pluralize(len(output.calls), 'tool call')}{last}{activity}"
    )
