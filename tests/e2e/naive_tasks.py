"""Tasks of the naive model: three wordings, facts, and a pattern that only the correct result
matches.

`first` is a call that does not work, which the model starts with. `compute` is Python code that the
task applies to a VALUE, without knowledge of tools.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
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

    def fill_facts(self, number: int, home: Path) -> "Task":
        """Replace `#` in facts by this number, for tasks that can be done only once, and `~` by the
        home directory.
        """
        text = json.dumps(dict(self.facts)).replace("#", str(number)).replace("~", str(home))
        return replace(self, facts=json.loads(text))


TASKS = (
    Task(
        "free disk space",
        (
            "how much disk space is free",
            "is there enough room left on this drive",
            "available storage on the computer",
        ),
        r'"free":\s*\d',
    ),
    Task(
        "read a file",
        (
            "read a file",
            "show me the content of a text file",
            "open this document and print what it says",
        ),
        "marmalade",
        {"file path": "report.txt"},
    ),
    Task(
        "which file holds a word",
        (
            "find which file contains a word",
            "search all files for some text",
            "grep the folder for a pattern",
        ),
        r"tuesday\.txt",
        {"pattern": "zeppelin", "folder": "."},
    ),
    Task(
        "list a folder",
        ("list the files in a folder", "what is in this directory", "show the entries of a folder"),
        r"monday\.txt.*wednesday\.txt",
        {"directory path": "notes"},
    ),
    Task(
        "sum a column of a CSV file",
        (
            "add up a column of a CSV file",
            "total of the amounts in a spreadsheet file",
            "read a file and sum its numbers",
        ),
        r"\b5617\b",
        {"file path": "sales.csv"},
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
        (
            "weather in a city as structured data",
            "temperature and humidity of a location",
            "structured weather data",
        ),
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
        (
            "look a person up in the directory",
            "who is the person with this id",
            "get a person of the office by id",
        ),
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
        (
            "parse YAML text",
            "turn a YAML document into data",
            "check whether some text is valid YAML",
        ),
        r'\{"lamp":\s*\[1,\s*"on"\]\}',
        {"yaml text": "lamp:\n  - 1\n  - on\n"},
    ),
    Task(
        "the time in a zone",
        (
            "what time is it in another time zone",
            "current time in Tokyo",
            "get the local time of a timezone",
        ),
        r"\+09:00",
        {"timezone": "Asia/Tokyo"},
    ),
    Task(
        "one item of a large result",
        (
            "list all spare parts in stock",
            "which spare parts are there",
            "all parts of the storehouse by number",
        ),
        rf"part-{3417 * 7919 % 99991}\b",
        compute="VALUE[3416]",
    ),
    Task(
        "a search in a large result",
        (
            "journal of the storehouse",
            "read the journal with its events",
            "what happened in the storehouse, events",
        ),
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
        {"file path": "report.txt"},
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
        {"file path": "report.txt"},
        first="open('report.txt').read()",
    ),
    Task(
        "a sentence in the place of code",
        ("read a file", "content of a file", "show a document"),
        "marmalade",
        {"file path": "report.txt"},
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
        (
            "write a text into a file",
            "save some content to a file",
            "create a file with this content",
        ),
        r"onetool\.yaml: agents: \{default: \{permissions: \[read, write, network\]\}\}",
        {"path": "new.txt", "content": "hello"},
    ),
    Task(
        "two calls side by side",
        (
            "call two tools in parallel",
            "run several calls at the same time, side by side",
            "do things in parallel",
        ),
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
        (
            "is anything wrong right now",
            "problems found in the system",
            "health of the running system",
        ),
        r"unfinished_tools\.py, line 3",
    ),
    Task(
        "what failed lately",
        (
            "which calls failed",
            "statistics on calls and errors",
            "how often was each tool called and how did it go",
        ),
        r"validation_error: \d",
    ),
    Task(
        "a tool of one's own",
        ("write a tool of my own", "create a new extension pack", "make an example pack to edit"),
        r"OK: wrote .*tides\w*_tools\.py",
        {"pack": "tides#"},
        client="builder",
    ),
    Task(
        "issues of a repository",
        (
            "list the issues of a repository",
            "list repository issues",
            "which issues does this repository have",
        ),
        'GET /repos/octo/spoon/issues"',
        {"owner": "octo", "repo": "spoon"},
    ),
    Task(
        "one issue",
        ("get an issue by its number", "show one issue", "read a single issue of a repository"),
        'GET /repos/octo/spoon/issues/42"',
        {"owner": "octo", "repo": "spoon", "issue number": 42},
    ),
    Task(
        "a comment on an issue",
        ("create a comment on an issue", "add an issue comment", "comment on an issue"),
        'POST /repos/octo/spoon/issues/42/comments"',
        {"owner": "octo", "repo": "spoon", "issue number": 42, "body": "Thanks"},
    ),
    Task(
        "labels of an issue",
        ("list the labels of an issue", "which labels does an issue have", "labels on an issue"),
        'GET /repos/octo/spoon/issues/42/labels"',
        {"owner": "octo", "repo": "spoon", "issue number": 42},
    ),
    Task(
        "lock an issue",
        ("lock an issue", "lock the conversation of an issue", "lock this issue against comments"),
        'PUT /repos/octo/spoon/issues/42/lock"',
        {"owner": "octo", "repo": "spoon", "issue number": 42},
    ),
    Task(
        "pull requests",
        (
            "list pull requests",
            "which pull requests are open in a repository",
            "list the pull requests of a repository",
        ),
        'GET /repos/octo/spoon/pulls"',
        {"owner": "octo", "repo": "spoon"},
    ),
    Task(
        "merge a pull request",
        (
            "merge a pull request",
            "merge this pull request by its number",
            "merge pull request number 7",
        ),
        'PUT /repos/octo/spoon/pulls/7/merge"',
        {"owner": "octo", "repo": "spoon", "pull number": 7},
    ),
    Task(
        "files of a pull request",
        (
            "list the files of a pull request",
            "which files does a pull request change",
            "list pull requests files",
        ),
        'GET /repos/octo/spoon/pulls/7/files"',
        {"owner": "octo", "repo": "spoon", "pull number": 7},
    ),
    Task(
        "branches of a repository",
        (
            "list branches of a repository",
            "which branches does a GitHub repository have",
            "repository branches",
        ),
        'GET /repos/octo/spoon/branches"',
        {"owner": "octo", "repo": "spoon"},
    ),
    Task(
        "contributors",
        (
            "list repository contributors",
            "who contributed to a repository",
            "contributors of a repository",
        ),
        'GET /repos/octo/spoon/contributors"',
        {"owner": "octo", "repo": "spoon"},
    ),
    Task(
        "the latest release",
        (
            "get the latest release",
            "what is the latest release of a repository",
            "newest release of a repository",
        ),
        'GET /repos/octo/spoon/releases/latest"',
        {"owner": "octo", "repo": "spoon"},
    ),
    Task(
        "forks",
        ("list forks of a repository", "which forks does a repository have", "list forks"),
        'GET /repos/octo/spoon/forks"',
        {"owner": "octo", "repo": "spoon"},
    ),
    Task(
        "languages",
        (
            "list repository languages",
            "which programming languages does a repository use",
            "languages of a repository",
        ),
        'GET /repos/octo/spoon/languages"',
        {"owner": "octo", "repo": "spoon"},
    ),
    Task(
        "the README",
        (
            "get a repository README",
            "show the readme of a repository",
            "read the README of a GitHub repository",
        ),
        'GET /repos/octo/spoon/readme"',
        {"owner": "octo", "repo": "spoon"},
    ),
    Task(
        "star a gist",
        ("star a gist", "give a gist a star", "mark a gist with a star"),
        'PUT /gists/a1b2/star"',
        {"gist id": "a1b2"},
    ),
    Task(
        "search repositories",
        (
            "search repositories",
            "find GitHub repositories by keywords",
            "search for repositories on GitHub",
        ),
        "GET /search/repositories",
        {"q": "teapot"},
    ),
    Task(
        "status of a working tree",
        (
            "show the working tree status",
            "git status of a repository",
            "which files have uncommitted changes in git",
        ),
        "On branch",
        {"repo path": "~/garden"},
    ),
    Task(
        "the commit log",
        ("show the commit logs", "git log of a local repository", "history of commits in git"),
        "Plant the orchard",
        {"repo path": "~/garden"},
    ),
    Task(
        "unstaged changes",
        (
            "show changes that are not yet staged",
            "git diff of the working directory",
            "unstaged changes in git",
        ),
        "\\+quince",
        {"repo path": "~/garden"},
    ),
    Task(
        "local branches",
        (
            "list git branches",
            "show the local branches of a git repository",
            "which branches are there in git",
        ),
        "south-wall",
        {"repo path": "~/garden", "branch type": "local"},
    ),
    Task(
        "the knowledge graph",
        (
            "read the entire knowledge graph",
            "show the whole knowledge graph",
            "everything in the knowledge graph",
        ),
        "red lamp",
        {},
    ),
    Task(
        "a node of the knowledge graph",
        (
            "search for nodes in the knowledge graph",
            "find a node of the knowledge graph",
            "look up nodes in the knowledge graph by a query",
        ),
        "red lamp",
        {"query": "lighthouse"},
    ),
    Task(
        "new entities",
        (
            "create entities in the knowledge graph",
            "add new entities to the knowledge graph",
            "store several entities in the knowledge graph",
        ),
        "harbor\\d",
        {"entities": [{"name": "harbor#", "entityType": "place", "observations": ["deep water"]}]},
    ),
    Task(
        "a directory tree",
        (
            "recursive tree view of a directory as JSON",
            "directory tree of files and directories",
            "show a tree of a directory",
        ),
        "monday\\.txt",
        {"path": "~/notes"},
    ),
    Task(
        "metadata of a file",
        (
            "detailed metadata of a file",
            "when was a file created and last accessed",
            "get file info: size, times and permissions",
        ),
        r"isFile: true|\"type\":\s*\"file\"",
        {"path": "~/notes/monday.txt"},
    ),
    Task(
        "convert a time",
        (
            "convert time between timezones",
            "what time is it there when it is noon here",
            "convert a time from one timezone to another",
        ),
        "20:00|T20",
        {"source timezone": "Europe/London", "time": "12:00", "target timezone": "Asia/Shanghai"},
    ),
    Task(
        "a guess at the name of an operation",
        ("list the issues of a repository", "issues of a repository", "list repository issues"),
        'GET /repos/octo/spoon/issues"',
        {"owner": "octo", "repo": "spoon"},
        first="github.list_issues(owner='octo', repo='spoon')",
    ),
    Task(
        "a pack that does not exist",
        (
            "read the entire knowledge graph",
            "show the whole knowledge graph",
            "everything in the knowledge graph",
        ),
        "red lamp",
        first="graph.read()",
    ),
    Task(
        "an import of a library",
        (
            "how many processor cores are there",
            "number of processor cores",
            "load of the processor cores",
        ),
        r'"cores":\s*\d',
        first="import psutil\npsutil.cpu_count()",
    ),
    Task(
        "a guess at the name of another operation",
        ("create a release", "publish a release of a repository", "make a new release for a tag"),
        'POST /repos/octo/spoon/releases"',
        {"owner": "octo", "repo": "spoon", "tag name": "v1"},
        first="github.create_release(owner='octo', repo='spoon', tag_name='v1')",
    ),
)
