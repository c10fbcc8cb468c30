"""Test that a model without knowledge of OneTool solves tasks by following the texts that it reads.

Fix a failing task by a better description, message or docstring of a tool, not by a smarter player.
`uv run python -m tests.e2e.naive_model` shows every move.
"""

import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

import pytest
from tests.cells_support import NIGHTLY
from tests.e2e import naive_filling, naive_model, naive_player, naive_reading
from tests.e2e.naive_check_tasks import CHECK_TASKS
from tests.e2e.naive_model import Outcome, frame_tasks, list_wordings, play_tasks, summarize
from tests.e2e.naive_tasks import TASKS, Task
from tests.e2e.naive_world import prepare
from tests.support import open_app, run_cli

from onetool.core.tool import tool
from onetool.server.mcp.mcp_server import DESCRIPTION, INSTRUCTIONS
from onetool.sources.search.search_documents import IN_CODE

MIN_TASKS, WORDINGS, MIN_TOOLS = 60, 3, 300
MAX_AVERAGE_MOVES, MAX_WORDINGS_MOVES = (
    2.2,
    2.25,
)  # of one wording of each task, and of all wordings
MIN_CHECK_SOLVED, MAX_CHECK_MOVES = 0.95, 2.7  # of the tasks that nothing was adjusted to
# The search ranks the right tool below the first ten hits.
UNSOLVED = {
    "show one issue",
    "which branches does a GitHub repository have",
    "which files have uncommitted changes in git",
}
SEED = 7
SAMPLE = TASKS if NIGHTLY else TASKS[::3]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("home")
    with prepare(home):
        yield home


def format_failures(outcomes: list[Outcome]) -> str:
    """Return the transcripts of failed tasks."""
    return "\n\n".join(f"{one}\n{one.transcript}" for one in outcomes if not one.is_done)


@pytest.mark.slow
def test_tasks_are_solved_from_the_description_alone(home: Path) -> None:
    outcomes = play(home, frame_tasks(SEED, SAMPLE))
    assert all(one.is_done for one in outcomes), format_failures(outcomes)
    assert mean(one.moves for one in outcomes) <= MAX_AVERAGE_MOVES


@pytest.mark.skipif(not NIGHTLY, reason="a nightly test: plays every wording")
def test_every_wording_leads_to_the_result(home: Path) -> None:
    outcomes = play(home, list_wordings())
    assert {one.wording for one in outcomes if not one.is_done} <= UNSOLVED, format_failures(
        outcomes
    )
    assert mean(one.moves for one in outcomes if one.is_done) <= MAX_WORDINGS_MOVES


@pytest.mark.skipif(not NIGHTLY, reason="a nightly test: plays every wording")
def test_tasks_that_nothing_was_adjusted_to_are_solved(home: Path) -> None:
    outcomes = play(home, list_wordings(CHECK_TASKS))
    assert sum(one.is_done for one in outcomes) >= MIN_CHECK_SOLVED * len(outcomes), (
        format_failures(outcomes)
    )
    assert mean(one.moves for one in outcomes if one.is_done) <= MAX_CHECK_MOVES


def play(home: Path, tasks: list[Task]) -> list[Outcome]:
    outcomes = list(play_tasks(home, tasks))
    sys.stdout.write("\n".join([*map(str, outcomes), summarize(outcomes), ""]))  # shown by -s
    return outcomes


@pytest.mark.slow
def test_the_environment_has_hundreds_of_real_tools(home: Path) -> None:
    listed = run_cli(
        home, "run", "[len(dir(pack)) for pack in (every, clock, files, memory, git, github)]"
    )
    assert sum(json.loads(listed.stdout)) >= MIN_TOOLS, listed.stderr


@pytest.mark.nightly
@pytest.mark.slow
def test_without_the_description_only_tasks_with_a_first_call_are_solved(home: Path) -> None:
    done = {
        one.task
        for one in play_tasks(home, frame_tasks(SEED, SAMPLE), mute="description")
        if one.is_done
    }
    assert done <= {task.name for task in SAMPLE if task.first}
    assert len(done) < len(SAMPLE) / 3


@pytest.mark.nightly
@pytest.mark.slow
def test_without_advice_in_results_almost_no_task_is_solved(home: Path) -> None:
    tasks = SAMPLE if NIGHTLY else SAMPLE[::2]  # each task uses all moves
    assert (
        sum(one.is_done for one in play_tasks(home, frame_tasks(SEED, tasks), mute="answers"))
        < len(tasks) / 10
    )


def test_the_player_contains_no_tool_names() -> None:
    code = "".join(
        map(inspect.getsource, (naive_model, naive_player, naive_filling, naive_reading))
    )
    with open_app() as app:
        names = [*app.onetool.bus.list_tools(), *IN_CODE]
    assert len(names) > 40
    assert not [name for name in names if "." in name and name in code]


@tool("desk.class")
def keyword(subject: str) -> str:
    """A lesson on a subject."""
    return subject


@tool("desk.letters")
def letters(
    first: str,
    addressee_of_the_letter: str = "nobody in particular",
    sender_of_the_letter: str = "nobody in particular",
    subject_of_the_letter: str = "nothing in particular",
) -> str:
    """Write letters to an addressee."""
    return first + addressee_of_the_letter + sender_of_the_letter + subject_of_the_letter


SHORTCUTS = {
    "aliases": {"lesson": "desk.class"},
    "snippets": {"cry": {"params": {"word": {}}, "body": "1"}},
}


@pytest.mark.parametrize(
    ("query", "call"),
    [
        ("desk.class", 'ot.call("desk.class", subject)'),
        ("desk.letters", "desk.letters(first, ...)"),
        ("lesson", "lesson(subject)"),
        ("cry", "$cry word=…"),
        ("machine.disk", "machine.disk(unit='GiB')"),
        ("ot.parallel", IN_CODE["ot.parallel"].example),
        ("machine", None),
    ],
)
def test_a_search_shows_a_call_of_each_hit(query: str, call: str | None) -> None:
    with open_app(SHORTCUTS, [keyword, letters]) as app:
        assert app.data(f"ot.search(query={query!r}, limit=1)[0].get('call')") == call


def test_help_finds_a_snippet_without_its_dollar_sign() -> None:
    with open_app(SHORTCUTS) as app:
        assert app.value("ot.help(query='cry')") == app.value("ot.help(query='$cry')")


def test_there_are_enough_tasks_with_several_wordings_each() -> None:
    tasks = [*TASKS, *CHECK_TASKS]
    assert len({task.name for task in tasks}) == len(tasks)
    assert len(TASKS) >= MIN_TASKS
    assert all(len(set(task.wordings)) == WORDINGS for task in tasks)


@pytest.mark.parametrize("task", [*TASKS, *CHECK_TASKS], ids=lambda task: task.name)
def test_the_expected_result_is_not_in_the_input_of_the_player(task: Task) -> None:
    inputs = [*task.wordings, str(task.facts), task.first, task.compute, DESCRIPTION, INSTRUCTIONS]
    assert not any(map(task.is_done, inputs))
