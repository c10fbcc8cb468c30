"""The configuration: what is wrong in its files, and names in it that lead nowhere."""

import os
from collections.abc import Iterator

from ot.checks.finding import PROBLEM, WARNING, Finding, problem, told, warning
from ot.config.load import Examined
from ot.errors import ArgumentError, ToolError, ToolNotFound
from ot.registry import Registry
from ot.snippets import expansion


def wrong(read: Examined) -> Iterator[Finding]:
    for message in read.errors:
        yield told(PROBLEM, message)
    for message in read.loaded.problems:
        yield told(WARNING if message.startswith("environment variable") else PROBLEM, message, "unset it")


def findings(registry: Registry, read: Examined) -> list[Finding]:
    return [*_aliases(registry, read), *_snippets(read), *_tokens(read)]


def _aliases(registry: Registry, read: Examined) -> Iterator[Finding]:
    for alias, target in read.loaded.settings.aliases.items():
        place = read.place_of(("aliases", alias))
        try:
            registry.find(alias if registry.aliases.get(alias) == target else target)
        except ToolNotFound as error:
            near = registry.nearest(target)
            advice = f"write {near[0]} instead of {target}" if near else f"correct {target}, or delete the line"
            yield problem(f"{place}: {_first_sentence(error.message)}", f"{advice} ({place})")


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0].rstrip(".")


def _snippets(read: Examined) -> Iterator[Finding]:
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
            yield problem(f"{place}: {error.message}", f"correct the body of the snippet {name} ({place})")


def _tokens(read: Examined) -> Iterator[Finding]:
    for index, token in enumerate(read.loaded.settings.auth.tokens):
        if token.token_env and not os.environ.get(token.token_env):
            place = read.place_of(("auth", "tokens", index))
            what = f"{place}: the token {token.name} lets nobody in, because {token.token_env} is not set"
            yield warning(what, f"export {token.token_env}=...   or: onetool token create NAME")
