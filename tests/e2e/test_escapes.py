"""Every known way out of a cell, tried: the shared set and our own, as root and as a user, forked and spawned.

A whole set is made against one server, several attempts side by side, and after each of them another run that must
not notice. The verdicts are tests of their own. What the set did to the world outside is looked at when it is over.
"""

import json
import os
import platform
import stat
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.cells_support import (
    IS_ROOT,
    NIGHTLY,
    ORDINARY_USER,
    SECONDS,
    SENTINEL,
    Arena,
    Outcome,
    Setup,
    compute_once,
    open_arena,
    require_ordinary_user,
)
from tests.e2e.arena import OTHER_SECRET, PROBE_ANSWER
from tests.e2e.more_escapes import ATTEMPTS, Attempt
from tests.support import eventually, list_descendants

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux confines a cell by its kernel")

OUTPUT_LIMIT = {"max_output_bytes": 8 << 20}
PATIENCE_WITH_A_SET = 800.0 if NIGHTLY else 100.0
GRACE = 20.0  # beyond the timeout, on a machine that has other work
# The text of these is the attacker's own; what counts is that nothing outside has changed.
OWN_TEXT_ALLOWED = ("host-effect", "persist", "poison", "fd1", "alive", "threads", "limit")
VALUES = {
    "U02": '{"x":1,"y":2}',
    "U05": "1 a",
    "U07": "2026-01-02T00:00:00",
    "U08": '[[["a",2]],{"a":[1]}]',
    "U10": "defined",
    "U11": "1",
    "U12": "[1,[2]]",
    "U13": '[{"n":2},{"n":1},{"a":1,"b":2}]',
    "U15": "ok",
    "U19": "[{},1,5]",
}


def _known(text: str) -> list[Attempt]:
    return [_attempt(entry) for entry in json.loads(text) if _version(entry.get("pymin", "3.0")) <= sys.version_info]


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def _attempt(entry: dict[str, str]) -> Attempt:
    kind = entry["class"] if not entry["oracle"].startswith(OWN_TEXT_ALLOWED) else entry["oracle"]
    brief, says = entry["must"] == "limit", VALUES.get(entry["id"], "")
    return Attempt(entry["id"], kind, entry["desc"], entry["code"], entry["must"], says, brief=brief)


KNOWN = _known((Path(__file__).parent / "escapes.json").read_text(encoding="utf-8"))
ALL = [attempt for attempt in (*KNOWN, *ATTEMPTS) if attempt.machine in {"", platform.machine()}]
ALLOWED = [attempt for attempt in ALL if attempt.must == "allow"]
PROVEN = [attempt for attempt in ALL if attempt.proven]
# a spawned cell speaks over pipes: what is done to its socket has no meaning there
SPAWNED = [attempt for attempt in ALL if "fileno=os.dup(own)" not in attempt.code]
SAMPLE = SPAWNED if NIGHTLY else SPAWNED[::5]
MODES: dict[str, tuple[Setup, list[Attempt]]] = {
    "as-we-are": (Setup(execution=OUTPUT_LIMIT, forked=False), ALL),
    "ordinary-user": (Setup(as_user=True, execution=OUTPUT_LIMIT, forked=False), ALL),
    "spawned": (Setup(launcher="spawned", execution=OUTPUT_LIMIT, forked=False), SAMPLE),
    "required": (Setup(isolation="require", execution=OUTPUT_LIMIT, forked=False), ALLOWED),
}
IN_MODES = [pytest.param(mode, each, id=f"{mode}-{each.id}") for mode, (_, set_) in MODES.items() for each in set_]


class Trials:
    """What became of a set of attempts, and of the world around them."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.outcomes = {ident: Outcome.of(outcome) for ident, outcome in facts.pop("outcomes").items()}
        self.facts = facts


Trial = Callable[[str], Trials]


@pytest.fixture(scope="session")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    def tried(mode: str, *, wait: bool) -> Any:
        return compute_once(tmp_path_factory, f"trials-{mode}", lambda: _try_all(*MODES[mode]), wait=wait)

    def made(mode: str) -> Trials:
        if mode == "ordinary-user":
            require_ordinary_user()
        world = tried(mode, wait=False)
        if world is None:  # another worker is at it: better than to wait is to make another set meanwhile
            for other in [each for each in MODES if each != "ordinary-user" or IS_ROOT]:
                tried(other, wait=False)
            world = tried(mode, wait=True)
        return Trials(world)

    return made


def _try_all(setup: Setup, attempts: Iterable[Attempt]) -> dict[str, Any]:
    with open_arena(setup) as place:
        before = place.facts()
        outcomes = _outcomes(place, attempts)
        quiet = eventually(lambda: place.facts()["descriptors"] <= before["descriptors"] + 20)
        world = {
            "outcomes": outcomes,
            "before": before,
            "after": place.facts(),
            "quiet": quiet,
            "processes_left": eventually(lambda: len(list_descendants(place.process.pid)) <= 2 + 2 * 3),
            "noise": place.noise,
            "stderr": place.stderr(),
            "names": sorted(entry.name for entry in place.folder.iterdir()),
            "sentinel": _facts_of(place.folder / "sentinel.txt"),
            "inherited": (place.folder / "sentinel_inherited").read_text(encoding="utf-8"),
            "module": (place.folder / "sentinel_mod.py").read_text(encoding="utf-8"),
        }
        place.close()
        world["scratch_left"] = sorted(str(path.relative_to(place.scratch)) for path in place.scratch.glob("*/*"))
        world["folders_left"] = sorted(path.name for path in place.scratch.iterdir())
    return world


def _outcomes(place: Arena, attempts: Iterable[Attempt]) -> dict[str, Any]:
    under_way = {each.id: place.attempt(each.code, "brief" if each.brief else "patient") for each in attempts}
    done = {ident: future.result(PATIENCE_WITH_A_SET) for ident, future in under_way.items()}
    return {ident: asdict(outcome) for ident, outcome in done.items()}


def _facts_of(path: Path) -> dict[str, Any]:
    status = path.stat()
    attributes = {name for name in os.listxattr(path) if name.startswith("user.")}
    return {
        "text": path.read_text(encoding="utf-8"),
        "mode": stat.S_IMODE(status.st_mode),
        "changed": status.st_mtime,
        "attributes": sorted(attributes - {"user.secret"}),
    }


# --- verdicts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "attempt"), IN_MODES)
def test_an_attempt_gets_what_it_must(mode: str, attempt: Attempt, trial: Trial) -> None:
    outcome = trial(mode).outcomes[attempt.id]
    told = f"{attempt.what}: {outcome}"
    assert outcome.raised is None, f"the server itself failed at {told}"
    assert outcome.probe == PROBE_ANSWER, f"the run after it was not untouched by {told}"
    assert OTHER_SECRET not in outcome.text, told
    assert attempt.says in outcome.text, told
    VERDICTS[attempt.must](attempt, outcome)


def _blocked(attempt: Attempt, outcome: Outcome) -> None:
    if not attempt.kind.startswith(OWN_TEXT_ALLOWED):
        assert SENTINEL not in outcome.text, f"{attempt.what}: {outcome}"


def _limited(attempt: Attempt, outcome: Outcome) -> None:
    if attempt.brief:
        assert outcome.seconds < SECONDS["brief"] + GRACE, f"{attempt.what}: {outcome}"


def _contained(attempt: Attempt, outcome: Outcome) -> None:
    assert outcome.text or outcome.is_error, f"{attempt.what}: {outcome}"


def _allowed(attempt: Attempt, outcome: Outcome) -> None:
    assert not outcome.is_error, f"{attempt.what}: {outcome}"
    if attempt.id in VALUES:
        assert outcome.text == VALUES[attempt.id]


VERDICTS = {"block": _blocked, "limit": _limited, "contain": _contained, "allow": _allowed}


# --- the world after the set ------------------------------------------------------------------------------------------

WHOLE_SETS = pytest.mark.parametrize("mode", ["as-we-are", "ordinary-user", "spawned"])


@WHOLE_SETS
def test_nothing_outside_was_made_or_changed(mode: str, trial: Trial) -> None:
    world = trial(mode).facts
    expected = ["home", "scratch", "sentinel.txt", "sentinel_inherited", "sentinel_mod.py", "stderr"]
    assert world["names"] == expected
    unchanged = {"text": SENTINEL, "mode": 0o644, "changed": 1_000_000_000, "attributes": []}
    assert world["sentinel"] == unchanged
    assert world["inherited"] == SENTINEL
    assert SENTINEL in world["module"]


@WHOLE_SETS
def test_nobody_reached_the_listeners(mode: str, trial: Trial) -> None:
    assert trial(mode).facts["after"]["hits"] == 0


@WHOLE_SETS
def test_nothing_forged_came_out_of_the_server(mode: str, trial: Trial) -> None:
    assert trial(mode).facts["noise"] == []


@WHOLE_SETS
def test_the_server_had_nothing_to_complain_about(mode: str, trial: Trial) -> None:
    world = trial(mode).facts
    assert world["after"]["complaints"] == []
    assert world["stderr"] == ""


@WHOLE_SETS
def test_the_server_kept_nothing_open(mode: str, trial: Trial) -> None:
    world = trial(mode).facts
    assert world["quiet"], (world["before"], world["after"])
    assert world["processes_left"]


@WHOLE_SETS
def test_the_server_stayed_small(mode: str, trial: Trial) -> None:
    before, after = trial(mode).facts["before"], trial(mode).facts["after"]
    assert after["memory_kb"] - before["memory_kb"] < 300_000


@WHOLE_SETS
def test_no_scratch_was_left_behind(mode: str, trial: Trial) -> None:
    world = trial(mode).facts
    assert world["scratch_left"] == []
    assert world["folders_left"] == []


# --- the attempts themselves ---------------------------------------------------------------------------------------


def test_the_attempts_are_real(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Without isolation they succeed: what the verdicts above show is the confinement and nothing else."""
    setup = Setup(isolation="off", forked=False)
    facts = compute_once(tmp_path_factory, "proven", lambda: _proof(setup))
    failed = {each.id: facts[each.id] for each in PROVEN if SENTINEL not in "".join(facts[each.id]["blocks"])}
    assert not failed
    assert len(PROVEN) > 50


def _proof(setup: Setup) -> dict[str, Any]:
    with open_arena(setup) as place:
        return _outcomes(place, PROVEN)


def test_ordinary_code_works_without_isolation_too(tmp_path_factory: pytest.TempPathFactory) -> None:
    def ordinary() -> dict[str, Any]:
        with open_arena(Setup(isolation="off", forked=False)) as place:
            return _outcomes(place, ALLOWED)

    facts = compute_once(tmp_path_factory, "allowed-off", ordinary)
    outcomes = {each.id: Outcome.of(facts[each.id]) for each in ALLOWED}
    assert not {ident: outcome for ident, outcome in outcomes.items() if outcome.is_error or outcome.raised}
    assert not [each.id for each in ALLOWED if each.says not in outcomes[each.id].text]


def test_the_set_is_as_large_as_it_was() -> None:
    assert len(KNOWN) >= 102
    assert len(ATTEMPTS) >= 60
    assert len({attempt.id for attempt in ALL}) == len(ALL)


def test_every_attempt_is_made_by_whoever_runs_this_and_by_an_ordinary_user(trial: Trial) -> None:
    users = {"as-we-are": os.geteuid(), **({"ordinary-user": ORDINARY_USER} if IS_ROOT else {})}
    for mode, user in users.items():
        made = trial(mode)
        assert made.facts["after"]["user"] == user
        assert made.outcomes.keys() == {attempt.id for attempt in ALL}
