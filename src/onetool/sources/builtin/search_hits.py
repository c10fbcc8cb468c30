"""The hits of `ot.search` as data: how to call each, and what tells tools with the same description
apart.
"""

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import NamedTuple

from onetool.core.signature import clean_if_foreign, required_types
from onetool.sources.builtin import help_text
from onetool.sources.search import SearchHit
from onetool.sources.system import System
from onetool_child.json_types import JsonMapping, JsonObject

MAX_SIBLINGS = 5
MIN_SIBLING_TEXT = 12  # characters; a shorter description says too little to call tools siblings


class DescribedHits(NamedTuple):
    hits: list[JsonObject]
    omitted: int  # because of the limit
    weak: int  # omitted, because they are far weaker than the best


def describe_hits(
    system: System, found: Mapping[str, list[SearchHit]], limit: int, snippets: help_text.Snippets
) -> DescribedHits:
    """Return the best hits of each query, in turn, and the numbers of hits that were omitted.

    If there are several queries, each hit names the one that found it first.
    """
    listed: list[list[JsonObject]] = []
    omitted = weak = 0
    for query, hits in found.items():
        described = _join_siblings(
            _describe(system, [hit for hit in hits if not hit.is_weak], snippets), system
        )
        listed.append(
            [{**hit, **({"query": query} if len(found) > 1 else {})} for hit in described[:limit]]
        )
        omitted += len(described[limit:])
        weak += sum(
            hit.is_weak and help_text.describe_hit(hit, system, snippets) is not None
            for hit in hits
        )
    in_turn = (hit for several in zip_longest(*listed) for hit in several if hit is not None)
    unique: dict[tuple[str, str], JsonObject] = {}
    for hit in in_turn:
        unique.setdefault((hit["kind"], hit["name"]), hit)
    return DescribedHits(list(unique.values()), omitted, weak)


def _describe(
    system: System, hits: list[SearchHit], snippets: help_text.Snippets
) -> Iterator[JsonObject]:
    for hit in help_text.sort_hits(hits):
        text = help_text.describe_hit(hit, system, snippets)
        if text is not None:
            call = help_text.call_example(hit, system, snippets)
            tool = system.registry.get(hit.name) if hit.kind in {"tool", "alias"} else None
            types = {} if tool is None else required_types(tool)
            required = {"required": types} if types else {}
            yield {
                "kind": hit.kind,
                "name": hit.name,
                **call,
                **required,
                "description": text,
                "score": hit.score,
            }


def _join_siblings(hits: Iterator[JsonObject], system: System) -> list[JsonObject]:
    """Return the hits, with tools of the same description under the best of them."""
    first: dict[str, JsonObject] = {}
    joined = []
    for hit in hits:
        text = hit["description"]
        if hit["kind"] != "tool" or len(text) < MIN_SIBLING_TEXT or text not in first:
            joined.append(hit)
            if hit["kind"] == "tool":
                first.setdefault(text, hit)
        elif len(siblings := first[text].setdefault("siblings", [])) < MAX_SIBLINGS:
            siblings.append(_tell_apart(first[text], hit, system))
    return joined


def _tell_apart(hit: JsonMapping, sibling: JsonMapping, system: System) -> str:
    """Return how to call a sibling, and the arguments in which it differs."""
    tools = [system.registry.get(one["name"]) for one in (hit, sibling)]
    names = [
        {clean_if_foreign(name, tool) for name in tool.input.properties} if tool else set()
        for tool in tools
    ]
    more = sorted(names[1] - names[0])
    fewer = sorted(names[0] - names[1])
    notes = [f"with {', '.join(more)}"] if more else []
    notes += [f"without {', '.join(fewer)}"] if fewer else []
    call = str(sibling.get("call", sibling["name"]))
    return f"{call} - {'; '.join(notes)}" if notes else call
