"""Save a run that worked as a snippet: find its parameters, replay it with the recorded answers,
then store it.
"""

import json
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio.to_thread

from onetool.errors import ArgumentError, ToolError
from onetool.runs import fence_processor, snippets
from onetool.runs.replay import check_replayable
from onetool.runs.runner import Runner
from onetool.runs.snippets.parameters import make_template
from onetool.state.document_kinds import SavedSnippet
from onetool.state.run_records import DurableCall, RunOutcome, RunRecord, RunState
from onetool.state.run_store import RunTables
from onetool.util.context import ToolContext
from onetool.util.text import quote
from onetool_child.data import as_data

if TYPE_CHECKING:
    from onetool.runs.runs import Runs

NAME = re.compile(r"[A-Za-z_][\w-]{0,63}")
MAX_DESCRIPTION_CHARS = 500


class SnippetSaver:
    """Saves runs of `runs`. `redact` finds values of secrets."""

    def __init__(self, runs: "Runs", runner: Runner, redact: Callable[[str], str]) -> None:
        self._runs = runs
        self._runner = runner
        self._redact = redact

    async def save(
        self, name: str, description: str, run_id: str, context: ToolContext
    ) -> SavedSnippet:
        """Save a run of this agent and token.

        Raise unless a replay of the snippet returns the recorded value.
        """
        self._check_names(name, description)
        run = await self._runs.find_own(run_id, context.agent_id, context.token_id)
        calls = await self._runs.journal.call(RunTables.list_calls, run.id)
        check_replayable(run, calls)
        if run.state is not RunState.DONE:
            raise ToolError(f"run {run.id} failed; only a run that worked can be saved")
        snippet = await anyio.to_thread.run_sync(
            self._make, name, description, run, calls, context.agent_id
        )
        await self._test(snippet, run, calls, context)
        await anyio.to_thread.run_sync(self._runner.saved_snippets.put, snippet)
        return snippet

    def _check_names(self, name: str, description: str) -> None:
        if not NAME.fullmatch(name):
            raise ArgumentError(
                f"invalid name {quote(name)} (expected letters, digits, `-` and `_`)"
            )
        if name in self._runner.settings.snippets:
            raise ArgumentError(f"the settings have a snippet {quote(name)}; choose another name")
        if not description.strip() or len(description) > MAX_DESCRIPTION_CHARS:
            raise ArgumentError(
                f"invalid description (expected 1 to {MAX_DESCRIPTION_CHARS} characters)"
            )

    def _make(
        self, name: str, description: str, run: RunRecord, calls: list[DurableCall], agent: str
    ) -> SavedSnippet:
        code = fence_processor.strip(run.code)
        if snippets.is_snippet(code):
            raise ToolError(f"run {run.id} is already a call of a snippet")
        if self._redact(code + description) != code + description:
            raise ToolError(
                f"the code of run {run.id} contains the value of a secret; a snippet must not"
                " contain it"
            )
        body, params = make_template(
            code, [(call.tool, json.loads(call.arguments)) for call in calls]
        )
        return SavedSnippet(agent, name, description, body, params, run.id, time.time())

    async def _test(
        self, snippet: SavedSnippet, run: RunRecord, calls: list[DurableCall], context: ToolContext
    ) -> None:
        """Replay the snippet with its defaults."""
        known = {snippet.name: snippet.to_snippet()}
        code = await anyio.to_thread.run_sync(snippets.expand_call, snippet.name, {}, known)
        answer = await self._runs.replay(run, calls, code, context)
        if answer.is_error or as_data(answer.value) != RunOutcome.read(run).value:
            problem = answer.text if answer.is_error else "it returned another value"
            raise ToolError(
                f"run {run.id} cannot be saved: the replay of the snippet differs: {problem}"
            )
