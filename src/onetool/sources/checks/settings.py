"""Checks of the settings: unresolved or hidden names, and snippets and tokens that do not work."""

import time
from collections import Counter
from collections.abc import Iterator

from onetool.core.names import python_name
from onetool.core.policy.effects import is_declared
from onetool.core.policy.rules import Policy
from onetool.core.registry import Registry
from onetool.errors import ArgumentError, ToolError
from onetool.runs.snippets import expansion
from onetool.settings.load import Examined
from onetool.util.problem import WARNING, Problem
from onetool.util.text import pluralize, quote
from onetool_child.names import OWN_PACK, is_reserved


def problems(registry: Registry, read: Examined) -> Iterator[Problem]:
    yield from _check_aliases(registry, read)
    yield from _check_snippets(read)
    yield from _check_tokens(read)
    yield from _check_effects(registry, read)
    yield from _check_rules(registry, read)
    reserved = "has a name reserved by Python or OneTool, so"
    for pack in filter(is_reserved, registry.all_packs()):
        if pack != OWN_PACK:
            hint = f'call its tools with ot.pack("{pack}"), or rename it'
            yield Problem(
                f"pack {pack} {reserved} code cannot use it by that name", hint, level=WARNING
            )
    for name in filter(is_reserved, registry.map_python_names("")):
        hint = f'call it with ot.call("{name}"), or rename it'
        yield Problem(
            f"tool {name} {reserved} code cannot use it by that name", hint, level=WARNING
        )


def _check_tokens(read: Examined) -> Iterator[Problem]:
    for index, token in enumerate(read.loaded.settings.auth.tokens):
        place = read.locate(("auth", "tokens", index))
        if token.token_env and not read.loaded.environment.get(token.token_env):
            what = (
                f"{place}: token {token.name} is disabled: environment variable {token.token_env}"
                " is not set"
            )
            hint = f"export {token.token_env}=...   or: onetool token create NAME"
            yield Problem(what, hint, place, level=WARNING)
        elif token.expires_at <= time.time():
            what = f"{place}: token {token.name} has expired ({token.expires})"
            yield Problem(what, f"onetool token revoke {token.name}", place, level=WARNING)


def _check_effects(registry: Registry, read: Examined) -> Iterator[Problem]:
    """Yield a problem for each pack with undeclared effects, if an agent has a policy that can ask."""
    agents = read.loaded.settings.agents.items()
    asking = [name for name, agent in agents if Policy.from_settings(agent).can_ask]
    if not asking:
        return
    undeclared = Counter(
        tool.pack or tool.name for tool in registry if tool.enabled and not is_declared(tool)
    )
    for pack, count in sorted(undeclared.items()):
        what = (
            f"{pluralize(count, 'tool')} of {pack} without declared effects, and the policy of"
            f" {asking[0]} can ask"
        )
        hint = (
            f"such tools count as write and external; declare them: tools: {{{pack}: {{effects:"
            " {NAME: read}}}"
        )
        yield Problem(what, hint, level=WARNING)


def _check_rules(registry: Registry, read: Examined) -> Iterator[Problem]:
    """Yield the rules of policies that match no tool, which a misspelled name would cause."""
    settings = read.loaded.settings
    unknown = {*registry.problems(), *map(python_name, settings.servers)} - set(registry.packs())
    rules = [
        (("agents", name, "policy", index), rule.tools)
        for name, agent in settings.agents.items()
        for index, rule in enumerate(() if isinstance(agent.policy, str) else agent.policy)
    ]
    for path, tools in rules:
        pack = tools.partition(".")[0]
        literal = tools.partition(".")[0] if set(tools) & set("*?[") else tools
        if set(literal) & set("*?[") or python_name(pack) in unknown:
            continue
        if registry.get(literal) is None and not registry.is_pack(python_name(literal)):
            place = read.locate(path)
            hint = "correct it; `onetool tools` lists all names"
            yield Problem(
                f"{place}: no tool matches {quote(tools)}, so the rule has no effect",
                hint,
                place,
                level=WARNING,
            )


def _check_aliases(registry: Registry, read: Examined) -> Iterator[Problem]:
    aliases = read.loaded.settings.aliases
    unknown = {*registry.problems(), *map(python_name, read.loaded.settings.servers)} - set(
        registry.packs()
    )
    for alias in aliases:
        place = read.locate(("aliases", alias))
        chain = [alias]
        if is_reserved(alias):
            what = (
                f"{place}: alias {alias} has a name reserved by Python or OneTool, so code cannot"
                " call it"
            )
            yield Problem(what, "rename the alias", place)
        elif registry.is_pack(python_name(alias)):
            what = (
                f"{place}: alias {alias} has the name of a pack, so {alias} in code refers to the"
                " pack"
            )
            yield Problem(what, "rename the alias", place)
        while chain[-1] in aliases and chain.count(chain[-1]) == 1:
            chain.append(aliases[chain[-1]])
        target = chain[-1]
        if target in aliases:
            what = f"{place}: circular aliases: {' -> '.join(chain)}"
            yield Problem(what, f"correct {target}, or delete the line", place)
        elif registry.get(target) is None and python_name(target.partition(".")[0]) not in unknown:
            near = registry.nearest(target)
            hint = (
                f"write {near[0]} instead of {target}"
                if near
                else f"correct {target}, or delete the line"
            )
            yield Problem(f"{place}: unknown tool {quote(target)}", hint, place)


def _check_snippets(read: Examined) -> Iterator[Problem]:
    """Expand each snippet with example values.

    Errors that only an example value causes are ignored.
    """
    snippets = read.loaded.settings.snippets
    for name, snippet in snippets.items():
        place = read.locate(("snippets", name, "body"))
        try:
            expansion.expand_call(name, expansion.make_example(snippet), snippets)
        except ArgumentError:
            continue
        except ToolError as error:
            yield Problem(
                f"{place}: {error.message}", f"correct the body of the snippet {name}", place
            )
