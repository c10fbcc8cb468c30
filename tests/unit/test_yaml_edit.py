"""Adding and removing list items in a YAML file while preserving everything else."""

import random
from typing import Any

import pytest

from onetool.errors import ConfigError
from onetool.settings.clients.yaml_edit import parse_mapping, read_list, set_value, update
from onetool.util import yaml_loader

A, B = {"name": "a", "hash": "0f"}, {"name": "b", "hash": "1e5"}
# Texts that contain A, in the usual styles of lists.
WRITTEN = {
    "block": (
        "x: 1\nauth:\n  # mine\n  tokens:   # all of them\n    - {name: a, hash: 0f}  # the"
        " first\n\ny: 2 # end\n"
    ),
    "block of blocks": "auth:\n  tokens:\n  - name: a\n    hash: 0f\n  # behind\ny: 2",
    "flow": "auth: {tokens: [{name: a, hash: 0f}]} # c\ny: 2\n",
    "flow with a comma": "auth:\n  tokens: [\n    {name: a, hash: 0f}, # one\n  ]\n",
    "windows": "auth:\r\n  tokens:\r\n    - {name: a, hash: 0f}\r\ny: 2\r\n",
    "with a mark": "\ufeffauth:\n  tokens:\n    - {name: a, hash: 0f}\n",
    "quoted": '"auth":\n  "tokens":\n    - "name": "a"\n      "hash": "0f"\n',
}
EMPTY = [
    "",
    "# nothing\n",
    "auth:\n",
    "auth: {}\n",
    "auth: {tokens: []}\n",
    "auth:\n  tokens:  # none\ny: 1\n",
    "y: 1",
]


def read_tokens(text: str) -> list[object]:
    return read_list(text, "x.yaml", "auth", "tokens")


def set_tokens(text: str, tokens: list[object]) -> str:
    return set_value(text, "x.yaml", ("auth", "tokens"), tokens)


@pytest.mark.parametrize("text", WRITTEN.values(), ids=WRITTEN)
def test_adding_and_removing_an_item_keeps_the_rest(text: str) -> None:
    both = set_tokens(text, [*read_tokens(text), B])
    assert read_tokens(both) == [A, B]
    assert all(line.partition("#")[2] in both for line in text.splitlines())
    assert read_tokens(set_tokens(both, [B])) == [B]
    again = set_tokens(both, [A])
    assert yaml_loader.read(again, "x.yaml").data == yaml_loader.read(text, "x.yaml").data
    assert ("\r\n" in again) == ("\r\n" in text)
    assert "\n" not in again.replace("\r\n", "") or "\r\n" not in text


@pytest.mark.parametrize("text", WRITTEN.values(), ids=WRITTEN)
def test_removing_the_last_item_leaves_an_empty_list_and_outer_comments(text: str) -> None:
    emptied = set_tokens(text, [])
    assert yaml_loader.read(emptied, "x.yaml").data["auth"] == {"tokens": []}
    for comment in ("# mine", "# all of them", "# end", "# behind", "# c"):
        assert (comment in emptied) == (comment in text)


@pytest.mark.parametrize("text", EMPTY)
def test_a_missing_list_is_created(text: str) -> None:
    made = set_tokens(text, [A, B])
    assert read_tokens(made) == [A, B]
    assert {**yaml_loader.read(made, "x.yaml").data, "auth": None} == {
        **(yaml_loader.read(text, "x").data or {}),
        "auth": None,
    }
    assert ("# none" in made) == ("# none" in text)


def test_strings_that_look_like_numbers_stay_strings() -> None:
    made = set_tokens("", [{"hash": "1e5"}, {"hash": "123"}, {"hash": "yes"}, "*", "a: b"])
    assert read_tokens(made) == [{"hash": "1e5"}, {"hash": "123"}, {"hash": "yes"}, "*", "a: b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("auth: [1]", "auth must be a mapping"),
        ("auth: {tokens: {a: 1}}", "auth.tokens must be a list"),
        ("auth: {tokens: ", "x.yaml"),
        ("a: &a [{name: a}]\nauth: {tokens: *a}\n", "edit it manually"),
    ],
)
def test_a_list_that_cannot_be_edited_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        set_tokens(text, [*read_tokens(text), B])


# --- changes of any value -------------------------------------------------------------------------

STYLES = """\
# head
servers:
  # first
  gh:  # main
    url: https://x   # u
    headers: {A: "b"}   # h

  # second
  fs:
    command: npx
    args:
      - -y   # yes
      - pkg
    env:
      A: |
        line
        two
      B: 1
agents:
  x: {permissions: [], tools: [a, b]}
  y:
    policy:
      # one
      - {tools: a, decision: ask}
      # two
      - tools: b
        decision: deny   # no
# tail
z: 1
"""
VALUES = [
    1,
    "a b",
    "yes",
    True,
    None,
    [],
    {},
    [1, 2],
    [{"a": "b"}, {"c": 1}],
    {"k": {"m": "n"}},
    "x\ny",
    "#x: y",
    "\u202e",
]


def mutate(value: Any, chance: random.Random) -> Any:
    """Return the value with one random change somewhere inside."""
    kind = chance.random()
    if not isinstance(value, dict | list) or not value or kind > 0.9:
        return chance.choice(VALUES)
    items: list[tuple[Any, Any]] = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    )
    at = chance.randrange(len(items))
    if kind < 0.3:
        del items[at]
    elif kind < 0.5:
        items.insert(at, (f"new{chance.randrange(99)}", chance.choice(VALUES)))
    else:
        items[at] = (items[at][0], mutate(items[at][1], chance))
    return dict(items) if isinstance(value, dict) else [item for _, item in items]


@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_random_changes_have_their_result_and_keep_comments_elsewhere(line_break: str) -> None:
    chance = random.Random(7)
    for _ in range(25):
        text = STYLES.replace("\n", line_break)
        for _ in range(3):
            data = parse_mapping(text, "x.yaml")
            wanted = {**data, "agents": mutate(data["agents"], chance)}
            text = update(text, "x.yaml", wanted)
            assert parse_mapping(text, "x.yaml") == wanted
        before, after = text.split("agents:")[0], text.rpartition("# tail")[2]
        assert before == STYLES.replace("\n", line_break).split("agents:")[0]
        assert after == f"{line_break}z: 1{line_break}"
