"""Parts of docstrings in the three common styles."""

import pytest

from onetool.core.functions import Outcome, arguments, description, example, outcome

GOOGLE = """Search the web
for pages.

Not for files.

Args:
    query (str): What to look for,
        in words.
    *names: More words.

Returns:
    list[str]: The pages.

Raises:
    ValueError: If nothing
        is asked.

Example:
    web.search("x")
"""
NUMPY = """Search the web
for pages.

Not for files.

Parameters
----------
query : str
    What to look for,
    in words.
*names
    More words.

Returns
-------
list of str
    The pages.

Raises
------
ValueError
    If nothing
    is asked.

Examples
--------
web.search("x")
"""
SPHINX = """Search the web
for pages.

Not for files.

:param query: What to look for,
    in words.
:type query: str
:param names: More words.
:returns: The pages.
:rtype: list
:raises ValueError: If nothing
    is asked.
"""


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_a_docstring_has_the_same_parts_in_each_style(text: str) -> None:
    assert description(text) == "Search the web for pages.\n\nNot for files."
    assert arguments(text) == {"query": "What to look for, in words.", "names": "More words."}
    assert outcome(text) == Outcome("The pages.", {"ValueError": "If nothing is asked."})
    assert example(text) == ("" if text is SPHINX else 'web.search("x")')


def test_an_example_keeps_its_indentation() -> None:
    text = (
        "Search.\n\nExample:\n    for page in web.search('x'):\n        print(page)\n\n    'done'\n"
    )
    assert example(text) == "for page in web.search('x'):\n    print(page)\n\n'done'"


@pytest.mark.parametrize(
    "text", ["", "Only a summary.", "A list:\n- one\n- two", "Returns: not a heading", ":) smile"]
)
def test_a_docstring_without_sections_is_its_description(text: str) -> None:
    assert description(text) == text
    assert (example(text), arguments(text), outcome(text)) == ("", {}, Outcome("", {}))
