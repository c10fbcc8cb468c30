"""Save the code of a run as a snippet: literals that are arguments or variables become parameters.

The code has run, so the parser of a cell has accepted it before it is parsed here.
"""

import ast
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio.to_thread

from onetool.core.names import python_name
from onetool.errors import ArgumentError, ToolError
from onetool.runs import fence_processor, snippets
from onetool.runs.replay import check_replayable
from onetool.runs.runner import Runner
from onetool.state.document_kinds import SavedSnippet
from onetool.state.run_records import DurableCall, RunOutcome, RunRecord, RunState
from onetool.state.run_store import RunTables
from onetool.util.context import ToolContext
from onetool.util.secret_finder import SECRET_VALUE, is_secret_name
from onetool.util.text import quote
from onetool_child.data import as_data
from onetool_child.json_types import JsonMapping, JsonObject

if TYPE_CHECKING:
    from onetool.runs.runs import Runs

MAX_CODE_CHARS = 20_000
TEMPLATE_MARKS = re.compile(r"\{[{%#]|[}%#]\}")
RecordedArguments = Sequence[tuple[str, JsonMapping]]  # tool and arguments of each recorded call
NAME = re.compile(r"[A-Za-z_][\w-]{0,63}")
MAX_DESCRIPTION_CHARS = 500


class Template(NamedTuple):
    """The body of a snippet, and the default of each parameter."""

    body: str
    params: JsonObject


class _Literal(NamedTuple):
    name: str
    value: Any
    start: int  # in bytes
    end: int


def make_template(code: str, calls: RecordedArguments) -> Template:
    """Return the body and the parameters.

    Raise if the code is too long, or a literal looks like a secret.
    """
    code = code.replace("\r\n", "\n").replace("\r", "\n")  # as Python counts lines
    if len(code) > MAX_CODE_CHARS:
        raise ToolError(f"the code has {len(code)} characters; a snippet may have {MAX_CODE_CHARS}")
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ToolError(f"the code cannot be made a snippet: {error}") from None
    source = code.encode()
    starts = [0, *(match.end() for match in re.finditer(b"\n", source))]
    params: JsonObject = {}
    parts = []
    position = 0
    for literal in sorted(_find_literals(tree, calls, starts), key=lambda match: match.start):
        name = _choose_name(literal, params)
        params[name] = literal.value
        parts += [
            _escape(source[position : literal.start].decode()),
            _write_placeholder(name, literal.value),
        ]
        position = literal.end
    _reject_secrets(code, tree)
    return Template("".join([*parts, _escape(source[position:].decode())]), params)


def _find_literals(
    tree: ast.Module, calls: RecordedArguments, starts: list[int]
) -> Iterator[_Literal]:
    """Yield literals that are arguments of recorded tools or top-level variables."""
    tools = {python_name(tool) for tool, _ in calls}
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant() as value) if (
                _is_literal(value)
            ):
                if not name.startswith("__"):  # settings of the run, such as `__format__`
                    yield _locate(name, value, starts)
    for node in ast.walk(tree):
        if (
            not isinstance(node, ast.Call)
            or (tool := python_name(ast.unparse(node.func))) not in tools
        ):
            continue
        for keyword in node.keywords:
            if keyword.arg is not None and _is_literal(keyword.value):
                yield _locate(keyword.arg, keyword.value, starts)
        for argument in node.args:
            if _is_literal(argument) and (name := _find_argument(tool, argument, calls)):
                yield _locate(name, argument, starts)


def _is_literal(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | int | float)


def _find_argument(tool: str, node: Any, calls: RecordedArguments) -> str:
    """Return the name of a positional argument, from a recorded call with this value."""
    recorded = (arguments for name, arguments in calls if python_name(name) == tool)
    return next(
        (
            name
            for arguments in recorded
            for name, value in arguments.items()
            if value == node.value
        ),
        "",
    )


def _locate(name: str, node: Any, starts: list[int]) -> _Literal:
    start = starts[node.lineno - 1] + node.col_offset
    end = starts[node.end_lineno - 1] + node.end_col_offset
    return _Literal(name, node.value, start, end)


def _choose_name(literal: _Literal, params: JsonMapping) -> str:
    """Return the name of the parameter: the same for equal values, with a number for others."""
    name = literal.name
    number = 1
    while name in params and json.dumps(params[name]) != json.dumps(literal.value):
        number += 1
        name = f"{literal.name}_{number}"
    return name


def _write_placeholder(name: str, value: Any) -> str:
    """Return the placeholder. In quotes, a string stays a string even if it looks like a number."""
    return f'"{{{{ {name} }}}}"' if isinstance(value, str) else f"{{{{ {name} }}}}"


def _escape(text: str) -> str:
    """Return code in which nothing is part of a template."""
    if not TEMPLATE_MARKS.search(text):
        return text
    if "endraw" in text:
        raise ToolError("code with `endraw` cannot be made a snippet")
    return f"{{% raw %}}{text}{{% endraw %}}"


def _reject_secrets(code: str, tree: ast.Module) -> None:
    if SECRET_VALUE.search(code):  # also in comments
        raise _secret_error("the code")
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and SECRET_VALUE.search(node.value)
        ):
            raise _secret_error(f"line {node.lineno}")
        for name, value in _list_named_values(node):
            if (
                isinstance(value, ast.Constant)
                and isinstance(value.value, str)
                and value.value
                and is_secret_name(name)
            ):
                raise _secret_error(name)


def _list_named_values(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names of arguments, variables and keys of dictionaries, with their values."""
    match node:
        case ast.keyword(arg=str() as name, value=value):
            yield name, value
        case ast.Assign(targets=targets, value=value):
            yield from ((target.id, value) for target in targets if isinstance(target, ast.Name))
        case ast.Dict(keys=keys, values=values):
            for key, value in zip(keys, values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.value, value


def _secret_error(place: str) -> ToolError:
    message = f"the literal of {quote(place)} looks like a secret; a snippet must not contain it"
    return ToolError(message, hint="keep secrets in secrets.yaml and let tools use them")


# --- saver ----------------------------------------------------------------------------------------


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
        snippet_only = {snippet.name: snippet.to_snippet()}
        code = await anyio.to_thread.run_sync(snippets.expand_call, snippet.name, {}, snippet_only)
        answer = await self._runs.replay(run, calls, code, context)
        if answer.is_error or as_data(answer.value) != RunOutcome.read(run).value:
            problem = answer.text if answer.is_error else "it returned another value"
            raise ToolError(
                f"run {run.id} cannot be saved: the replay of the snippet differs: {problem}"
            )
