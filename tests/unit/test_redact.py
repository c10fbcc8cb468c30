"""Redaction of secrets in every encoding and in truncated text."""

import json
from collections.abc import Iterable

import pytest
import yaml
from hypothesis import example, given, strategies as st
from tests.encodings_support import ALL, SECRETS as VALUES
from tests.support import measure_loop, measure_seconds

from onetool.util.redact import MAX_PIECE_CHARS, REDACTED, TOO_SLOW, Redactor

SECRET = 'pass "wörd"\\ 1\n2'
KEY = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0\nc29tZSBtb3JlIG9mIGl0\n-----END KEY-----"


@pytest.mark.parametrize(
    "text",
    [
        SECRET,
        json.dumps(SECRET),
        json.dumps(SECRET, ensure_ascii=False),
        repr(SECRET),
        str({"k": SECRET}),
        f"a{SECRET}{SECRET}b",
    ],
)
def test_a_secret_is_redacted_in_every_encoding_of_a_format(text: str) -> None:
    output = Redactor([SECRET])(text)
    assert REDACTED in output
    assert not [part for part in ("pass", "w\\u00f6rd", "wörd") if part in output]


def test_each_line_of_a_multiline_secret_is_redacted() -> None:
    output = Redactor([KEY])(yaml.safe_dump({"key": KEY}, default_style="|"))
    assert "MIIE" not in output
    assert "c29tZ" not in output


def test_values_that_are_too_short_are_not_redacted() -> None:
    assert Redactor(["abc", ""])("abc") == "abc"
    assert Redactor(["long enough\nno\n"])("no") == "no"


def test_text_without_secrets_is_unchanged() -> None:
    assert Redactor([SECRET])("nothing here") == "nothing here"
    assert list(Redactor().redact_pieces(["a", "b"])) == ["a", "b"]


def test_overlapping_secrets_are_redacted_completely() -> None:
    redact = Redactor(["abcdef", "defghi", "abcd"])
    assert redact("-abcdefghi-abcd-") == f"-{REDACTED}-{REDACTED}-"
    assert Redactor(["abab"])("xababab") == f"x{REDACTED}"


def redact_one_by_one(redact: Redactor, pieces: Iterable[str]) -> str:
    """Redact pieces of any size; `redact_pieces` joins short ones."""
    stream = redact.stream()
    return "".join([*map(stream.add, pieces), stream.end()])


SECRETS = st.lists(st.text("ab", min_size=4, max_size=7), max_size=4)


@given(SECRETS, st.lists(st.text("abc", max_size=9), max_size=12))
@example(["aaaa", "aaaab"], ["aaa", "a", "b"])
@example(["abab"], ["ab", "ab", "ab", "c"])
def test_chunks_are_redacted_like_the_whole_text(secrets: list[str], pieces: list[str]) -> None:
    redact = Redactor(secrets)
    output = redact_one_by_one(redact, pieces)
    assert output == "".join(redact.redact_pieces(pieces))
    assert output == redact("".join(pieces))
    assert not [secret for secret in secrets if secret in output]


def test_at_most_one_piece_and_the_length_of_a_secret_are_buffered() -> None:
    output = list(Redactor(["aaaa"]).redact_pieces(["a" * 1000] * 1000))
    assert "".join(output) == REDACTED
    assert (
        max(map(len, Redactor(["x" * 10]).redact_pieces(["y" * 1000] * 200))) <= MAX_PIECE_CHARS + 9
    )


@pytest.mark.parametrize("text", ["\\\\", "%2525", "a\0", "\\n", "&amp;", "61 62 ", "="])
def test_redaction_takes_linear_time(text: str) -> None:
    redact = Redactor([SECRET])
    limit = 10 * measure_loop()
    assert measure_seconds(lambda: redact((text * 200_000)[:200_000]), enough=limit) < limit


def test_what_takes_too_long_is_left_out() -> None:
    redact = Redactor([SECRET])
    pieces = ["%25" * 50_000, SECRET, "%25" * 50_000, SECRET]
    output = "".join(redact.redact_pieces(pieces, max_seconds=0))
    assert output.endswith(TOO_SLOW)
    assert SECRET not in output


def test_only_possible_prefixes_of_a_secret_are_buffered() -> None:
    stream = Redactor(["x" * 5000, "password1"]).stream()
    assert stream.add("a line\n") == "a line\n"
    assert stream.add("a pass") == "a "
    assert stream.add("age\n") == "passage\n"
    assert (
        stream.add("pass") + stream.add("word") + stream.add("1!") + stream.end() == f"{REDACTED}!"
    )


@given(SECRETS, st.text("abc", max_size=30), st.integers(0, 30))
def test_truncated_text_shows_no_part_of_a_secret_at_its_end(
    secrets: list[str], text: str, cut: int
) -> None:
    redact = Redactor(secrets)
    assert redact(text).startswith(redact.stream().add(text[:cut]).removesuffix(REDACTED))


# --- other encodings ------------------------------------------------------------------------------


@pytest.mark.parametrize("around", ["{}", "before {} after", '{{"key": "{}"}}'])
def test_no_encoding_hides_a_secret(around: str) -> None:
    redact = Redactor(VALUES)
    missed = [
        (name, secret) for name, secret, text in ALL if REDACTED not in redact(around.format(text))
    ]
    assert not missed


@pytest.mark.slow
def test_an_encoded_secret_is_redacted_across_chunk_boundaries() -> None:
    redact = Redactor(VALUES)
    for name, secret, text in ALL:
        whole = f"before {text} after"
        output = redact(whole)
        for at in range(1 + len(name) % 5, len(whole), 5):
            assert redact_one_by_one(redact, [whole[:at], whole[at:]]) == output, (name, secret, at)


def test_only_the_secret_is_removed_from_a_large_text() -> None:
    around = 'line \\n with "escapes" %20 and &amp; 100% = x\n' * 300
    for name, secret, text in ALL[::5]:
        output = Redactor(VALUES)(f"{around} {text} {around}")
        assert output.startswith(around), (name, secret)
        assert output.endswith(around), (name, secret)
        assert REDACTED in output, (name, secret)


@pytest.mark.parametrize(
    "text",
    [
        "%",
        "\\",
        "&",
        "=",
        "100 % \\o/ a=b &c",
        "%zz%4",
        "\\u12",
        "&#99999999;",
        "\\U00110000",
        "\0" * 9,
    ],
)
def test_text_that_only_looks_escaped_is_unchanged(text: str) -> None:
    redact = Redactor(VALUES)
    assert redact(text) == text
    assert redact_one_by_one(redact, text) == text


def test_a_complete_line_is_not_buffered() -> None:
    stream = Redactor(VALUES).stream()
    assert stream.add("step 1 of 3\n") == "step 1 of 3\n"


def test_a_large_text_is_redacted_quickly() -> None:
    redact = Redactor([f"{secret}-{number}" for secret in VALUES for number in range(20)])
    text = "some text of a page with a \\n now and then and no secret\n" * 20_000
    assert redact(text) == text
    assert measure_seconds(lambda: redact(text), enough=2) < 2
