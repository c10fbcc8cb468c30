"""Names that do not mean in code what they are meant to: hidden by Python's builtins, or by a pack."""

from collections.abc import Iterator

from ot.checks.finding import Finding, problem, warning
from ot.config.load import Examined
from ot.registry import Registry, python_name
from ot_child.names import OWN_PACK, is_reserved


def findings(registry: Registry, read: Examined) -> Iterator[Finding]:
    for pack in registry.all_packs():
        if is_reserved(pack) and pack != OWN_PACK:
            what = f"the pack {pack} has a reserved name of Python or OneTool, so that {pack} in code is not the pack"
            yield warning(what, f'call its tools with ot.pack("{pack}"), or rename it')
    for name in registry.in_pack(""):
        if is_reserved(name):
            what = f"the tool {name} has a reserved name of Python or OneTool, so that {name} in code is not the tool"
            yield warning(what, f'call it with ot.call("{name}"), or rename it')
    for alias in read.loaded.settings.aliases:
        yield from _alias(alias, registry, read.place_of(("aliases", alias)))


def _alias(alias: str, registry: Registry, place: str) -> Iterator[Finding]:
    if is_reserved(alias):
        what = f"{place}: the alias {alias} has a reserved name of Python or OneTool, so that code cannot call it"
        yield problem(what, f"rename the alias ({place})")
    elif registry.is_pack(python_name(alias)):
        what = f"{place}: the alias {alias} has the name of a pack, so that {alias} in code is the pack"
        yield problem(what, f"rename the alias ({place})")
