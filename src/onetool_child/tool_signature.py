"""Signatures of tools as `inspect.Signature`, for code that inspects them.

`inspect` is imported when it is needed, because few runs inspect tools.
"""

from __future__ import annotations

from keyword import iskeyword

TYPE_CHECKING = False
if TYPE_CHECKING:
    import inspect

    from onetool_child.json_types import JsonObject

KINDS = ("positional", "variadic", "keyword", "keywords")  # in the order of a signature


class TypeText:
    """The text of a type, which is never evaluated, because upstream servers choose it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def build_signature(described: JsonObject) -> inspect.Signature:
    """Return the signature; arguments whose names are not valid in Python are combined in `**other`."""
    from inspect import Signature

    listed = described["parameters"]
    found = [each for each in listed if each["name"].isidentifier() and not iskeyword(each["name"])]
    if len(found) < len(listed) and all(each["kind"] != "keywords" for each in found):
        name = "other" if all(each["name"] != "other" for each in found) else "other_arguments"
        found.append({"name": name, "kind": "keywords", "type": "Any"})
    found.sort(key=lambda each: (KINDS.index(each["kind"]), "default" in each))
    returns = TypeText(described["returns"]) if described["returns"] else Signature.empty
    return Signature([_make_parameter(each) for each in found], return_annotation=returns)


def _make_parameter(about: JsonObject) -> inspect.Parameter:
    from inspect import Parameter

    kinds = (
        *(Parameter.POSITIONAL_OR_KEYWORD, Parameter.VAR_POSITIONAL),
        *(Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD),
    )
    default = about.get("default", Parameter.empty)
    annotation = TypeText(about["type"])
    return Parameter(about["name"], kinds[KINDS.index(about["kind"])], default=default, annotation=annotation)
