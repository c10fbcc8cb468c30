"""Tasks of the naive model: three wordings, facts, and a pattern that only the correct result matches.

`first` is a call that does not work, which the model starts with. `compute` is Python code that the task applies to a
VALUE, without knowledge of tools.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Task:
    name: str
    wordings: tuple[str, ...]
    expected: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    first: str = ""
    compute: str = ""
    client: str = "reader"

    def is_done(self, answer: str) -> bool:
        return re.search(self.expected, answer, re.DOTALL) is not None

    def with_number(self, number: int) -> "Task":
        """Replace `#` in facts by this number, for tasks that can be done only once."""
        facts = {
            key: value.replace("#", str(number)) if isinstance(value, str) else value
            for key, value in self.facts.items()
        }
        return replace(self, facts=facts)


TASKS = (
    Task(
        "free disk space",
        ("how much disk space is free", "is there enough room left on this drive", "available storage on the computer"),
        r'"free":\s*\d',
    ),
    Task(
        "read a file",
        ("read a file", "show me the content of a text file", "open this document and print what it says"),
        "marmalade",
        {"file": "report.txt"},
    ),
    Task(
        "which file holds a word",
        ("find which file contains a word", "search all files for some text", "grep the folder for a pattern"),
        r"tuesday\.txt",
        {"pattern": "zeppelin", "folder": "."},
    ),
    Task(
        "list a folder",
        ("list the files in a folder", "what is in this directory", "show the entries of a folder"),
        r"monday\.txt.*wednesday\.txt",
        {"directory": "notes"},
    ),
    Task(
        "sum a column of a CSV file",
        (
            "add up a column of a CSV file",
            "total of the amounts in a spreadsheet file",
            "read a file and sum its numbers",
        ),
        r"\b5617\b",
        {"file": "sales.csv"},
        compute="sum(int(line.split(',')[1]) for line in VALUE.splitlines()[1:])",
    ),
    Task(
        "a tool of an extension pack",
        (
            "where is an article stored",
            "on which shelf of the storehouse does it lie",
            "find an article in the storehouse",
        ),
        r"mezzanine",
        {"article": "umbrella"},
    ),
    Task(
        "a tool whose name is no identifier",
        ("sum of two numbers", "add two numbers", "get the sum of a first and a second number"),
        r"\b5141\b",
        {"first number": 5000, "second number": 141},
    ),
    Task(
        "structured data of another server",
        ("weather in a city as structured data", "temperature and humidity of a location", "structured weather data"),
        r'"humidity":\s*\d',
        {"city": "Chicago"},
    ),
    Task(
        "a resource of another server",
        (
            "read a resource of a server: its features",
            "show a server's resource on features",
            "content of the resource features.md of a server",
        ),
        r"# Everything Server - Features",
        {"server": "every"},
    ),
    Task(
        "a prompt of another server",
        (
            "fill in a prompt of a server with arguments",
            "get the prompt with arguments from a server",
            "use a server's prompt that takes arguments",
        ),
        r"weather in Lisbon",
        {"server": "every", "city": "Lisbon"},
    ),
    Task(
        "an HTTP API with a parameter in its path",
        ("look a person up in the directory", "who is the person with this id", "get a person of the office by id"),
        r"Quill-2481",
        {"person id": "1842"},
    ),
    Task(
        "a POST to an HTTP API",
        ("order something", "place an order with the office", "make an order of some items"),
        r"R-148-stapler",
        {"item": "stapler", "quantity": 4},
    ),
    Task(
        "parse JSON",
        ("parse JSON text", "turn a JSON string into data", "check that a text is valid JSON"),
        r'\{"lamp":\s*\[1,\s*2500\.0\]\}',
        {"json text": '{"lamp": [1, 2.5e3]}'},
    ),
    Task(
        "parse YAML",
        ("parse YAML text", "turn a YAML document into data", "check whether some text is valid YAML"),
        r'\{"lamp":\s*\[1,\s*"on"\]\}',
        {"yaml text": "lamp:\n  - 1\n  - on\n"},
    ),
    Task(
        "the time in a zone",
        ("what time is it in another time zone", "current time in Tokyo", "get the local time of a timezone"),
        r"\+09:00",
        {"timezone": "Asia/Tokyo"},
    ),
    Task(
        "one item of a large result",
        ("list all spare parts in stock", "which spare parts are there", "all parts of the storehouse by number"),
        rf"part-{3417 * 7919 % 99991}\b",
        compute="VALUE[3416]",
    ),
    Task(
        "a search in a large result",
        ("journal of the storehouse", "read the journal with its events", "what happened in the storehouse, events"),
        r"FLOOD in cellar 8154",
        {"search": "FLOOD"},
    ),
    Task(
        "a pack misspelt",
        ("how busy is the processor", "load of the cpu", "processor cores"),
        r'"cores":\s*\d',
        first="machin.cpu()",
    ),
    Task(
        "a tool misspelt",
        ("read a file", "content of a file", "show a document"),
        "marmalade",
        {"file": "report.txt"},
        first="fs.raed(path='report.txt')",
    ),
    Task(
        "a short name misspelt",
        ("free space on the disk", "room on the drive", "storage that is left"),
        r'"free":\s*\d',
        first="rooom()",
    ),
    Task(
        "a tool without its pack",
        ("free space on the disk", "room on the drive", "storage that is left"),
        r'"free":\s*\d',
        first="disk()",
    ),
    Task(
        "a pack called like a function",
        ("memory of the machine", "how much memory is available", "total memory"),
        r'"available":\s*\d',
        first="machine()",
    ),
    Task(
        "code that opens a file itself",
        ("read a file", "content of a file", "show a document"),
        "marmalade",
        {"file": "report.txt"},
        first="open('report.txt').read()",
    ),
    Task(
        "a sentence in the place of code",
        ("read a file", "content of a file", "show a document"),
        "marmalade",
        {"file": "report.txt"},
        first="please show me report.txt",
    ),
    Task(
        "a missing argument",
        ("order something", "place an order", "order items"),
        r"R-259-lamp",
        {"item": "lamp", "quantity": 7},
        first="office.order(item='lamp')",
    ),
    Task(
        "an argument of the wrong type",
        ("order something", "place an order", "order items"),
        r"R-111-chair",
        {"item": "chair", "quantity": 3},
        first="office.order(item='chair', quantity='three')",
    ),
    Task(
        "an argument with the wrong name",
        ("where is an article stored", "find an article", "shelf of an article"),
        r"mezzanine",
        {"article": "broom"},
        first="storehouse.shelf(thing='broom')",
    ),
    Task(
        "a permission that is refused",
        ("write a text into a file", "save some content to a file", "create a file with this content"),
        r"onetool\.yaml: agents: \{default: \{permissions: \[read, write, network\]\}\}",
        {"path": "new.txt", "content": "hello"},
    ),
    Task(
        "two calls side by side",
        ("call two tools in parallel", "run several calls at the same time, side by side", "do things in parallel"),
        r'\{[^}]*"cores"[^}]*\}.*"free"',
    ),
    Task(
        "a snippet",
        (
            "say a sentence in capital letters",
            "shout a sentence with an exclamation mark",
            "put a sentence in capitals",
        ),
        r"THE CAKE IS READY!",
        {"sentence": "the cake is ready"},
    ),
    Task(
        "which aliases there are",
        ("short names for tools", "list the aliases", "which aliases are configured"),
        r"room -> machine\.disk",
    ),
    Task(
        "what is wrong",
        ("is anything wrong right now", "problems found in the system", "health of the running system"),
        r"unfinished_tools\.py, line 3",
    ),
    Task(
        "what failed lately",
        ("which calls failed", "statistics on calls and errors", "how often was each tool called and how did it go"),
        r"validation_error: \d",
    ),
    Task(
        "a tool of one's own",
        ("write a tool of my own", "create a new extension pack", "make an example pack to edit"),
        r"OK: wrote .*tides\w*_tools\.py",
        {"pack": "tides#"},
        client="builder",
    ),
)
