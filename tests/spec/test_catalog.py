"""The catalog is consistent, and every promise in it has a test."""

import re
from collections import Counter
from pathlib import Path

import pytest
from tests.spec.catalog import LISTED, PROMISES
from tests.spec.catalog.marks import Claim, claims_of, claims_under

TESTS = Path(__file__).parents[1]
WORDS = "[a-z0-9]+(-[a-z0-9]+)*"


@pytest.fixture(scope="module")
def claims() -> list[Claim]:
    return claims_under(TESTS)


def test_every_id_is_listed_once() -> None:
    assert not [identity for identity, count in Counter(p.id for p in LISTED).items() if count > 1]


def test_every_id_is_three_parts_in_kebab_case() -> None:
    assert not [identity for identity in PROMISES if not re.fullmatch(rf"{WORDS}\.{WORDS}\.{WORDS}", identity)]


def test_every_promise_has_a_title() -> None:
    assert not [promise.id for promise in LISTED if not promise.title.strip()]


def test_the_147_named_scenarios_are_all_listed() -> None:
    counts = Counter(identity.partition(".")[0] for identity in PROMISES)
    named = {document: counts.pop(document) for document in ("ot-pack", "run-tool", "tool-execution")}
    assert named == {"ot-pack": 66, "run-tool": 67, "tool-execution": 14}
    assert sum(named.values()) == 147
    assert counts.keys() == {"bundles", "toolbus"}


def test_every_mark_names_a_known_promise(claims: list[Claim]) -> None:
    unknown = [f"{claim.place} {claim.id}" for claim in claims if claim.id not in PROMISES]
    assert not unknown, "\n".join(["no such id in tests/spec/catalog:", *unknown])


def test_every_promise_has_a_test(claims: list[Claim]) -> None:
    kept = {claim.id for claim in claims}
    open_ones = [promise.id for promise in LISTED if promise.id not in kept]
    assert not open_ones, "\n".join([f"{len(open_ones)} promises have no test:", *open_ones])


@pytest.mark.parametrize(
    "source",
    [
        '@pytest.mark.spec("a.b.c", "a.b.d")\ndef test_x(): ...',
        '@mark.spec("a.b.c")\n@mark.spec("a.b.d")\nasync def test_x(): ...',
        '@pytest.mark.spec("a.b.c")\nclass TestX:\n    @pytest.mark.spec("a.b.d")\n    def test_x(self): ...',
        'CASES = [pytest.param(1, marks=[pytest.mark.spec("a.b.c"), pytest.mark.spec("a.b.d")])]',
        'pytestmark = pytest.mark.spec(\n    "a.b.c",\n    "a.b.d",\n)',
    ],
)
def test_marks_are_read_wherever_pytest_reads_them(source: str) -> None:
    assert sorted(claim.id for claim in claims_of(source, "test_x.py")) == ["a.b.c", "a.b.d"]


def test_a_claim_says_where_its_mark_stands() -> None:
    assert list(claims_of('\n@pytest.mark.spec("a.b.c")\ndef test_x(): ...', "test_x.py")) == [
        Claim("a.b.c", "test_x.py:2")
    ]


def test_marks_in_strings_and_comments_are_no_marks() -> None:
    source = '# pytest.mark.spec("a.b.c")\ntext = \'@pytest.mark.spec("a.b.c")\''
    assert not list(claims_of(source, "test_x.py"))


@pytest.mark.parametrize("arguments", ["", "NAME", "*NAMES", 'f"a.{b}.c"', 'id="a.b.c"', '"a.b.c", NAME'])
def test_marks_that_cannot_be_read_are_refused(arguments: str) -> None:
    with pytest.raises(ValueError, match=r"test_x\.py:1: write the ids as plain strings"):
        list(claims_of(f"@pytest.mark.spec({arguments})\ndef test_x(): ...", "test_x.py"))


def test_marks_on_what_pytest_does_not_collect_are_refused() -> None:
    with pytest.raises(ValueError, match="helper carries a spec mark"):
        list(claims_of('@pytest.mark.spec("a.b.c")\ndef helper(): ...', "test_x.py"))
