"""Calls and snippets that wait for a person: one rule for REST and the command line."""

import time
from typing import Annotated, Literal

from anyio.to_thread import run_sync as run_in_thread
from pydantic import Field

from onetool.admin.action import Person, action
from onetool.admin.model import MAX_NUMBER, AdminError, ApiModel, Time
from onetool.admin.precondition import compute_etag
from onetool.admin.recorded_calls import Approval, list_waiting
from onetool.app import OneTool
from onetool.errors import ArgumentError, CallRejected
from onetool.runs.questions import MAX_COUNT, MAX_SECONDS, OUTCOMES, TOOL_PATTERN, make_grants
from onetool.state.document_kinds import SavedSnippet
from onetool.state.run_records import CallState, Decision, Grant
from onetool.util.invisible import escape_invisible
from onetool.util.text import quote
from onetool.util.time_format import in_utc
from onetool.util.token_ids import ADMIN, APPROVE
from onetool_child.json_types import JsonObject

PLACES = {"cli": "cli", "http": "ui"}  # of `approvals.via`, by transport


class ApprovalList(ApiModel):
    approvals: list[Approval]


class GrantRequest(ApiModel):
    tool: Annotated[str, Field(strict=True, pattern=TOOL_PATTERN.pattern)]
    arguments: JsonObject = Field(
        default={},
        description=(
            "Patterns of strings; other values must be equal. Arguments without a pattern stay as"
            " they are in the approved calls"
        ),
    )
    varying: list[Annotated[str, Field(strict=True, max_length=1000)]] = Field(
        default=[],
        max_length=100,
        description="Names of arguments that may be anything; `*` for all others",
    )
    count: Annotated[int, Field(strict=True, ge=1, le=MAX_COUNT)] = 1
    seconds: Annotated[float, Field(gt=0, le=MAX_SECONDS)] | None = Field(
        default=None, description="For all runs of the agent and this long; for this run if null"
    )


class DecisionRequest(ApiModel):
    decision: Literal["approve", "reject", "happened", "not-happened", "repeat"] = Field(
        description=(
            "For calls that wait: approve or reject. For calls that may have happened: what is"
            " known about them"
        )
    )
    calls: list[Annotated[int, Field(strict=True, ge=0, le=MAX_NUMBER)]] | None = Field(
        default=None, max_length=10_000, description="Numbers of calls; all that wait if null"
    )
    reason: Annotated[str, Field(strict=True, max_length=2000)] = ""
    grants: list[GrantRequest] = Field(
        default=[], max_length=20, description="Further calls to allow"
    )
    stop: Annotated[bool, Field(strict=True)] = Field(
        default=False, description="Reject all calls and end the run"
    )


class DecisionResponse(ApiModel):
    run: str
    calls: list[int] = Field(description="Numbers of the calls that were decided")


@action(
    "GET /api/approvals",
    "Runs whose calls wait",
    needs=APPROVE,
    purpose="reading approvals",
    watches="runs",
)
async def list_approvals(app: OneTool, person: Person) -> ApprovalList:
    """List calls that wait for approval."""
    return ApprovalList(approvals=await run_in_thread(list_waiting, app.state.runs, app.redact))


@action(
    "POST /api/approvals/{runID}",
    "The decided calls",
    needs=APPROVE,
    purpose="approving calls",
    command="onetool approve",
    errors=("not_waiting",),
)
async def decide_calls(
    app: OneTool, person: Person, run_id: str, request: DecisionRequest
) -> DecisionResponse:
    """Approve or reject calls of a run."""
    run = await run_in_thread(app.state.runs.get_run, run_id)
    if run is None:
        raise AdminError("not_found", f"no run {run_id!r}, or it has expired", {"runID": run_id})
    try:
        app.runs.check_place(run, PLACES[person.transport])
        return DecisionResponse(run=run_id, calls=await _apply(app, person, run_id, request))
    except ArgumentError as error:
        raise AdminError(
            "invalid", error.message, hint="to allow any arguments, add '*' to varying"
        ) from None
    except CallRejected as error:  # not here, somebody else has answered, or the run has ended
        code = error.fields.get("code", "not_waiting")
        raise AdminError(code, error.message, {"runID": run_id}, hint=error.hint) from None


async def _apply(app: OneTool, person: Person, run_id: str, request: DecisionRequest) -> list[int]:
    where = {"via": PLACES[person.transport], "transport": person.transport}
    if request.decision in OUTCOMES:
        if not request.calls:
            message = f"the decision {request.decision!r} needs the numbers of the calls: calls"
            raise AdminError("invalid", message)
        await app.runs.resolve(run_id, request.calls, request.decision, person.name, **where)
        return request.calls
    is_approved = request.decision == "approve"
    if is_approved and request.stop:
        raise AdminError("invalid", "stop requires the decision 'reject'")
    numbers = None if request.calls is None else tuple(request.calls)
    grants = await run_in_thread(plan_grants, app, run_id, request) if is_approved else ()
    decision = Decision(is_approved, person.name, numbers, request.reason, grants, request.stop)
    return await app.runs.decide(run_id, decision, **where)


def plan_grants(app: OneTool, run_id: str, request: DecisionRequest) -> tuple[Grant, ...]:
    """Return the grants of a decision. One without an expiry is for the run."""
    waiting = app.state.runs.list_calls(run_id, (CallState.PENDING,))
    calls = [call for call in waiting if request.calls is None or call.number in request.calls]
    grants: list[Grant] = []
    for grant in request.grants:
        expires = 0.0 if grant.seconds is None else time.time() + grant.seconds
        grants += make_grants(
            calls, grant.tool, grant.arguments, grant.varying, count=grant.count, expires=expires
        )
    return tuple(grants)


# --- snippets -------------------------------------------------------------------------------------


class SavedSnippetInfo(ApiModel):
    name: str
    agent: str = Field(description="Agent that saved it")
    description: str
    params: JsonObject = Field(description="Defaults of the parameters")
    body: str
    run: str = Field(description="Run that it was made from")
    saved: Time
    accepted_by: str = Field(description="Who accepted it for all agents; empty if nobody did")
    digest: str = Field(description="Identifies the snippet as it is shown")


class SavedSnippetList(ApiModel):
    snippets: list[SavedSnippetInfo]


class SnippetAcceptance(ApiModel):
    digest: str = Field(description="`digest` of the snippet when it was shown")


@action("GET /api/snippets", "Saved snippets", needs=APPROVE, purpose="reading saved snippets")
async def list_snippets(app: OneTool, person: Person) -> SavedSnippetList:
    """List snippets that agents saved."""
    snippets = await run_in_thread(app.state.snippets.list_all)
    return SavedSnippetList(snippets=[*map(describe, snippets)])


@action(
    "POST /api/snippets/{agent}/{name}/accept",
    "The accepted snippet",
    needs=APPROVE,
    purpose="accepting saved snippets",
    command="onetool snippets accept",
    errors=("precondition_failed",),
)
async def accept_snippet(
    app: OneTool, person: Person, agent: str, name: str, body: SnippetAcceptance
) -> SavedSnippetInfo:
    """Let all agents use a saved snippet."""
    snippet = await run_in_thread(find_snippet, app, agent, name)
    async with person.changing(app, "snippet.accepted", [snippet.name]):
        is_same = describe(snippet).digest == body.digest
        if not is_same or not await run_in_thread(_accept, app, snippet, person.name):
            message = f"${snippet.name} was changed meanwhile; nothing was accepted"
            raise AdminError(
                "precondition_failed", message, {"name": snippet.name}, hint="run the command again"
            )
    return describe(await run_in_thread(find_snippet, app, agent, name))


@action(
    "DELETE /api/snippets/{agent}/{name}", "Deleted", needs=ADMIN, purpose="deleting saved snippets"
)
async def delete_snippet(app: OneTool, person: Person, agent: str, name: str) -> None:
    """Delete a saved snippet."""
    snippet = await run_in_thread(find_snippet, app, agent, name)
    async with person.changing(app, "snippet.deleted", [snippet.name], frees_space=True):
        await run_in_thread(app.state.snippets.delete, agent, snippet.name)


def find_snippet(app: OneTool, agent: str, name: str) -> SavedSnippet:
    """Return a saved snippet, whose name may begin with $."""
    name = name.removeprefix("$")
    for snippet in app.state.snippets.list_all():
        if (snippet.agent, snippet.name) == (agent, name):
            return snippet
    message = f"agent {agent} has no saved snippet {quote(name)}"
    raise AdminError(
        "not_found", message, {"name": name}, hint="list them with `onetool snippets list`"
    )


def describe(snippet: SavedSnippet) -> SavedSnippetInfo:
    return SavedSnippetInfo(
        name=snippet.name,
        agent=snippet.agent,
        description=escape_invisible(snippet.description),
        params=dict(snippet.params),
        body=escape_invisible(snippet.body),
        run=snippet.run,
        saved=in_utc(snippet.at, "seconds"),
        accepted_by=snippet.accepted_by,
        digest=compute_etag(
            [snippet.name, snippet.description, dict(snippet.params), snippet.body]
        ),
    )


def _accept(app: OneTool, snippet: SavedSnippet, by: str) -> bool:
    """Accept a snippet unless it has changed.

    One that is accepted by the same person stays as it is.
    """
    return app.state.snippets.accept(snippet, by) or snippet in app.state.snippets.list_all()
