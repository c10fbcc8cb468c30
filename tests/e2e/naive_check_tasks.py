"""More tasks of the naive model, over the same servers, to check what `naive_tasks` was used to
improve.

They were written before their results were seen. Do not change texts, tools or the player because
of one of them: add a task to `naive_tasks` for that, and write a new one here.
"""

from collections.abc import Mapping
from typing import Any

from tests.e2e.naive_tasks import Task

REPOSITORY: Mapping[str, Any] = {"owner": "octo", "repo": "spoon"}
GARDEN: Mapping[str, Any] = {"repo path": "~/garden"}

CHECK_TASKS = (
    Task(
        "commits",
        (
            "list the commits of a repository",
            "which commits were made to a GitHub repository",
            "repository commits",
        ),
        'GET /repos/octo/spoon/commits"',
        REPOSITORY,
    ),
    Task(
        "one pull request",
        ("get a pull request", "show one pull request by its number", "details of a pull request"),
        'GET /repos/octo/spoon/pulls/7"',
        {**REPOSITORY, "pull number": 7},
    ),
    Task(
        "reviews of a pull request",
        (
            "list the reviews of a pull request",
            "who reviewed this pull request",
            "reviews for a pull request",
        ),
        'GET /repos/octo/spoon/pulls/7/reviews"',
        {**REPOSITORY, "pull number": 7},
    ),
    Task(
        "a new issue",
        ("create an issue", "open a new issue in a repository", "file an issue with a title"),
        'POST /repos/octo/spoon/issues"',
        {**REPOSITORY, "title": "The handle is loose"},
    ),
    Task(
        "milestones",
        (
            "list milestones",
            "which milestones does a repository have",
            "milestones of a repository",
        ),
        'GET /repos/octo/spoon/milestones"',
        REPOSITORY,
    ),
    Task(
        "assignees",
        (
            "list assignees",
            "who can be assigned to issues of a repository",
            "available assignees of a repository",
        ),
        'GET /repos/octo/spoon/assignees"',
        REPOSITORY,
    ),
    Task(
        "tags",
        ("list repository tags", "which tags does a repository have", "tags of a repository"),
        'GET /repos/octo/spoon/tags"',
        REPOSITORY,
    ),
    Task(
        "one branch",
        ("get a branch", "show one branch of a GitHub repository", "details of a branch on GitHub"),
        'GET /repos/octo/spoon/branches/main"',
        {**REPOSITORY, "branch": "main"},
    ),
    Task(
        "releases",
        ("list releases", "which releases does a repository have", "all releases of a repository"),
        'GET /repos/octo/spoon/releases"',
        REPOSITORY,
    ),
    Task(
        "topics",
        (
            "get all repository topics",
            "what topics does a repository have",
            "topics of a repository",
        ),
        'GET /repos/octo/spoon/topics"',
        REPOSITORY,
    ),
    Task(
        "unlock an issue",
        (
            "unlock an issue",
            "allow comments on a locked issue again",
            "unlock the conversation of an issue",
        ),
        'DELETE /repos/octo/spoon/issues/42/lock"',
        {**REPOSITORY, "issue number": 42},
    ),
    Task(
        "a search in code",
        (
            "search code",
            "find code on GitHub by keywords",
            "search the code of GitHub repositories",
        ),
        "GET /search/code",
        {"q": "teapot"},
    ),
    Task(
        "delete a gist",
        ("delete a gist", "remove a gist", "throw a gist away"),
        'DELETE /gists/a1b2"',
        {"gist id": "a1b2"},
    ),
    Task(
        "webhooks",
        (
            "list repository webhooks",
            "which webhooks does a repository have",
            "webhooks of a repository",
        ),
        'GET /repos/octo/spoon/hooks"',
        REPOSITORY,
    ),
    Task(
        "a new label",
        (
            "create a label",
            "add a label to the labels of a repository",
            "define a new label for a repository",
        ),
        'POST /repos/octo/spoon/labels"',
        {**REPOSITORY, "name": "urgent"},
    ),
    Task(
        "one commit",
        (
            "show the contents of a commit",
            "git show of a revision",
            "what did a commit change in a local repository",
        ),
        r"\+apple",
        {**GARDEN, "revision": "HEAD"},
    ),
    Task(
        "difference to a branch",
        (
            "differences between branches",
            "git diff against a branch",
            "compare the working copy with another branch",
        ),
        r"\+quince",
        {**GARDEN, "target": "south-wall"},
    ),
    Task(
        "a new branch",
        ("create a git branch", "make a new branch in a local repository", "start a branch in git"),
        r"Created branch 'north\d",
        {**GARDEN, "branch name": "north#"},
    ),
    Task(
        "nodes by name",
        (
            "open nodes of the knowledge graph by their names",
            "get specific nodes of the knowledge graph",
            "show the nodes with these names",
        ),
        "red lamp",
        {"names": ["lighthouse"]},
    ),
    Task(
        "new observations",
        (
            "add observations to an entity of the knowledge graph",
            "store a new observation on an entity",
            "add observations to the knowledge graph",
        ),
        r"seen from \d+ miles",
        {"observations": [{"entityName": "lighthouse", "contents": ["seen from # miles"]}]},
    ),
    Task(
        "several files at once",
        (
            "read multiple files",
            "show the content of several files at once",
            "read these files together",
        ),
        r"cat\..*zeppelin",
        {"paths": ["~/notes/monday.txt", "~/notes/tuesday.txt"]},
    ),
    Task(
        "files by pattern",
        (
            "find files whose name matches a pattern",
            "search for files by name in a directory",
            "recursively find files by pattern",
        ),
        r"sales\.csv",
        {"path": "~", "pattern": "*.csv"},
    ),
    Task(
        "allowed directories",
        (
            "list the allowed directories",
            "which directories may the file server access",
            "directories that are accessible",
        ),
        "Allowed directories",
    ),
    Task(
        "an echo",
        ("echo a message", "send a message back", "repeat this message as an echo"),
        "Echo: cuckoo",
        {"message": "cuckoo"},
    ),
    Task(
        "one of several values",
        (
            "get an annotated message",
            "message with annotations of a type",
            "annotated message by its type",
        ),
        "Error: Operation failed",
        {"message type": "error"},
    ),
    Task(
        "facts about a file",
        ("size of a file", "when was a file modified", "facts about a file"),
        r"\b14\b.*20\d\d-|20\d\d-.*\b14\b",
        {"path": "notes/monday.txt"},
    ),
    Task(
        "the time of this machine",
        ("what time is it now", "current time of this machine", "the time and the UTC offset here"),
        r"20\d\d-\d\d-\d\dT\d\d:\d\d",
    ),
    Task(
        "a misspelled tool of a bundle",
        ("look a person up", "person by id", "who is this person"),
        "Quill-7701",
        {"person id": "1077"},
        first="office.persn(person_id='1077')",
    ),
    Task(
        "a guess at a name without its prefix",
        (
            "show the working tree status",
            "git status of a repository",
            "status of a git repository",
        ),
        "On branch",
        GARDEN,
        first="git.status()",
    ),
    Task(
        "a guess at a name in another order",
        ("list the commits of a repository", "commits of a repository", "list repository commits"),
        'GET /repos/octo/spoon/commits"',
        REPOSITORY,
        first="github.list_commits(owner='octo', repo='spoon')",
    ),
    Task(
        "a guess at a part of a name",
        ("search the knowledge graph", "find something in the knowledge graph", "look up a node"),
        "red lamp",
        {"query": "lighthouse"},
        first="memory.search(query='lighthouse')",
    ),
    Task(
        "a guess at a name with other words",
        ("get a pull request", "show a pull request by its number", "details of one pull request"),
        'GET /repos/octo/spoon/pulls/7"',
        {**REPOSITORY, "pull number": 7},
        first="github.get_pull_request(owner='octo', repo='spoon', pull_number=7)",
    ),
    Task(
        "a pack and a tool that do not exist",
        ("weather in a city", "temperature and humidity in a city", "structured weather of a city"),
        r'"humidity":\s*\d',
        {"city": "Chicago"},
        first="weather.forecast(city='Chicago')",
    ),
)
