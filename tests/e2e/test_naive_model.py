"""The words that a model reads lead it to its goal: one without any knowledge finds its way by them, and only by them.

A task that fails here is mended by better words, in the description, in an answer or in a tool's docstring, not by a
cleverer player. `uv run python -m tests.e2e.naive_model` shows every move.
"""

import inspect
import sys
from pathlib import Path
from statistics import mean

import pytest
from tests.cells_support import NIGHTLY
from tests.e2e import naive_filling, naive_model, naive_player, naive_reading
from tests.e2e.naive_model import Outcome, every_wording, framed, plays, summary
from tests.e2e.naive_tasks import TASKS, Task
from tests.support import open_app

from onetool._tool import tool
from onetool.search.search_documents import IN_CODE
from onetool.transports.mcp.mcp_server import DESCRIPTION, INSTRUCTIONS

FEWEST_TASKS, WORDINGS = 20, 3
MOST_MOVES_ON_AVERAGE = 3.0
SEED = 7
SAMPLE = TASKS if NIGHTLY else TASKS[::3]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


def lost(outcomes: list[Outcome]) -> str:
    """What a reader of a failed test needs to see."""
    return "\n\n".join(f"{one}\n{one.transcript}" for one in outcomes if not one.is_done)


@pytest.mark.slow
def test_every_task_is_done_from_the_description_alone(home: Path) -> None:
    outcomes = list(plays(home, every_wording()))
    sys.stdout.write("\n".join([*map(str, outcomes), summary(outcomes), ""]))  # seen with -s
    assert len(outcomes) >= FEWEST_TASKS * WORDINGS
    assert not lost(outcomes)
    assert mean(one.moves for one in outcomes) <= MOST_MOVES_ON_AVERAGE


@pytest.mark.slow
@pytest.mark.parametrize("seed", [SEED, 42] if NIGHTLY else [SEED])
def test_other_words_lead_there_too(home: Path, seed: int) -> None:
    outcomes = list(plays(home, framed(seed, SAMPLE)))
    assert len(outcomes) == len(SAMPLE)
    assert not lost(outcomes)


@pytest.mark.slow
def test_without_the_description_nothing_is_found_but_what_an_error_tells(home: Path) -> None:
    done = {one.task for one in plays(home, framed(SEED, SAMPLE), mute="description") if one.is_done}
    assert done <= {task.name for task in SAMPLE if task.first}
    assert len(done) < len(SAMPLE) / 3


@pytest.mark.slow
def test_without_what_answers_say_to_do_next_nothing_is_found(home: Path) -> None:
    tasks = SAMPLE if NIGHTLY else SAMPLE[::2]  # each takes all the moves there are
    assert sum(one.is_done for one in plays(home, framed(SEED, tasks), mute="answers")) < len(tasks) / 10


def test_the_player_knows_no_tool_by_name() -> None:
    code = "".join(map(inspect.getsource, (naive_model, naive_player, naive_filling, naive_reading)))
    with open_app() as app:
        names = [*app.onetool.bus.list_tools(), *IN_CODE]
    assert len(names) > FEWEST_TASKS
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


SAID = {"aliases": {"lesson": "desk.class"}, "snippets": {"cry": {"params": {"word": {}}, "body": "1"}}}


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
def test_a_search_shows_how_to_call_what_it_finds(query: str, call: str | None) -> None:
    with open_app(SAID, [keyword, letters]) as app:
        assert app.data(f"ot.search(query={query!r}, limit=1)[0].get('call')") == call


def test_help_knows_a_snippet_without_its_dollar() -> None:
    with open_app(SAID) as app:
        assert app.value("ot.help(query='cry')") == app.value("ot.help(query='$cry')")


def test_there_are_enough_tasks_and_each_is_worded_in_several_ways() -> None:
    assert len({task.name for task in TASKS}) == len(TASKS) >= FEWEST_TASKS
    assert all(len(set(task.wordings)) == WORDINGS for task in TASKS)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_what_is_to_be_found_is_in_nothing_that_the_player_is_given(task: Task) -> None:
    given = [*task.wordings, str(task.facts), task.first, task.compute, DESCRIPTION, INSTRUCTIONS]
    assert not any(map(task.is_done, given))
