"""No secret is seen, however it is written and wherever a text was cut."""

import json
import time

import pytest
import yaml
from hypothesis import example, given, strategies as st
from tests.encodings_support import ALL, SECRETS as VALUES

from onetool.redact import REDACTED, Redactor

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
def test_a_secret_is_known_however_it_is_written(text: str) -> None:
    shown = Redactor([SECRET])(text)
    assert REDACTED in shown
    assert not [part for part in ("pass", "w\\u00f6rd", "wörd") if part in shown]


def test_a_secret_of_several_lines_is_known_by_each() -> None:
    shown = Redactor([KEY])(yaml.safe_dump({"key": KEY}, default_style="|"))
    assert "MIIE" not in shown
    assert "c29tZ" not in shown


def test_what_is_too_short_to_be_a_secret_stays() -> None:
    assert Redactor(["abc", ""])("abc") == "abc"
    assert Redactor(["long enough\nno\n"])("no") == "no"


def test_texts_without_secrets_stay_as_they_are() -> None:
    assert Redactor([SECRET])("nothing here") == "nothing here"
    assert list(Redactor().redact_pieces(["a", "b"])) == ["a", "b", ""]


def test_secrets_that_overlap_leave_nothing_behind() -> None:
    redact = Redactor(["abcdef", "defghi", "abcd"])
    assert redact("-abcdefghi-abcd-") == f"-{REDACTED}-{REDACTED}-"
    assert Redactor(["abab"])("xababab") == f"x{REDACTED}"


SECRETS = st.lists(st.text("ab", min_size=4, max_size=7), max_size=4)


@given(SECRETS, st.lists(st.text("abc", max_size=9), max_size=12))
@example(["aaaa", "aaaab"], ["aaa", "a", "b"])
@example(["abab"], ["ab", "ab", "ab", "c"])
def test_pieces_are_redacted_as_the_whole_is(secrets: list[str], pieces: list[str]) -> None:
    redact = Redactor(secrets)
    shown = "".join(redact.redact_pieces(pieces))
    assert shown == redact("".join(pieces))
    assert not [secret for secret in secrets if secret in shown]


def test_no_more_is_held_back_than_a_secret_is_long() -> None:
    shown = list(Redactor(["aaaa"]).redact_pieces(["a" * 1000] * 1000))
    assert "".join(shown) == REDACTED
    assert max(map(len, Redactor(["x" * 10]).redact_pieces(["y" * 1000] * 10))) <= 1009


def test_nothing_is_held_back_that_cannot_be_a_secret() -> None:
    stream = Redactor(["x" * 5000, "password1"]).stream()
    assert stream.add("a line\n") == "a line\n"
    assert stream.add("a pass") == "a "
    assert stream.add("age\n") == "passage\n"
    assert stream.add("pass") + stream.add("word") + stream.add("1!") + stream.end() == f"{REDACTED}!"


@given(SECRETS, st.text("abc", max_size=30), st.integers(0, 30))
def test_a_text_that_was_cut_shows_nothing_of_a_secret_at_its_end(secrets: list[str], text: str, cut: int) -> None:
    redact = Redactor(secrets)
    assert redact(text).startswith(redact.redact_truncated(text[:cut]).removesuffix(REDACTED))


# --- other encodings -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("around", ["{}", "before {} after", '{{"key": "{}"}}'])
def test_no_encoding_hides_a_secret(around: str) -> None:
    redact = Redactor(VALUES)
    missed = [(name, secret) for name, secret, text in ALL if REDACTED not in redact(around.format(text))]
    assert not missed


@pytest.mark.slow
def test_a_secret_in_any_encoding_is_seen_across_the_border_of_two_pieces() -> None:
    redact = Redactor(VALUES)
    for name, secret, text in ALL:
        whole = f"before {text} after"
        shown = redact(whole)
        for at in range(1 + len(name) % 5, len(whole), 5):
            assert "".join(redact.redact_pieces([whole[:at], whole[at:]])) == shown, (name, secret, at)


def test_a_secret_is_cut_out_of_a_large_text_and_nothing_else() -> None:
    around = 'line \\n with "escapes" %20 and &amp; 100% = x\n' * 300
    for name, secret, text in ALL[::5]:
        shown = Redactor(VALUES)(f"{around} {text} {around}")
        assert shown.startswith(around), (name, secret)
        assert shown.endswith(around), (name, secret)
        assert REDACTED in shown, (name, secret)


@pytest.mark.parametrize(
    "text", ["%", "\\", "&", "=", "100 % \\o/ a=b &c", "%zz%4", "\\u12", "&#99999999;", "\\U00110000", "\0" * 9]
)
def test_text_that_only_looks_escaped_stays_as_it_is(text: str) -> None:
    redact = Redactor(VALUES)
    assert redact(text) == text
    assert "".join(redact.redact_pieces(text)) == text


def test_what_is_shown_at_once_is_not_held_back() -> None:
    stream = Redactor(VALUES).stream()
    assert stream.add("step 1 of 3\n") == "step 1 of 3\n"


def test_a_large_text_takes_time_that_fits_its_size() -> None:
    redact = Redactor([f"{secret}-{number}" for secret in VALUES for number in range(20)])
    text = "some text of a page with a \\n now and then and no secret\n" * 20_000
    started = time.process_time()
    assert redact(text) == text
    assert time.process_time() - started < 2
