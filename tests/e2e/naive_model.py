"""A simulated model that knows Python but not OneTool: it follows only the text that it reads.

It gets the description of the one tool, the instructions of the server, and a task in plain English
with some facts. `naive_player` implements its moves; this module runs it against a real server. If
it gets stuck, improve the texts:

    uv run python -m tests.e2e.naive_model [--task NAME] [--seed NUMBER] [--check] [--mute
    description|answers]
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from random import Random
from statistics import mean
from tempfile import TemporaryDirectory

from anyio.from_thread import start_blocking_portal
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import Implementation, TextContent
from tests.e2e.naive_check_tasks import CHECK_TASKS
from tests.e2e.naive_player import Player, Session
from tests.e2e.naive_reading import remove_advice
from tests.e2e.naive_tasks import TASKS, Task
from tests.e2e.naive_world import prepare
from tests.support import PROGRAM, Connection, environment

NUMBERS = count()  # of tasks that were played
FRAMES = (
    "{}",
    "please {}",
    "I would like to {}",
    "could you {} for me?",
    "My question: {}",
    "{}, thank you",
)


# --- connecting -----------------------------------------------------------------------------------


@contextmanager
def connect(home: Path, client: str, mute: str = "") -> Iterator[Session]:
    """Connect the official client over stdio.

    `mute` hides the description, or the advice in results.
    """
    server = StdioServerParameters(command=PROGRAM, env=environment(home), cwd=home)
    with (
        (home / "stderr").open("a", encoding="utf-8") as errors,
        start_blocking_portal("asyncio") as portal,
    ):
        sdk = Client(
            stdio_client(server, errors), client_info=Implementation(name=client, version="1")
        )
        manager = portal.wrap_async_context_manager(sdk)
        manager.__enter__()
        try:
            yield _make_session(Connection(portal, sdk, home), mute)
        finally:
            manager.__exit__(None, None, None)


def _make_session(connection: Connection, mute: str) -> Session:
    (tool,) = connection.tools()
    (parameter,) = tool.input_schema["required"]
    transform = remove_advice if mute == "answers" else str
    description = "\n".join(
        [tool.description or "", connection.client.instructions or "", str(tool.input_schema)]
    )

    def send(code: str) -> tuple[str, bool]:
        result = connection.call(tool.name, {parameter: code})
        texts = (block.text for block in result.content if isinstance(block, TextContent))
        return transform("\n".join(texts)), bool(result.is_error)

    return Session("" if mute == "description" else description, tool.name, send)


# --- all tasks ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    task: str
    wording: str
    is_done: bool
    moves: int
    transcript: str

    def __str__(self) -> str:
        return (
            f"{'found' if self.is_done else 'NOT found'} in {self.moves} moves: {self.task}"
            f" ({self.wording})"
        )


def list_wordings(tasks: Iterable[Task] = TASKS) -> list[Task]:
    return [replace(task, wordings=(wording,)) for task in tasks for wording in task.wordings]


def frame_tasks(seed: int, tasks: Iterable[Task] = TASKS) -> list[Task]:
    """Choose one wording of each task, put it in a sentence, and shuffle the facts."""
    generator = Random(seed)
    return [_frame_task(task, generator) for task in tasks]


def _frame_task(task: Task, generator: Random) -> Task:
    wording = generator.choice(FRAMES).format(generator.choice(task.wordings))
    facts = generator.sample(list(task.facts.items()), len(task.facts))
    return replace(task, wordings=(wording,), facts=dict(facts))


def play_tasks(home: Path, tasks: Iterable[Task], mute: str = "") -> Iterator[Outcome]:
    """Play the first wording of each task in a prepared home directory, with the client of the
    task.
    """
    numbered = [(next(NUMBERS), task) for task in tasks]
    for client in dict.fromkeys(task.client for _, task in numbered):
        with connect(home, client, mute) as session:
            yield from (
                _play_task(task.fill_facts(at, home), session)
                for at, task in numbered
                if task.client == client
            )


def _play_task(task: Task, session: Session) -> Outcome:
    player = Player(task, task.wordings[0], session)
    is_done = player.play()
    return Outcome(
        task.name, task.wordings[0], is_done, len(player.moves), "\n".join(player.transcript)
    )


def summarize(outcomes: list[Outcome]) -> str:
    moves = [one.moves for one in outcomes if one.is_done]
    return (
        f"{len(moves)} of {len(outcomes)} found, {mean(moves) if moves else 0:.2f} moves on average"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Run a simulated model without knowledge of OneTool."
    )
    parser.add_argument("--task", default="", help="number of a task, or part of its name")
    parser.add_argument("--seed", type=int, help="seed for one random wording of each task")
    parser.add_argument(
        "--mute",
        default="",
        choices=["", "description", "answers"],
        help="text to hide from the model",
    )
    parser.add_argument(
        "--check", action="store_true", help="play the tasks that nothing was adjusted to"
    )
    options = parser.parse_args()
    listed = enumerate(CHECK_TASKS if options.check else TASKS, 1)
    tasks = [
        task for number, task in listed if options.task == str(number) or options.task in task.name
    ]
    chosen = list_wordings(tasks) if options.seed is None else frame_tasks(options.seed, tasks)
    with TemporaryDirectory() as home, prepare(Path(home)):
        outcomes = list(play_tasks(Path(home), chosen, options.mute))
    transcripts = (f"=== {one.task}\n{one.transcript}\n" for one in outcomes)
    sys.stdout.write("\n".join([*transcripts, *map(str, outcomes), summarize(outcomes), ""]))


if __name__ == "__main__":
    main()
