"""Snippets that agents saved: list, accept and delete them. Those of the settings are not listed."""

from anyio.to_thread import run_sync as run_in_thread
from pydantic import Field

from onetool.admin.action import action
from onetool.admin.errors import AdminError
from onetool.admin.model import ApiModel, Time
from onetool.admin.person import Person
from onetool.admin.precondition import compute_etag
from onetool.app import OneTool
from onetool.state.document_kinds import SavedSnippet
from onetool.util.invisible import escape_invisible
from onetool.util.text import quote
from onetool.util.time_format import in_utc
from onetool.util.token_ids import ADMIN, APPROVE
from onetool_child.json_types import JsonObject


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


@action(
    "GET /api/snippets",
    "Saved snippets",
    APPROVE,
    "reading saved snippets",
)
async def list_snippets(app: OneTool, person: Person) -> SavedSnippetList:
    """List snippets that agents saved."""
    snippets = await run_in_thread(app.state.snippets.list_all)
    return SavedSnippetList(snippets=[*map(describe, snippets)])


@action(
    "POST /api/snippets/{agent}/{name}/accept",
    "The accepted snippet",
    APPROVE,
    "accepting saved snippets",
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
    "DELETE /api/snippets/{agent}/{name}",
    "Deleted",
    ADMIN,
    "deleting saved snippets",
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
