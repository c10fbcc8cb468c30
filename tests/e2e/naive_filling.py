"""Fill the parameters of a signature with facts, by similar words and matching types."""

from collections.abc import Mapping
from typing import Any

from tests.e2e.naive_reading import Parameter, Signature, split_words

SAME_NAME, BY_NAME, BY_DESCRIPTION = 3, 2, 1
Arguments = dict[str, tuple[str, Any]]  # by parameter: the name of the fact and its value


def fit_arguments(signature: Signature, facts: Mapping[str, Any]) -> Arguments | None:
    """Return the known arguments, or None if a required argument is unknown."""
    pairs = sorted(_match_pairs(signature, facts), key=lambda pair: (-pair[0], not pair[1].required))
    arguments: Arguments = {}
    for _, parameter, fact in pairs:
        if parameter.name not in arguments and fact not in {used for used, _ in arguments.values()}:
            arguments[parameter.name] = fact, _convert(facts[fact], parameter.kind)
    return arguments if all(one.name in arguments for one in signature.parameters if one.required) else None


def find_fact(parameter: Parameter, facts: Mapping[str, Any]) -> Any:
    """Return the value of the fact with a similar name, or None."""
    return next((value for name, value in facts.items() if _score(parameter, name) >= BY_NAME), None)


def _match_pairs(signature: Signature, facts: Mapping[str, Any]) -> list[tuple[int, Parameter, str]]:
    found = [
        (_score(parameter, fact), parameter, fact)
        for parameter in signature.parameters
        for fact in facts
        if is_possible(facts[fact], parameter.kind)
    ]
    return [pair for pair in found if pair[0]]


def _score(parameter: Parameter, fact: str) -> int:
    named, expected = split_words(parameter.name), split_words(fact)
    if "".join(named) == "".join(expected):
        return SAME_NAME
    if set(named) & set(expected):
        return BY_NAME
    return BY_DESCRIPTION if set(split_words(parameter.text)) & set(expected) else 0


def is_possible(value: Any, kind: str) -> bool:
    if kind == "Any":
        return True
    if isinstance(value, dict | list) or kind.startswith(("dict", "list", "bool", "Literal")):
        return kind.startswith(type(value).__name__) or (kind.startswith("Literal") and repr(value) in kind)
    return not _is_number(kind) or isinstance(value, int | float) or str(value).lstrip("-").isdecimal()


def _convert(value: Any, kind: str) -> Any:
    if _is_number(kind) and isinstance(value, str):
        return int(value)
    return str(value) if kind == "str" else value


def _is_number(kind: str) -> bool:
    return kind in {"int", "float"}
