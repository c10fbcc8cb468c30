"""List the calls that wait for a person, and decide about them: one rule for REST and the command
line.
"""

import time
from typing import Annotated, Literal

from anyio.to_thread import run_sync as run_in_thread
from pydantic import Field

from onetool.admin.action import action
from onetool.admin.errors import AdminError
from onetool.admin.model import MAX_NUMBER, ApiModel
from onetool.admin.person import Person
from onetool.admin.recorded_calls import Approval, list_waiting
from onetool.app import OneTool
from onetool.errors import ArgumentError, CallRejected
from onetool.runs.questions import MAX_COUNT, MAX_SECONDS, OUTCOMES, TOOL_PATTERN, make_grants
from onetool.state.run_records import CallState, Decision, Grant
from onetool_child.json_types import JsonObject

SCOPE = "approve"
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
    SCOPE,
    "reading approvals",
    watches="runs",
)
async def list_approvals(app: OneTool, person: Person) -> ApprovalList:
    """List calls that wait for approval."""
    return ApprovalList(approvals=await run_in_thread(list_waiting, app.state.runs, app.redact))


@action(
    "POST /api/approvals/{runID}",
    "The decided calls",
    SCOPE,
    "approving calls",
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
