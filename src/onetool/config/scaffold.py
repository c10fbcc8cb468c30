"""What `onetool init` and `ot.scaffold` write: a configuration to fill in, and an extension pack to start from.

Files that exist are left as they are.
"""

import os
from keyword import iskeyword
from pathlib import Path

from onetool.errors import ToolError
from onetool.util import atomic

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
## OneTool, for this folder. Nothing here has to be set.
##
## Lines with one # are the settings with their defaults: take the # away, with those of the lines above that it
## belongs to, and change the value. Lines with two ## are words and examples. `onetool doctor` says whether all is
## right, and running servers reload changes; `onetool reload` shows what they say. Secrets go into secrets.yaml beside
## this file, and are written here as ${NAME}.

#version: 1                        # of the format of this file

## --- Names of your own ------------------------------------------------------------------------------------------

#aliases: {}                       # short names for tools
##   hi: hello.greet               hi(name="Ada") in a run

#snippets: {}                      # code with blanks, run as `$name key=value`
##   greet_all:
##     description: Greet several people
##     params:
##       names: {description: "Names with commas between them", default: "Ada, Bob"}
##     body: |
##       [hello.greet(name=name.strip()) for name in "{{ names }}".split(",")]

#projects: {}                      # folders that may be read too: proj.docs / "README.md" in a run
##   docs: ~/projects/docs

## --- Tools ------------------------------------------------------------------------------------------------------

#servers: {}                       # MCP servers whose tools become packs; `onetool import CLIENT` takes them over
##   github:                       github.list_issues(...) in a run
##     command: npx                the program to start, or url: for one that is reached over HTTP
##     args: ["-y", "@modelcontextprotocol/server-github"]
##     env: {GITHUB_TOKEN: "${GITHUB_TOKEN}"}
##     cwd: project                start in the working directory; in ~/.onetool a server has its own directory
##     enabled: true
##     timeout: 30                 seconds after which a call is given up
##     idle_timeout: 600           seconds without a call after which it is stopped
##     tools: {include: [], exclude: ["delete_*"]}
##     pin: warn                   when a tool's definition changes: warn, strict (refuse) or off
##     sanitize: false             true: mark what it says as foreign and take traps out
##   dashboard:
##     url: https://example.com/mcp
##     headers: {Authorization: "Bearer ${DASHBOARD_TOKEN}"}
##     transport: http             or sse, for an older one

#tools: {}                         # settings of packs; other keys are the pack's own, ot.settings in its file
##   hello:
##     timeout: 10                 seconds after which a call is given up
##     permissions: [read]         what its tools need, instead of what the file says
##     secrets: [API_KEY]          names in secrets.yaml that it gets as variables
##     sandbox: {enabled: true, allowed_paths: [data], denied_patterns: ["*.key"]}
##     cost_per_call: 0            what a call counts in the cost of a budget

#tools_dir: []                     # more folders with packs like tools/hello/hello_tools.py

#http:                             # which hosts http.get and stored tools may call
#  allowedHosts: []                # api.example.com, *.example.com, localhost:8080
#  allowPrivateAddresses: false    # true: those may be on your own network or machine
#  timeoutMs: 10000
#  maxResponseBytes: 10485760
#  retries: 2                      # where asking twice does no harm

#bundles:                          # stored tools; `onetool import FILE` makes them of an OpenAPI document
#  dir: bundles                    # in the folder of this file
#  maxTools: 100000

## --- Who may do what ----------------------------------------------------------------------------------------------

#agents:                           # `default` is every client that is no other agent
#  default:
#    permissions: [read, network]  # and write, exec: granted here and nowhere else
#    tools:                        # the only ones that it may call, like [machine, "github.list_*"]; empty: all
#    sandbox:                      # which files its calls may touch
#      enabled: true
#      allowed_paths: []           # folders; the working folder where it is empty
#      denied_patterns: []         # names that may not be used, wherever they are
#    budgets:                      # from the start of the server; empty: no end
#      time_seconds:
#      calls:
#      tokens:                     # of all results, estimated
#      cost:                       # the sum of cost_per_call
#      permissions:                # the same as `permissions` above; write one of them
#    tool_config: {}               # arguments for calls that give none, like {fs.read: {max_size: 10000}}
#    clients: []                   # MCP clients that are this agent, by the names they give themselves

#auth:                             # who may come over HTTP from elsewhere; `onetool token create NAME` writes it
#  tokens: []
##   - {name: laptop, hash: "...", agent: default}
##   - {name: ci, token_env: CI_TOKEN}   the token itself stands in a variable
#  allowed_hosts: []               # host names of a reverse proxy, such as [tools.example.com]; they need a token

#audit:
#  file: logs/audit.jsonl          # calls that write, execute or use the network
#  max_bytes: 104857600            # size at which it is rotated
#  keep: 10                        # rotated files that are kept

## --- What the model is told ---------------------------------------------------------------------------------------

#prompts:
#  instructions: ""                # for every client that connects
#  packs: {}                       # on a pack, shown by ot.help: {hello: "Use it for greetings"}

#output:                           # what of a result is shown
#  max_inline_size: 50000          # bytes up to which it is shown whole; 0 for no limit
#  preview_lines: 10               # of the summary of a large result
#  result_ttl: 3600                # seconds for which a large result is kept
#  max_stored_bytes: 1073741824    # disk space of all of them; the oldest go first
#  max_stored_bytes_per_agent: 268435456
#  sanitize: false                 # true: mark every answer as foreign and take traps out

#notify:
#  topics: []                      # where ot.notify writes: [{pattern: "notes", file: notes.yaml}]
#  per_minute: 60                  # messages of one agent
#  max_file_bytes: 10485760        # a larger file takes no more messages

#docs_url: https://onetool.beycom.online/reference/tools/

## --- Limits and records -------------------------------------------------------------------------------------------

#execution:                        # of a run
#  timeout: 120                    # seconds
#  memory_mb: 512
#  max_tool_calls: 1000
#  max_command_bytes: 1000000      # how long the code may be
#  max_output_bytes: 104857600
#  isolation: auto                 # require: no run without all that confines code; off: a plain process
#  cells: 2                        # processes that wait for a run

#limits:                           # of clients over HTTP
#  running: 8                      # runs of one agent at the same time; more wait for their turn
#  total: 32                       # runs of all agents at the same time
#  waiting: 128                    # runs or calls of one agent that may wait; more are rejected with status 429

#workers:                          # processes of packs of your own
#  idle_timeout: 600               # seconds without a call after which one is stopped
#  start_timeout: 120
#  call_timeout: 60

#stats:                            # `onetool stats` shows them
#  enabled: true
#  keep_days: 365                  # days for which a recorded call is kept
#  round_trip_ms: 4000             # what one turn of a model is taken to last, for the time saved

#log_level: INFO                   # DEBUG, INFO, WARNING, ERROR or CRITICAL
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
    """False where there is such a file already, also one that somebody else makes this very moment."""
    if os.path.lexists(file):
        return False
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic.replacing(file, keep=True) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        if isinstance(error, FileExistsError) and os.path.lexists(file):
            return False
        raise ToolError(f"{file} cannot be written: {error.strerror or error}") from None
    return True
