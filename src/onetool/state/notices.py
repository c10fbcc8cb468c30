"""Limit the messages of `ot.notify`, and append each to the file of the first matching topic.

The settings define the topics; a message cannot reach any other file. Number and size are limited,
because `ot.notify` needs no permission and must not fill the disk.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from onetool.errors import ArgumentError, BudgetExceeded, ToolError
from onetool.settings.model import Topic
from onetool.state.counters import Counters
from onetool.util.clock_watch import Clock
from onetool.util.render import render
from onetool.util.time_format import in_utc

if TYPE_CHECKING:
    from onetool.state.file_kinds import NoticeFiles

MAX_TOPIC_CHARS = 500
MAX_MESSAGE_CHARS = 100_000
RATE_SECONDS = 60.0
NO_TOPIC = "SKIP: no matching topic"


def count_message(counters: Counters, agent: str, per_minute: int) -> None:
    """Count one message. Raise BudgetExceeded if the agent has sent too many. May block."""
    if seconds := counters.take(f"notices {agent}", per_minute, RATE_SECONDS):
        raise BudgetExceeded(
            f"too many messages: notify.per_minute is {per_minute}; try again in {seconds:.0f} s",
            retry_after_seconds=round(seconds, 1),
        )


def publish(
    topics: Sequence[Topic], notices: "NoticeFiles", topic: str, message: Any, now: Clock
) -> str:
    """Append the message to the file of the topic and return a one-line summary.

    Blocks on the disk and on a lock.
    """
    if len(topic) > MAX_TOPIC_CHARS:
        raise ArgumentError(f"topic too long: {len(topic)} characters (maximum {MAX_TOPIC_CHARS})")
    found = next((each for each in topics if _matches(each.pattern, topic)), None)
    if found is None:
        return NO_TOPIC
    notices.append(found.file, _document(topic, message, now()))
    return f"OK: {topic} -> {found.file}"


def _matches(pattern: str, topic: str) -> bool:
    """Match with dynamic programming, because a regular expression could take exponential time."""
    reached = [True] + [False] * len(topic)
    for step in re.findall(r"\*\*|.", pattern, re.DOTALL):
        is_wildcard = step in {"*", "**"}
        row = [is_wildcard and reached[0]]
        for index, character in enumerate(topic):
            extends = row[index] and (step == "**" or character != ":")
            row.append(
                reached[index + 1] or extends
                if is_wildcard
                else reached[index] and character == step
            )
        reached = row
    return reached[-1]


def _document(topic: str, message: Any, seconds: float) -> bytes:
    size = len(render(message, "json"))
    if size > MAX_MESSAGE_CHARS:
        raise ToolError(f"message too long: {size} characters (maximum {MAX_MESSAGE_CHARS})")
    time = in_utc(seconds, "seconds")
    text = render({"topic": topic, "time": time, "message": message}, "yml_h").removesuffix("\n")
    return f"---\n{text}\n".encode()
