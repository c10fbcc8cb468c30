"""A model that knows Python and nothing of OneTool: it does what the words that it reads say to do next.

It is given the description of the one tool, the instructions of the server, and a task in plain words with some facts.
How it plays is in `naive_player`; here it is let loose on a real server. Where it gets stuck, the words are wrong:

    uv run python -m tests.e2e.naive_model [--task NAME] [--seed NUMBER] [--mute description|answers]
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import mean
from tempfile import TemporaryDirectory

from anyio.from_thread import start_blocking_portal
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import Implementation, TextContent
from tests.e2e.naive_player import Door, Player
from tests.e2e.naive_reading import without_advice
from tests.e2e.naive_tasks import TASKS, Task
from tests.e2e.naive_world import prepared
from tests.support import PROGRAM, Connection, environment

FRAMES = ("{}", "please {}", "I would like to {}", "could you {} for me?", "My question: {}", "{}, thank you")


# --- the door --------------------------------------------------------------------------------------------------------


@contextmanager
def door(home: Path, client: str, mute: str = "") -> Iterator[Door]:
    """The official client over stdio; `mute` takes the description away, or what answers say to do next."""
    server = StdioServerParameters(command=PROGRAM, env=environment(home), cwd=home)
    with (home / "stderr").open("a", encoding="utf-8") as errors, start_blocking_portal("asyncio") as portal:
        sdk = Client(stdio_client(server, errors), client_info=Implementation(name=client, version="1"))
        manager = portal.wrap_async_context_manager(sdk)
        manager.__enter__()
        try:
            yield _door(Connection(portal, sdk, home), mute)
        finally:
            manager.__exit__(None, None, None)


def _door(connection: Connection, mute: str) -> Door:
    (tool,) = connection.tools()
    (blank,) = tool.input_schema["required"]
    heard = without_advice if mute == "answers" else str
    told = "\n".join([tool.description or "", connection.client.instructions or "", str(tool.input_schema)])

    def send(code: str) -> tuple[str, bool]:
        result = connection.call(tool.name, {blank: code})
        texts = (block.text for block in result.content if isinstance(block, TextContent))
        return heard("\n".join(texts)), bool(result.is_error)

    return Door("" if mute == "description" else told, tool.name, send)


# --- all tasks -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    task: str
    words: str
    is_done: bool
    moves: int
    transcript: str

    def __str__(self) -> str:
        return f"{'found' if self.is_done else 'NOT found'} in {self.moves} moves: {self.task} ({self.words})"


def every_wording(tasks: Iterable[Task] = TASKS) -> list[Task]:
    return [replace(task, wordings=(words,)) for task in tasks for words in task.wordings]


def framed(seed: int, tasks: Iterable[Task] = TASKS) -> list[Task]:
    """One wording of each, in a sentence as people write them, and the facts in any order."""
    chance = Random(seed)
    return [_framed(task, chance) for task in tasks]


def _framed(task: Task, chance: Random) -> Task:
    words = chance.choice(FRAMES).format(chance.choice(task.wordings))
    facts = chance.sample(list(task.facts.items()), len(task.facts))
    return replace(task, wordings=(words,), facts=dict(facts))


def plays(home: Path, tasks: Iterable[Task], mute: str = "") -> Iterator[Outcome]:
    """Each task in its first wording, through the door of its client."""
    numbered = list(enumerate(tasks))
    with prepared(home):
        for client in dict.fromkeys(task.client for _, task in numbered):
            with door(home, client, mute) as opened:
                yield from (_played(task.numbered(at), opened) for at, task in numbered if task.client == client)


def _played(task: Task, opened: Door) -> Outcome:
    player = Player(task, task.wordings[0], opened)
    is_done = player.play()
    return Outcome(task.name, task.wordings[0], is_done, len(player.moves), "\n".join(player.transcript))


def summary(outcomes: list[Outcome]) -> str:
    moves = [one.moves for one in outcomes if one.is_done]
    return f"{len(moves)} of {len(outcomes)} found, {mean(moves) if moves else 0:.2f} moves on average"


def main() -> None:
    parser = argparse.ArgumentParser(description="See a model without knowledge find its way.")
    parser.add_argument("--task", default="", help="only the task of this number, or those with this in their names")
    parser.add_argument("--seed", type=int, help="one wording of each task, chosen and framed by chance")
    parser.add_argument("--mute", default="", choices=["", "description", "answers"], help="what it may not read")
    asked = parser.parse_args()
    tasks = [task for number, task in enumerate(TASKS, 1) if asked.task == str(number) or asked.task in task.name]
    chosen = every_wording(tasks) if asked.seed is None else framed(asked.seed, tasks)
    with TemporaryDirectory() as home:
        outcomes = list(plays(Path(home), chosen, asked.mute))
    transcripts = (f"=== {one.task}\n{one.transcript}\n" for one in outcomes)
    sys.stdout.write("\n".join([*transcripts, *map(str, outcomes), summary(outcomes), ""]))


if __name__ == "__main__":
    main()
