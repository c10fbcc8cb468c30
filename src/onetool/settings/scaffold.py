"""Templates that `onetool init` and `ot.scaffold` write: a commented settings file and an example
extension pack.

Existing files are not changed.
"""

import os
from keyword import iskeyword
from pathlib import Path

from onetool.errors import ToolError
from onetool.util import atomic
from onetool.util.text import quote

EXAMPLE_PACK = "hello"
EXTENSION = '''\
# /// script
# requires-python = ">=3.11"
# dependencies = ["humanize"]   # packages from PyPI, installed for this file alone
# ///
"""An example pack. Edit it and call it again; no restart is needed."""

import datetime as dt

import humanize  # from the dependencies above
from onetool import ToolError, tool

# The permissions that these tools require: any of "read", "write", "exec", "network".
permissions = []


# The effects of a call: any of "read", "write", "exec", "external". Without this, it may write and send data out.
@tool(effects=["read"])
def greet(name: str, loud: bool = False) -> str:
    """Greet a person.

    Args:
        name: Name of the person.
        loud: Whether to use capital letters.

    Example:
        >>> {pack}.greet(name="Ada")
        'Hello, Ada!'
    """
    text = f"Hello, {{name}}!"
    return text.upper() if loud else text


@tool(effects=["read"])
def since(day: dt.date) -> dict[str, object]:
    """Return how long ago a day was, in words.

    Args:
        day: A date such as 2024-02-29.

    Example:
        {pack}.since(day="2024-02-29")
    """
    if day > dt.date.today():
        raise ToolError(f"day is in the future: {{day}}")
    return {{"day": day, "in_words": humanize.naturaldelta(dt.date.today() - day)}}
'''
CONFIGURATION = """\
## OneTool settings for this directory. All of them are optional.
##
## Lines with one # are settings with their default values. To change one, uncomment it and its parent keys. Lines with
## two ## are explanations and examples. `onetool doctor` checks this file. Running servers reload it when it changes;
## `onetool reload` shows their responses. Store secrets with `onetool secret set NAME` and refer to them here as
## ${NAME}.

#version: 1                        # version of the file format

## --- Aliases, snippets, projects ---------------------------------------------------------------------------------

#aliases: {}                       # short names for tools
##   hi: hello.greet               hi(name="Ada") in a run

#snippets: {}                      # code templates, run as `$name key=value`
##   greet_all:
##     description: Greet several people
##     params:
##       names: {type: string, description: "Comma-separated names", default: "Ada, Bob"}
##     body: |
##       [hello.greet(name=name.strip()) for name in "{{ names }}".split(",")]

#projects: {}                      # more readable directories: proj.docs / "README.md" in a run
##   docs: ~/projects/docs

## --- Tools ------------------------------------------------------------------------------------------------------

#servers: {}                       # upstream MCP servers; `onetool import CLIENT` adds those of an assistant
##   github:                       github.list_issues(...) in a run
##     command: npx                command that starts the server, or url: for a server over HTTP
##     args: ["-y", "@modelcontextprotocol/server-github"]
##     env: {GITHUB_TOKEN: "${GITHUB_TOKEN}"}
##     cwd: project                start in the working directory; servers of ~/.onetool start in a private one
##     enabled: true
##     timeout: 30                 timeout of a start or a call, in seconds
##     idle_timeout: 600           seconds without a call after which the server is stopped
##     tools: {include: [], exclude: ["delete_*"]}
##     expose: code                code, direct, both or auto; see below
##     pin: warn                   when a tool definition changes: warn, strict (reject calls) or off
##     sanitize: false             true: mark results as untrusted and remove prompt injections
##     stateful: false             true: it keeps state of one client, so clients do not share it
##     shared: true                false: a process per project, also if its settings are the same
##   dashboard:
##     url: https://example.com/mcp
##     headers: {Authorization: "Bearer ${DASHBOARD_TOKEN}"}
##     transport: http             or sse, for older servers
##   gh:
##     url: https://example.com/mcp
##     auth: oauth                 then run: onetool login gh
##     accounts: [work, home]      ot.account("gh", "home").whoami() in a run

#expose: code                      # how clients see tools of servers, extensions and bundles: through run (code), as
##                                 tools of their own (direct), both, or both while they are few (auto)

#tools: {}                         # settings by pack; the pack reads other keys as ot.settings
##   hello:
##     timeout: 10                 timeout of a call, in seconds
##     permissions: [read]         permissions that its tools require, instead of those in the file
##     secrets: [API_KEY]          secrets that its worker receives as environment variables
##     sandbox: {enabled: true, allowed_paths: [data], denied_patterns: ["*.key"]}
##     cost_per_call: 0            cost of a call, counted against budgets
##     effects: {greet: read}      effects by tool or pattern: any of [read, write, exec, external]
##     idempotent: [greet]         tools or patterns whose calls may be repeated without harm
##     labels: {greet: private}    for the policy guarded: [private, untrusted], or [] for neither
##     shared: true                false: projects do not share its worker
##     queue: gpu                  workers of this queue make its calls: onetool worker --queue gpu; only yours

#tools_dir: []                     # more directories with packs such as tools/hello/hello_tools.py
#disabled_packages: []             # installed packages whose packs are not used

#http:                             # outgoing HTTP requests of tools
#  allowedHosts: []                # api.example.com, *.example.com, localhost:8080
#  allowPrivateAddresses: false    # true: allow private and loopback addresses
#  timeoutMs: 10000
#  maxResponseBytes: 10485760
#  retries: 2                      # of idempotent requests

#store: files                     # or postgresql://user@host/database, for state that replicas share; only yours

#llm:                              # language model for llm.transform and ctx.llm; only in ~/.onetool/onetool.yaml
#  base_url:                       # https://api.openai.com/v1, http://localhost:11434/v1
#  model:
#  api_key:                        # ${secret:OPENAI_API_KEY}
#  sampling: false                 # true: without base_url, use the model of the MCP client if it supports sampling
#  timeout: 60                     # seconds
#  max_tokens: 4096                # of an answer
#  max_tokens_per_run: 100000      # of prompts and answers
#  max_tokens_per_day: 1000000
#  options: {}                     # more fields of each request, such as {temperature: 0}

#bundles:                          # HTTP tools; `onetool import FILE` creates them from an OpenAPI document
#  dir: bundles                    # relative to this directory
#  maxTools: 100000

#bundle_secrets: {}                # where tools of bundles may send secrets (onetool secret allow); only yours
##  weather: {WEATHER_KEY: [https://api.example.com]}

## --- Permissions --------------------------------------------------------------------------------------------------

#agents:                           # clients without another agent use `default`
#  default:
#    permissions: [read, network]  # also available: write, exec
#    tools:                        # allowed tools, such as [machine, "github.list_*"]; empty: all tools
#    hosts:                        # hosts that its HTTP tools may reach; empty: all of http.allowedHosts
#    sandbox:                      # file access of its calls
#      enabled: true
#      allowed_paths: []           # directories; the working directory if empty
#      denied_patterns: []         # patterns of file names that are denied everywhere
#    budgets:                      # counted from the start of the server; empty: no limit
#      time_seconds:
#      calls:
#      tokens:                     # in all results, estimated
#      cost:                       # sum of cost_per_call
#      permissions:                # alternative to `permissions` above; set only one of them
#    tool_config: {}               # default arguments by tool, such as {fs.read: {max_size: 10000}}
#    clients: []                   # names of MCP clients that use this agent over stdio
#    policy: open                  # calls that a person must approve, within the permissions above:
##                                   open: none; ask-writes: calls that write or execute; read-only: rejects these;
##                                   guarded: calls that send data out after reading private and untrusted data;
##                                   or a list of rules, of which the first that matches decides:
##   policy:
##     - {tools: "github.*", effect: write, arguments: {repo: "me/*"}, decision: allow}
##     - {effect: [write, exec], decision: ask}
#    approvals: {via: [client, app, ui, cli]}   # where people approve its calls; over HTTP, client needs this line

#approvals:                        # questions to people about calls; only in ~/.onetool/onetool.yaml
#  wait: 25                        # seconds for which a request waits for an answer before its run is paused
#  ttl: 86400                      # seconds after which a call that nobody approved expires
#  by: terminal                    # token: `onetool approve` always needs a token of scope approve
#  notify:                         # when a call waits
#    command: []                   # such as [notify-send, OneTool]
#    webhook:                      # URL that receives a POST request
#  record: false                   # record all runs with their results, for tests and snippets

#daemon:                           # the server that all your assistants share; only in ~/.onetool/onetool.yaml
#  shared: true                    # false starts one server for each assistant
#  idle: 600                       # seconds without clients after which it ends
#  http: false                     # whether it also serves HTTP and the admin UI

#auth:                             # HTTP clients on other machines; only in ~/.onetool/onetool.yaml
#  tokens: []                      # `onetool token create NAME` adds one
##   - {name: laptop, hash: "...", agent: default}
##   - {name: ci, token_env: CI_TOKEN}   token in an environment variable
##   - {name: phone, hash: "...", scope: approve}   scope: use (the default), approve, admin or owner
##   - {name: guest, hash: "...", created: 2027-01-01T12:00:00Z, expires: 2027-01-31T12:00:00Z}
#  issuers: []                     # OpenID providers whose JWTs are accepted
##   - issuer: https://id.example.com
##     audience: https://tools.example.com/mcp
##     algorithms: [RS256, PS256, ES256, EdDSA]
##     agent_claim: groups        # sub by default
##     agents: {engineers: default}
##     default_agent:             # for all others, who are rejected without it
##     scope: use                 # approve or admin
##     client_id: onetool         # for sign-in to the admin UI in a browser
##     client_secret: ${secret:SSO_SECRET}
##     scopes: [openid]
#  public_url:                     # under which browsers and clients reach this server, such as https://tools.example.com
#  trusted_proxies: []             # addresses of reverse proxies whose X-Forwarded-For names the client: [127.0.0.1]
#  allowed_hosts: []               # host names of a reverse proxy, such as [tools.example.com]; they need a token

#audit:                            # only in ~/.onetool/onetool.yaml
#  file: logs/audit.jsonl          # calls that write, execute or use the network
#  max_bytes: 104857600            # size at which the log is rotated
#  keep: 10                        # number of rotated logs to keep

## --- Instructions and results -------------------------------------------------------------------------------------

#prompts:
#  instructions: ""                # for the model, sent to every MCP client
#  packs: {}                       # by pack, shown by ot.help: {hello: "Use it for greetings"}

#output:
#  max_inline_size: 50000          # maximum bytes of a result shown in full; 0 for no limit
#  preview_lines: 10               # in the summary of a large result
#  result_ttl: 3600                # seconds for which a large result is stored
#  max_stored_bytes: 1073741824    # of all stored results; the oldest are removed first
#  max_stored_bytes_per_agent: 268435456
#  sanitize: false                 # true: mark every result as untrusted and remove prompt injections

#notify:
#  topics: []                      # files of ot.notify: [{pattern: "notes", file: notes.yaml}]
#  per_minute: 60                  # maximum number of messages per agent
#  max_file_bytes: 10485760        # maximum size of a file

#docs_url: https://onetool.beycom.online/reference/tools/

## --- Limits and records -------------------------------------------------------------------------------------------

#execution:                        # limits of a run
#  timeout: 120                    # seconds
#  memory_mb: 512
#  max_tool_calls: 1000
#  max_command_bytes: 1000000      # maximum size of the code
#  max_output_bytes: 104857600
##                                 isolation: only in ~/.onetool/onetool.yaml
#  isolation: auto                 # require: reject runs without isolation; wasm: WebAssembly; off: a plain process
#  cells: 2                        # number of processes kept ready for runs

#limits:                           # of HTTP clients
#  running: 8                      # concurrent runs per agent; further runs wait
#  total: 32                       # concurrent runs of all agents
#  waiting: 128                    # waiting runs or calls per agent; more are rejected with status 429

#workers:                          # worker processes of extension packs
#  idle_timeout: 600               # seconds without a call after which a worker is stopped
#  start_timeout: 120
#  call_timeout: 60
#  job_ttl: 86400                  # seconds for which jobs of queues are kept after they ended

#stats:                            # `onetool stats` shows them
#  enabled: true
#  keep_days: 365                  # days to keep recorded calls
#  round_trip_ms: 4000             # assumed duration of one model turn, to estimate the time saved

#runs:                             # arguments, results and printed output on the screen Runs
#  values: true
#  value_days: 7                   # days to keep them
#  max_value_bytes: 268435456      # the oldest are deleted first

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


def write_settings_directory(directory: Path) -> list[Path]:
    """Create `.onetool/` and return the files that were written."""
    files = {
        directory / "onetool.yaml": CONFIGURATION,
        directory / ".gitignore": NOT_FOR_GIT,
        extension_file(directory, EXAMPLE_PACK): EXTENSION.format(pack=EXAMPLE_PACK),
    }
    return [file for file, text in files.items() if _write_new(file, text)]


def write_extension(directory: Path, pack: str) -> Path:
    if not pack.isidentifier() or iskeyword(pack):
        raise ToolError(
            f"invalid pack name {quote(pack)}: expected letters, digits and _, such as my_pack"
        )
    file = extension_file(directory, pack)
    if not _write_new(file, EXTENSION.format(pack=pack)):
        raise ToolError(f"{file} already exists", hint="edit it, or choose another name")
    return file


def extension_file(directory: Path, pack: str) -> Path:
    return directory / "tools" / pack / f"{pack}_tools.py"


def _write_new(file: Path, text: str) -> bool:
    """Write the file unless it exists, even if another process creates it meanwhile; return whether
    it was written.
    """
    if os.path.lexists(file):
        return False
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic.replacing(file, keep=True) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        if isinstance(error, FileExistsError) and os.path.lexists(file):
            return False
        raise ToolError(f"cannot write {file}: {error.strerror or error}") from None
    return True
