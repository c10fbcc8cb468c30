"""How a reader without knowledge fills the parameters of a signature with facts: by words that are alike, and type."""

from collections.abc import Mapping
from typing import Any

from tests.e2e.naive_reading import Parameter, Signature, words_of

BY_NAME, BY_DESCRIPTION = 2, 1
Given = dict[str, tuple[str, Any]]  # by parameter: the name of the fact, and its value


def fitting(signature: Signature, facts: Mapping[str, Any]) -> Given | None:
    """What to give, as far as it is known; None where something that is needed is not."""
    pairs = sorted(_pairs(signature, facts), key=lambda pair: (-pair[0], not pair[1].required))
    given: Given = {}
    for _, parameter, fact in pairs:
        if parameter.name not in given and fact not in {used for used, _ in given.values()}:
            given[parameter.name] = fact, _typed(facts[fact], parameter.kind)
    return given if all(one.name in given for one in signature.parameters if one.required) else None


def fact_for(parameter: Parameter, facts: Mapping[str, Any]) -> Any:
    """The value of the fact that is meant by the name; None where there is none."""
    return next((value for name, value in facts.items() if _score(parameter, name) >= BY_NAME), None)


def _pairs(signature: Signature, facts: Mapping[str, Any]) -> list[tuple[int, Parameter, str]]:
    found = [
        (_score(parameter, fact), parameter, fact)
        for parameter in signature.parameters
        for fact in facts
        if is_possible(facts[fact], parameter.kind)
    ]
    return [pair for pair in found if pair[0]]


def _score(parameter: Parameter, fact: str) -> int:
    named, wanted = words_of(parameter.name), words_of(fact)
    if set(named) & set(wanted) or "".join(named) == "".join(wanted):
        return BY_NAME
    return BY_DESCRIPTION if set(words_of(parameter.text)) & set(wanted) else 0


def is_possible(value: Any, kind: str) -> bool:
    if isinstance(value, dict | list) or kind.startswith(("dict", "list", "bool", "Literal")):
        return kind.startswith(type(value).__name__) or (kind.startswith("Literal") and repr(value) in kind)
    return not _is_number(kind) or isinstance(value, int | float) or str(value).lstrip("-").isdecimal()


def _typed(value: Any, kind: str) -> Any:
    if _is_number(kind) and isinstance(value, str):
        return int(value)
    return str(value) if kind == "str" else value


def _is_number(kind: str) -> bool:
    return kind in {"int", "float"}
