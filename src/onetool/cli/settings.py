"""Commands that change settings: settings, agents, hosts, secret and token."""

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from onetool.cli.command import Actions, Command, add_edit_options, choose_stream
from onetool.cli.invocation import Invocation
from onetool.cli.terminal import format_list
from onetool.errors import ArgumentError, ToolError
from onetool.util.invisible import escape_invisible
from onetool.util.text import quote
from onetool.util.token_ids import SCOPES
from onetool_child.json_types import JsonObject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onetool.admin.agents import AgentInfo
    from onetool.admin.secrets import SecretInfo
    from onetool.admin.settings import SettingsChange
    from onetool.admin.tokens import TokenInfo

EXIT_STATUS = {"allow": 0, "ask": 3, "deny": 1}
HEADINGS = ("NAME", "AGENT", "SCOPE", "CREATED", "EXPIRES", "LAST USED")
ACCEPTED = "Running servers accept it within 2 seconds."
REJECTED = "Running servers reject it within 2 seconds and end its open streams."


# --- settings -------------------------------------------------------------------------------------


# --- settings -------------------------------------------------------------------------------------


def _add_settings_arguments(parser: ArgumentParser) -> None:
    actions = Actions(parser)
    actions.add("history", _list_changes, "Show the last changes, newest first")
    undo = actions.add("undo", _undo, "Undo a change, by default the last one")
    undo.add_argument(
        "change",
        nargs="?",
        default="",
        metavar="ID",
        help="ID of the change, as `history` shows it",
    )
    undo.add_argument("--yes", action="store_true", help="undo it without a question")
    add_edit_options(undo)


async def _list_changes(command: Invocation) -> None:
    from onetool.admin.settings import list_changes

    changes = (await command.do(list_changes)).changes
    data = {"changes": [{"undoes": "", **change.model_dump()} for change in changes]}
    empty = "No changes yet. `onetool servers add` and `onetool agents set` are changes."
    command.show(data, map(_render_change, changes), empty)


def _render_change(change: "SettingsChange") -> str:
    files = f" in {', '.join(change.paths)}" if change.paths else ""
    heading = (
        f"{change.id}  {change.at}  {change.action} {', '.join(change.names)}  by"
        f" {change.actor}{files}"
    )
    return "\n".join([heading, *(f"    {line}" for line in change.difference.splitlines())])


async def _undo(command: Invocation) -> None:
    """Undo a change, after a question that shows it and names its files."""
    from onetool.admin.settings import list_changes, undo_change
    from onetool.cli.trust import confirm

    options = command.options
    changes = (await command.do(list_changes)).changes
    if not changes:
        raise ToolError("no change to undo: the history is empty")
    last = next((change for change in changes if change.can_undo), changes[0])
    change_id = options.change or last.id
    selected = [change for change in changes if change.id == change_id and change.can_undo]
    if selected and not (options.yes or options.dry_run):
        stream = choose_stream(options)
        stream.write(escape_invisible(f"{_render_change(selected[0])}\n"))
        if not confirm(f"Undo this change of {', '.join(selected[0].paths)}? [y/N] ", stream):
            raise ToolError(
                "nothing was undone: not confirmed", hint="use --yes to undo it without a question"
            )
    edited = await command.do(undo_change, change_id, command.edit_query)
    command.show_edit(edited)


# --- agents ---------------------------------------------------------------------------------------


def _add_agents_arguments(parser: ArgumentParser) -> None:
    actions = Actions(parser)
    actions.add("list", _list_agents, "List agents and their permissions")
    _check_agents = actions.add(
        "check", _check, "Show whether an agent may make a call, without making it"
    )
    change = actions.add("set", _set_agent, "Create an agent, or change its settings")
    remove = actions.add("remove", _remove, "Remove an agent from the settings")
    _check_agents.add_argument(
        "call", metavar="CALL", help="the call as code, such as 'fs.read(path=\"a.txt\")'"
    )
    _check_agents.add_argument(
        "--agent", default="default", metavar="NAME", help="name of the agent (default: default)"
    )
    change.add_argument("name", metavar="NAME", help="name of the agent")
    change.add_argument(
        "values",
        nargs="+",
        metavar="KEY=VALUE",
        help=(
            "setting and value, such as 'permissions=[read, network]', budgets.calls=100 or"
            " tools=null to unset it"
        ),
    )
    remove.add_argument("name", metavar="NAME", help="name of the agent")
    add_edit_options(change, chooses_file=True)
    add_edit_options(remove)


def _check_agents(options: Namespace) -> None:
    if options.action == "check":
        from onetool.admin.agents import parse_call

        try:
            parse_call(options.call)
        except ArgumentError as error:
            options.usage_error(error.message)


async def _list_agents(command: Invocation) -> None:
    from onetool.admin.agents import get_agent, list_agents

    agents = (await command.do(list_agents)).agents
    details = [await command.do(get_agent, agent.name) for agent in agents]
    command.show(
        {"agents": [{"name": agent.name, **agent.effective} for agent in details]},
        map(_render_agent, agents),
    )


def _render_agent(agent: "AgentInfo") -> str:
    tools = "all tools" if agent.tools is None else f"tools {', '.join(agent.tools) or 'none'}"
    hosts = "" if agent.hosts is None else f", hosts {', '.join(agent.hosts) or 'none'}"
    policy = agent.policy if isinstance(agent.policy, str) else f"{len(agent.policy)} rules"
    return (
        f"{agent.name}  [{', '.join(sorted(agent.permissions))}], {tools}{hosts}, policy {policy}"
    )


async def _check(command: Invocation) -> int:
    from onetool.admin.agents import CallCheck, check_call

    agent = command.options.agent
    verdict = await command.do(check_call, agent, CallCheck.parse({"call": command.options.call}))
    data = verdict.model_dump(include={"decision", "reason", "tool", "effects", "note"})
    details = (f"{name}: {data[name]}" for name in ("tool", "effects", "note") if data[name])
    command.show({**data, "agent": agent}, [f"{verdict.decision}: {verdict.reason}", *details])
    return EXIT_STATUS[verdict.decision]


async def _set_agent(command: Invocation) -> None:
    from onetool.admin.agents import change_agent
    from onetool.admin.settings_edits import SettingsPatch

    patch = SettingsPatch(settings=_read_patch(command.options.values))
    query = command.edit_query
    edited = await command.do(
        change_agent, command.options.name, query=query, body=patch, directory=command.directory
    )
    command.show_edit(edited)


def _read_patch(texts: list[str]) -> JsonObject:
    """Return a JSON merge patch from values of dotted keys.

    Values are YAML, as in the settings file.
    """
    from onetool.util import yaml_loader

    patch: JsonObject = {}
    for text in texts:
        key, equals, value = text.partition("=")
        *parents, last = key.split(".")
        if not equals or not all([*parents, last]):
            raise ToolError(
                f"invalid setting {quote(text)}: expected KEY=VALUE, such as policy=read-only"
            )
        inner = patch
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = yaml_loader.read(value, key).data if value.strip() else ""
    return patch


async def _remove(command: Invocation) -> None:
    from onetool.admin.agents import remove_agent

    edited = await command.do(remove_agent, command.options.name, command.edit_query)
    command.show_edit(edited)


# --- hosts ----------------------------------------------------------------------------------------


def _add_hosts_arguments(parser: ArgumentParser) -> None:
    actions = Actions(parser)
    actions.add("list", _list_hosts, "List the allowed hosts")
    add = actions.add("add", _change, "Allow hosts")
    remove = actions.add("remove", _change, "No longer allow hosts")
    for change in (add, remove):
        change.add_argument(
            "hosts", nargs="+", metavar="HOST", help="such as api.example.com or *.example.com"
        )
    add_edit_options(add, remove)


async def _list_hosts(command: Invocation) -> None:
    from onetool.admin.settings import list_hosts

    hosts = (await command.do(list_hosts)).hosts
    command.show({"hosts": hosts}, hosts, "No allowed hosts. To allow one: onetool hosts add HOST")


async def _change(command: Invocation) -> None:
    from onetool.admin.settings import HostChanges, change_hosts

    changes = HostChanges.parse({command.options.action: command.options.hosts})
    edited = await command.do(change_hosts, command.edit_query, changes)
    command.show_edit(edited)


# --- secret ---------------------------------------------------------------------------------------


def _add_secret_arguments(parser: ArgumentParser) -> None:
    actions = Actions(parser)
    actions.add("list", _list_secrets, "List the names of secrets, and what uses them")
    setting = actions.add("set", _set_secret, "Set a secret, from a prompt or from standard input")
    delete = actions.add("delete", _delete, "Delete a secret")
    allow = actions.add("allow", _allow, "Let tools of a bundle send a secret to an origin")
    disallow = actions.add(
        "disallow", _allow, "No longer let tools of a bundle send a secret to an origin"
    )
    for action in (allow, disallow):
        action.add_argument("name", metavar="NAME", help="name of the secret")
        action.add_argument("--bundle", metavar="SLUG", required=True, help="name of the bundle")
        action.add_argument(
            "--host", metavar="ORIGIN", required=True, help="such as https://api.example.com"
        )
    add_edit_options(allow, disallow)
    for action in (setting, delete):
        action.add_argument("name", metavar="NAME", help="name of the secret, such as GITHUB_TOKEN")
    add_edit_options(setting, delete, chooses_file=True)


async def _list_secrets(command: Invocation) -> None:
    from onetool.admin.secrets import list_secrets

    secrets = (await command.do(list_secrets)).secrets
    data = {"secrets": [secret.as_json() for secret in secrets]}
    lines = (line for secret in secrets for line in _describe(secret))
    command.show(data, lines, "No secrets. To set one: onetool secret set NAME")


def _describe(secret: "SecretInfo") -> "Iterator[str]":
    yield f"{secret.name}  {', '.join(secret.files)}"
    if secret.used_by:
        yield f"  used by {', '.join(f'{user.kind} {user.name}' for user in secret.used_by)}"


async def _set_secret(command: Invocation) -> None:
    from onetool.admin.secrets import SecretValue, set_secret
    from onetool.settings.planned_edit import check_secret_name

    name = command.options.name
    check_secret_name(name)
    value = SecretValue.parse({"value": _read_value(name)})
    edited = await command.do(
        set_secret, name, command.edit_query, value, directory=command.directory
    )
    command.show_edit(edited)


async def _delete(command: Invocation) -> None:
    from onetool.admin.secrets import delete_secret

    name = command.options.name
    edited = await command.do(delete_secret, name, command.edit_query, directory=command.directory)
    command.show_edit(edited)


async def _allow(command: Invocation) -> None:
    from onetool.admin.secrets import SecretUseInfo, set_secret_use

    options = command.options
    use = SecretUseInfo(
        bundle=options.bundle,
        name=options.name,
        origin=options.host,
        is_allowed=options.action == "allow",
    )
    edited = await command.do(set_secret_use, command.edit_query, use)
    command.show_edit(edited)


def _read_value(name: str) -> str:
    """Read the value from the terminal without showing it, or from standard input."""
    if sys.stdin.isatty():
        import getpass

        value = getpass.getpass(f"Value of {name}: ")
    else:
        value = sys.stdin.read().removesuffix("\n").removesuffix("\r")
    if not value:
        raise ToolError(
            f"the value of {quote(name)} is empty", hint=f"onetool secret set {name} < FILE"
        )
    return value


# --- token ----------------------------------------------------------------------------------------


def _add_token_arguments(parser: ArgumentParser) -> None:
    actions = Actions(parser)
    create = actions.add("create", _create_token, "Create a token and print it once")
    actions.add("list", _list_tokens, "List tokens and their last use")
    revoke = actions.add("revoke", _revoke_token, "Revoke a token")
    create.add_argument("name", metavar="NAME", help="name of the token, such as laptop")
    create.add_argument(
        "--agent",
        default="default",
        metavar="AGENT",
        help="agent for clients that use the token (default: default)",
    )
    create.add_argument(
        "--scope",
        choices=SCOPES,
        default="use",
        help=(
            "what the token may do: use tools (the default), only approve calls, admin to manage,"
            " or owner for all"
        ),
    )
    create.add_argument(
        "--expires",
        metavar="DURATION",
        help="time after which the token is rejected, such as 12h or 30d (default: never)",
    )
    revoke.add_argument("name", metavar="NAME", help="name of the token")


async def _create_token(command: Invocation) -> None:
    """Print only the token to standard output, for scripts, and explanations to standard error."""
    from onetool.admin.tokens import TokenDraft, create_token

    draft = TokenDraft.parse(
        {name: getattr(command.options, name) for name in TokenDraft.model_fields}
    )
    new = await command.do(create_token, draft)
    place = command.app.state.tokens.place
    command.show(
        {**new.model_dump(exclude={"notes"}), "file": place, "notes": new.notes}, [new.token]
    )
    if command.options.json:
        return
    owner = "of scope approve" if new.scope == "approve" else f"for agent {new.agent}"
    scope = f" and scope {new.scope}" if new.scope in {"admin", "owner"} else ""
    lines = [
        f"Created token {new.name} {owner}{scope}. It is not shown again; {place} stores its hash.",
        f"Clients send it as `Authorization: Bearer TOKEN`. {ACCEPTED}",
        *([f"It expires at {new.expires}."] if new.expires is not None else []),
        *(f"Note: {note}" for note in new.notes),
    ]
    command.output.error("\n".join([*lines, ""]))


async def _list_tokens(command: Invocation) -> None:
    from onetool.admin.tokens import list_tokens

    tokens = (await command.do(list_tokens)).tokens
    data = {"tokens": [token.model_dump(exclude={"can_revoke"}) for token in tokens]}
    empty = "No tokens exist. To create one: onetool token create NAME --agent default"
    command.show(data, format_list(HEADINGS, map(_format_token, tokens)), empty)


def _format_token(token: "TokenInfo") -> tuple[str, ...]:
    variable = f" (${token.token_env})" if token.token_env else ""
    expires = f"{token.expires or 'never'}{' (expired)' if token.is_expired else ''}"
    created = token.created or "unknown"
    return (
        f"{token.name}{variable}",
        token.agent,
        token.scope,
        created,
        expires,
        token.last_used or "never",
    )


async def _revoke_token(command: Invocation) -> None:
    from onetool.admin.tokens import revoke_token

    revoked = await command.do(revoke_token, command.options.name)
    place = command.app.state.tokens.place
    command.show(
        {**revoked.model_dump(), "file": place},
        [f"Revoked token {revoked.revoked} in {place}. {REJECTED}"],
    )


COMMANDS = {
    "settings": Command(
        "Show the last changes of the settings, made by commands and in the admin UI, and undo them."
        "\n\nChanges of other projects are not shown.",
        _add_settings_arguments,
        local_actions={"undo"},  # it asks
    ),
    "agents": Command(
        "Show agents and what they may call, and change their settings.",
        _add_agents_arguments,
        check=_check_agents,
    ),
    "hosts": Command("List, add and remove the hosts that tools may call.", _add_hosts_arguments),
    "secret": Command(
        "Manage the secrets in secrets.yaml, or in the store.\n\n"
        "Values are read from a prompt or standard input, never shown.",
        _add_secret_arguments,
        local_actions={"set"},  # it asks for the value
    ),
    "token": Command(
        "Manage tokens for HTTP clients. Only their hashes are stored.", _add_token_arguments
    ),
}
