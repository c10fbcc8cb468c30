"""The health of all components, and fixes that its findings offer."""

from collections.abc import Collection
from typing import Annotated

from anyio.to_thread import run_sync as run_in_thread
from pydantic import ConfigDict, Field

from onetool.admin.action import Person, action
from onetool.admin.model import AdminError, ApiModel, Count, Finding, raising
from onetool.app import OneTool
from onetool.sources.checks.disk import apply_fix
from onetool.util.token_ids import ADMIN


class RegistryHealth(ApiModel):
    status: str
    tool_count: Count


class ProxyHealth(ApiModel):
    status: str
    server_count: Count
    servers: dict[str, str]


class Health(ApiModel):
    model_config = ConfigDict(extra="allow")

    version: str
    python: str
    cwd: str
    registry: RegistryHealth
    proxy: ProxyHealth
    workers: dict[str, str]
    isolation: dict[str, str]
    problems: list[str]
    findings: list[Finding] = Field(description="The same problems, structured")


class FixRequest(ApiModel):
    fix: Annotated[str, Field(max_length=500, description="Identifier of the fix, from a finding")]


class FixResponse(ApiModel):
    done: str = Field(description="What was done")


@action("GET /api/health", "Current health")
async def show_health(app: OneTool, person: Person) -> Health:
    """Get the health of all components."""
    return Health.model_validate(await app.health())


@action(
    "POST /api/health/fixes",
    "What was done",
    needs=ADMIN,
    purpose="making fixes",
    errors=("not_found",),
)
async def make_fix(
    app: OneTool, person: Person, request: FixRequest, *, offered: Collection[str] | None = None
) -> FixResponse:
    """Make a fix that a finding of the health offers."""
    if offered is None:
        offered = [finding.get("fix", "") for finding in (await app.health())["findings"]]
    if request.fix not in offered:
        raise AdminError("not_found", "no finding offers this fix; it may have been made already")
    async with person.changing(app, "health.fix", [request.fix]):
        with raising("storage_unavailable"):
            done = await run_in_thread(apply_fix, request.fix)
    app.health_reports.forget()
    return FixResponse(done=done)
