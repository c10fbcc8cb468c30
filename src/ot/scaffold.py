"""What `onetool init` and `ot.scaffold` write: a configuration to fill in, and an extension pack to start from.

Files that exist are left as they are.
"""

import os
from keyword import iskeyword
from pathlib import Path

from ot.errors import ToolError

EXAMPLE_PACK = "hello"
EXTENSION = '''\
# /// script
# requires-python = ">=3.11"
# dependencies = ["humanize"]   # packages from PyPI, installed for this file alone
# ///
"""An example pack. Edit it and call it again: nothing has to be restarted."""

import datetime as dt

import humanize  # from the dependencies above

# What these tools need to be allowed: some of "read", "write", "exec", "network".
permissions = []


def greet(name: str, loud: bool = False) -> str:
    """Greet somebody.

    Args:
        name: Who.
        loud: In capital letters.

    Example:
        {pack}.greet(name="Ada")
    """
    text = f"Hello, {{name}}!"
    return text.upper() if loud else text


def since(day: dt.date) -> dict[str, object]:
    """How long ago a day was, in words.

    Args:
        day: A day like 2024-02-29.

    Example:
        {pack}.since(day="2024-02-29")
    """
    return {{"day": day, "in_words": humanize.naturaldelta(dt.date.today() - day)}}
'''
CONFIGURATION = """\
# OneTool, for this folder. All keys are optional; what is commented out shows the default or an example.

aliases: {}
#  hi: hello.greet                     # hi(name="Ada") in a run

snippets: {}
#  greet_all:
#    description: Greet several people
#    params:
#      names: {description: "Names with commas between them"}
#    body: |
#      [hello.greet(name=name.strip()) for name in "{{ names }}".split(",")]

#projects: {}                          # docs: ~/projects/docs         proj.docs / "README.md"
#prompts: {instructions: "", packs: {}}   # words for the model, in general and on a pack
#tools: {}                             # hello: {timeout: 10, secrets: [API_KEY], anything: else}    per pack
#execution: {timeout: 120, memory_mb: 512, max_tool_calls: 1000, isolation: auto}
#workers: {idle_timeout: 600, start_timeout: 120, call_timeout: 60}
#output: {max_inline_size: 50000, preview_lines: 10, result_ttl: 3600, sanitize: false}
#stats: {enabled: true, round_trip_ms: 4000}
#notify: {topics: []}                  # [{pattern: "notes", file: notes.yaml}]

# What a client may do. Writing and executing are granted here, line by line.
#agents:
#  default: {permissions: [read, network], sandbox: {enabled: true}}
"""
NOT_FOR_GIT = """\
secrets.yaml
cache/
environments/
logs/
stats/
tmp/
"""


def write_folder(folder: Path) -> list[Path]:
    """Make `.onetool/`; the files that were written."""
    files = {
        folder / "onetool.yaml": CONFIGURATION,
        folder / ".gitignore": NOT_FOR_GIT,
        extension_file(folder, EXAMPLE_PACK): EXTENSION.format(pack=EXAMPLE_PACK),
    }
    return [file for file, text in files.items() if _written(file, text)]


def write_extension(folder: Path, pack: str) -> Path:
    if not pack.isidentifier() or iskeyword(pack):
        raise ToolError(f"{pack!r} is no name for a pack; take letters, digits and _, like my_pack")
    file = extension_file(folder, pack)
    if not _written(file, EXTENSION.format(pack=pack)):
        raise ToolError(f"{file} is there already; edit it, or choose another name")
    return file


def extension_file(folder: Path, pack: str) -> Path:
    return folder / "tools" / pack / f"{pack}_tools.py"


def _written(file: Path, text: str) -> bool:
    """False where there is such a file already."""
    if os.path.lexists(file):
        return False
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as new:
            new.write(text)
    except OSError as error:
        raise ToolError(f"{file} cannot be written: {error.strerror or error}") from None
    return True
