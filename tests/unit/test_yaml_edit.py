"""Items in and out of a list in somebody's YAML file, whose every other byte stays."""

import pytest

from onetool.clients.yaml_edit import add_items, read_list, remove_item
from onetool.errors import ConfigError
from onetool.util import yaml_loader

A, B = {"name": "a", "hash": "0f"}, {"name": "b", "hash": "1e5"}
# Texts that hold A, in the ways in which people write lists.
WRITTEN = {
    "block": "x: 1\nauth:\n  # mine\n  tokens:   # all of them\n    - {name: a, hash: 0f}  # the first\n\ny: 2 # end\n",
    "block of blocks": "auth:\n  tokens:\n  - name: a\n    hash: 0f\n  # behind\ny: 2",
    "flow": "auth: {tokens: [{name: a, hash: 0f}]} # c\ny: 2\n",
    "flow with a comma": "auth:\n  tokens: [\n    {name: a, hash: 0f}, # one\n  ]\n",
    "windows": "auth:\r\n  tokens:\r\n    - {name: a, hash: 0f}\r\ny: 2\r\n",
    "with a mark": "\ufeffauth:\n  tokens:\n    - {name: a, hash: 0f}\n",
    "quoted": '"auth":\n  "tokens":\n    - "name": "a"\n      "hash": "0f"\n',
}
EMPTY = ["", "# nothing\n", "auth:\n", "auth: {}\n", "auth: {tokens: []}\n", "auth:\n  tokens:  # none\ny: 1\n", "y: 1"]


def tokens(text: str) -> list[object]:
    return read_list(text, "x.yaml", "auth", "tokens")


@pytest.mark.parametrize("text", WRITTEN.values(), ids=WRITTEN)
def test_an_item_comes_and_goes_and_the_rest_stays(text: str) -> None:
    both = add_items(text, "x.yaml", "auth", "tokens", [B])
    assert tokens(both) == [A, B]
    assert all(line.partition("#")[2] in both for line in text.splitlines())
    assert tokens(remove_item(both, "x.yaml", "auth", "tokens", 0)) == [B]
    again = remove_item(both, "x.yaml", "auth", "tokens", 1)
    assert yaml_loader.read(again, "x.yaml").data == yaml_loader.read(text, "x.yaml").data
    assert ("\r\n" in again) == ("\r\n" in text)
    assert "\n" not in again.replace("\r\n", "") or "\r\n" not in text


@pytest.mark.parametrize("text", WRITTEN.values(), ids=WRITTEN)
def test_the_last_item_leaves_an_empty_list_and_every_comment_outside_of_it(text: str) -> None:
    emptied = remove_item(text, "x.yaml", "auth", "tokens", 0)
    assert yaml_loader.read(emptied, "x.yaml").data["auth"] == {"tokens": []}
    for comment in ("# mine", "# all of them", "# end", "# behind", "# c"):
        assert (comment in emptied) == (comment in text)


@pytest.mark.parametrize("text", EMPTY)
def test_a_list_is_made_where_there_is_none(text: str) -> None:
    made = add_items(text, "x.yaml", "auth", "tokens", [A, B])
    assert tokens(made) == [A, B]
    assert {**yaml_loader.read(made, "x.yaml").data, "auth": None} == {
        **(yaml_loader.read(text, "x").data or {}),
        "auth": None,
    }
    assert ("# none" in made) == ("# none" in text)


def test_texts_that_look_like_numbers_stay_texts() -> None:
    made = add_items("", "x.yaml", "auth", "tokens", [{"hash": "1e5"}, {"hash": "123"}, {"hash": "yes"}, "*", "a: b"])
    assert tokens(made) == [{"hash": "1e5"}, {"hash": "123"}, {"hash": "yes"}, "*", "a: b"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("auth: [1]", "auth must be a mapping"),
        ("auth: {tokens: {a: 1}}", "auth.tokens must be a list"),
        ("auth: {tokens: ", "x.yaml"),
        ("a: &a [{name: a}]\nauth: {tokens: *a}\n", "edit it manually"),
    ],
)
def test_what_cannot_be_changed_says_so(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        add_items(text, "x.yaml", "auth", "tokens", [B])
