"""The configuration: names in it that lead nowhere or are hidden, snippets and tokens that do not work."""

import os
from collections.abc import Iterator

from onetool.config.load import Examined
from onetool.errors import ArgumentError, ToolError
from onetool.problem import WARNING, Problem
from onetool.registry import Registry, python_name
from onetool.snippets import expansion
from onetool_child.names import OWN_PACK, is_reserved


def problems(registry: Registry, read: Examined) -> Iterator[Problem]:
    yield from _aliases(registry, read)
    yield from _snippets(read)
    for index, token in enumerate(read.loaded.settings.auth.tokens):
        if token.token_env and not os.environ.get(token.token_env):
            place = read.place_of(("auth", "tokens", index))
            what = f"{place}: the token {token.name} lets nobody in, because {token.token_env} is not set"
            hint = f"export {token.token_env}=...   or: onetool token create NAME"
            yield Problem(what, hint, place, level=WARNING)
    reserved = "has a reserved name of Python or OneTool, so that"
    for pack in filter(is_reserved, registry.all_packs()):
        if pack != OWN_PACK:
            hint = f'call its tools with ot.pack("{pack}"), or rename it'
            yield Problem(f"the pack {pack} {reserved} {pack} in code is not the pack", hint, level=WARNING)
    for name in filter(is_reserved, registry.in_pack("")):
        hint = f'call it with ot.call("{name}"), or rename it'
        yield Problem(f"the tool {name} {reserved} {name} in code is not the tool", hint, level=WARNING)


def _aliases(registry: Registry, read: Examined) -> Iterator[Problem]:
    aliases = read.loaded.settings.aliases
    unknown = {*registry.problems(), *map(python_name, read.loaded.settings.servers)} - set(registry.packs())
    for alias in aliases:
        place, chain = read.place_of(("aliases", alias)), [alias]
        if is_reserved(alias):
            what = f"{place}: the alias {alias} has a reserved name of Python or OneTool, so that code cannot call it"
            yield Problem(what, f"rename the alias ({place})", place)
        elif registry.is_pack(python_name(alias)):
            what = f"{place}: the alias {alias} has the name of a pack, so that {alias} in code is the pack"
            yield Problem(what, f"rename the alias ({place})", place)
        while chain[-1] in aliases and chain.count(chain[-1]) == 1:
            chain.append(aliases[chain[-1]])
        target = chain[-1]
        if target in aliases:
            what = f"{place}: the aliases go round in a circle: {' -> '.join(chain)}"
            yield Problem(what, f"correct {target}, or delete the line ({place})", place)
        elif registry.get(target) is None and python_name(target.partition(".")[0]) not in unknown:
            near = registry.nearest(target)
            hint = f"write {near[0]} instead of {target}" if near else f"correct {target}, or delete the line"
            yield Problem(f"{place}: there is no tool {target!r}", f"{hint} ({place})", place)


def _snippets(read: Examined) -> Iterator[Problem]:
    """With an example for each parameter that has no default: what only that value is to blame for is no mistake."""
    snippets = read.loaded.settings.snippets
    for name, snippet in snippets.items():
        given = {key: expansion.EXAMPLE_VALUE for key, param in snippet.params.items() if param.required}
        place = read.place_of(("snippets", name, "body"))
        try:
            expansion.expand_call(name, given, snippets)
        except ArgumentError:
            continue
        except ToolError as error:
            yield Problem(f"{place}: {error.message}", f"correct the body of the snippet {name} ({place})", place)
