"""Fill the parameters of a signature with facts, by similar words and matching types."""

from collections.abc import Mapping
from typing import Any

from tests.e2e.naive_reading import Parameter, Signature, split_words

SAME_NAME, BY_NAME, BY_DESCRIPTION = 3, 2, 1
NUMBERS = {"int", "float"}
Arguments = dict[str, tuple[str, Any]]  # by parameter: the name of the fact and its value


def fit_arguments(signature: Signature, facts: Mapping[str, Any]) -> Arguments | None:
    """Return the known arguments, or None if a required argument is unknown."""
    pairs = sorted(
        _match_pairs(signature, facts), key=lambda pair: (-pair[0], not pair[1].required)
    )
    arguments: Arguments = {}
    for _, parameter, fact in pairs:
        if parameter.name not in arguments and fact not in {used for used, _ in arguments.values()}:
            arguments[parameter.name] = fact, _convert(facts[fact], parameter.kind)
    arguments |= _fill_numbers(signature, facts, arguments)
    return (
        arguments
        if all(one.name in arguments for one in signature.parameters if one.required)
        else None
    )


def _fill_numbers(
    signature: Signature, facts: Mapping[str, Any], arguments: Arguments
) -> Arguments:
    """Pass the numbers that are left in their order, if as many are required under names that say
    nothing: a, b.
    """
    left = [one.name for one in signature.parameters if one.kind in NUMBERS and len(one.name) == 1]
    used = {fact for fact, _ in arguments.values()}
    numbers = [
        (fact, value)
        for fact, value in facts.items()
        if fact not in used and isinstance(value, int | float)
    ]
    return dict(zip(left, numbers, strict=True)) if len(left) == len(numbers) else {}


def find_fact(parameter: Parameter, facts: Mapping[str, Any]) -> Any:
    """Return the value of the fact with a similar name, or None."""
    return next(
        (value for name, value in facts.items() if _score(parameter, name) >= BY_NAME), None
    )


def _match_pairs(
    signature: Signature, facts: Mapping[str, Any]
) -> list[tuple[int, Parameter, str]]:
    found = [
        (_score(parameter, fact, facts[fact]), parameter, fact)
        for parameter in signature.parameters
        for fact in facts
        if is_possible(facts[fact], parameter.kind)
    ]
    return [pair for pair in found if pair[0]]


def _score(parameter: Parameter, fact: str, value: Any = None) -> int:
    named, expected = split_words(parameter.name), split_words(fact)
    if "".join(named) == "".join(expected):
        return SAME_NAME
    if (named and (set(named) <= set(expected) or set(expected) <= set(named))) or (
        isinstance(value, str) and parameter.kind.startswith("Literal")
    ):
        return BY_NAME  # or it is one of the listed values
    return BY_DESCRIPTION if set(expected) <= set(split_words(parameter.text)) else 0


def is_possible(value: Any, kind: str) -> bool:
    if kind == "Any":
        return True
    if isinstance(value, dict | list) or kind.startswith(("dict", "list", "bool", "Literal")):
        return kind.startswith(type(value).__name__) or (
            kind.startswith("Literal") and repr(value) in kind
        )
    return (
        kind not in NUMBERS or isinstance(value, int | float) or str(value).lstrip("-").isdecimal()
    )


def _convert(value: Any, kind: str) -> Any:
    if kind in NUMBERS and isinstance(value, str):
        return int(value)
    return str(value) if kind == "str" else value
