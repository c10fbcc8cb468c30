"""Try every known escape from a cell: the shared set and our own, as root and as a user, forked and
spawned.

Each set runs against one server, with several concurrent attempts. After each attempt another run
checks that it is not affected. Separate tests check the outcome of each attempt, and the changes
outside of the cells after the set.
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
from tests.support import ISOLATION, eventually, list_descendants

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="cells are confined by the kernel only on Linux"
)

OUTPUT_LIMIT = {"max_output_bytes": 8 << 20}
SET_TIMEOUT_SECONDS = 2400.0 if ISOLATION == "wasm" else 800.0 if NIGHTLY else 100.0
# A process for WebAssembly sandboxes has three pipes. Each of the two applications has two waiting
# and two free ones.
MAX_DESCRIPTORS = 20 if ISOLATION == "auto" else 40
GRACE_SECONDS = 20.0  # beyond the timeout, for a busy machine
# The attacker controls the text of these; the tests check only that nothing outside has changed.
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


# What ordinary code may lack in a WebAssembly sandbox.
LACKS = (
    "the WebAssembly sandbox",
    *(
        "has no attribute 'setitimer'",
        "has no attribute 'posix_fallocate'",
        "has no attribute 'scrypt'",
    ),
    *("'_DummySocket'", "unable to open database file", "unknown archive format"),
)


def _load_attempts(text: str) -> list[Attempt]:
    return [
        _to_attempt(entry)
        for entry in json.loads(text)
        if _parse_version(entry.get("pymin", "3.0")) <= sys.version_info
    ]


def _parse_version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def _to_attempt(entry: dict[str, str]) -> Attempt:
    kind = entry["class"] if not entry["oracle"].startswith(OWN_TEXT_ALLOWED) else entry["oracle"]
    brief, says = entry["must"] == "limit", VALUES.get(entry["id"], "")
    return Attempt(
        entry["id"], kind, entry["desc"], entry["code"], entry["must"], says, brief=brief
    )


KNOWN = _load_attempts((Path(__file__).parent / "escapes.json").read_text(encoding="utf-8"))
ALL = [attempt for attempt in (*KNOWN, *ATTEMPTS) if attempt.machine in {"", platform.machine()}]
ALLOWED = [attempt for attempt in ALL if attempt.must == "allow"]
PROVEN = [attempt for attempt in ALL if attempt.proven]
# A spawned cell communicates over pipes, so attempts on its socket do not apply.
SPAWNED = [attempt for attempt in ALL if "fileno=os.dup(own)" not in attempt.code]
SAMPLE = SPAWNED if NIGHTLY else SPAWNED[::20]
# An ordinary user has fewer rights than root, as which CI tries everything.
AS_USER = ALL if NIGHTLY or not IS_ROOT else ALL[::16]
MODES: dict[str, tuple[Setup, list[Attempt]]] = {
    "current-user": (Setup(execution=OUTPUT_LIMIT, forked=False), ALL),
    "ordinary-user": (Setup(as_user=True, execution=OUTPUT_LIMIT, forked=False), AS_USER),
    "spawned": (Setup(launcher="spawned", execution=OUTPUT_LIMIT, forked=False), SAMPLE),
    "required": (
        Setup(isolation="require", execution=OUTPUT_LIMIT, forked=False),
        ALLOWED if NIGHTLY else ALLOWED[::3],
    ),
}
if ISOLATION == "wasm":
    MODES = {"current-user": MODES["current-user"]}
IN_MODES = [
    pytest.param(mode, each, id=f"{mode}-{each.id}")
    for mode, (_, set_) in MODES.items()
    for each in set_
]


class Trials:
    """The outcomes of a set of attempts, and the state of the machine afterwards."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.outcomes = {
            ident: Outcome.of(outcome) for ident, outcome in facts.pop("outcomes").items()
        }
        self.facts = facts


Trial = Callable[[str], Trials]


@pytest.fixture(scope="session")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    def compute(mode: str, *, wait: bool) -> Any:
        return compute_once(
            tmp_path_factory, f"trials-{mode}", lambda: _try_all(*MODES[mode]), wait=wait
        )

    def get_trials(mode: str) -> Trials:
        if mode == "ordinary-user":
            require_ordinary_user()
        world = compute(mode, wait=False)
        if world is None:  # another worker runs this set: run another one in the meantime
            for other in [each for each in MODES if each != "ordinary-user" or IS_ROOT]:
                compute(other, wait=False)
            world = compute(mode, wait=True)
        return Trials(world)

    return get_trials


def _try_all(setup: Setup, attempts: Iterable[Attempt]) -> dict[str, Any]:
    with open_arena(setup) as arena:
        before = arena.facts()
        outcomes = _run_attempts(arena, attempts)
        quiet = eventually(
            lambda: arena.facts()["descriptors"] <= before["descriptors"] + MAX_DESCRIPTORS
        )
        world = {
            "outcomes": outcomes,
            "before": before,
            "after": arena.facts(),
            "quiet": quiet,
            "processes_left": eventually(
                lambda: len(list_descendants(arena.process.pid)) <= 2 + 2 * 3
            ),
            "noise": arena.noise,
            "stderr": arena.stderr(),
            "names": sorted(entry.name for entry in arena.folder.iterdir()),
            "sentinel": _read_facts(arena.folder / "sentinel.txt"),
            "inherited": (arena.folder / "sentinel_inherited").read_text(encoding="utf-8"),
            "module": (arena.folder / "sentinel_mod.py").read_text(encoding="utf-8"),
        }
        arena.close()
        world["scratch_left"] = sorted(
            str(path.relative_to(arena.scratch)) for path in arena.scratch.glob("*/*")
        )
        world["directories_left"] = sorted(path.name for path in arena.scratch.iterdir())
    return world


def _run_attempts(arena: Arena, attempts: Iterable[Attempt]) -> dict[str, Any]:
    under_way = {
        each.id: arena.attempt(each.code, "brief" if each.brief else "patient") for each in attempts
    }
    done = {ident: future.result(SET_TIMEOUT_SECONDS) for ident, future in under_way.items()}
    return {ident: asdict(outcome) for ident, outcome in done.items()}


def _read_facts(path: Path) -> dict[str, Any]:
    status = path.stat()
    attributes = {name for name in os.listxattr(path) if name.startswith("user.")}
    return {
        "text": path.read_text(encoding="utf-8"),
        "mode": stat.S_IMODE(status.st_mode),
        "changed": status.st_mtime,
        "attributes": sorted(attributes - {"user.secret"}),
    }


# --- outcomes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "attempt"), IN_MODES)
def test_an_attempt_has_the_expected_outcome(mode: str, attempt: Attempt, trial: Trial) -> None:
    outcome = trial(mode).outcomes[attempt.id]
    details = f"{attempt.what}: {outcome}"
    assert outcome.raised is None, f"the server itself failed at {details}"
    assert outcome.probe == PROBE_ANSWER, f"the next run was affected by {details}"
    assert OTHER_SECRET not in outcome.text, details
    if ISOLATION == "wasm" and attempt.must == "allow" and outcome.is_error:
        assert any(lack in outcome.text for lack in LACKS), details
        return
    # A sandbox prevents the same attempts with other errors: it has no system calls and no
    # descriptors.
    assert attempt.says in outcome.text or (ISOLATION == "wasm" and attempt.must != "allow"), (
        details
    )
    CHECKS[attempt.must](attempt, outcome)


def _check_blocked(attempt: Attempt, outcome: Outcome) -> None:
    if not attempt.kind.startswith(OWN_TEXT_ALLOWED):
        assert SENTINEL not in outcome.text, f"{attempt.what}: {outcome}"


def _check_limited(attempt: Attempt, outcome: Outcome) -> None:
    if attempt.brief:
        assert outcome.seconds < SECONDS["brief"] + GRACE_SECONDS, f"{attempt.what}: {outcome}"


def _check_contained(attempt: Attempt, outcome: Outcome) -> None:
    assert outcome.text or outcome.is_error, f"{attempt.what}: {outcome}"


def _check_allowed(attempt: Attempt, outcome: Outcome) -> None:
    assert not outcome.is_error, f"{attempt.what}: {outcome}"
    if attempt.id in VALUES:
        assert outcome.text == VALUES[attempt.id]


CHECKS = {
    "block": _check_blocked,
    "limit": _check_limited,
    "contain": _check_contained,
    "allow": _check_allowed,
}


# --- the state after a set ------------------------------------------------------------------------

WHOLE_SETS = pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "required"])


@WHOLE_SETS
def test_the_attempts_change_no_files_outside(mode: str, trial: Trial) -> None:
    world = trial(mode).facts
    expected = [
        "home",
        "scratch",
        "sentinel.txt",
        "sentinel_inherited",
        "sentinel_mod.py",
        "stderr",
    ]
    assert world["names"] == expected
    unchanged = {"text": SENTINEL, "mode": 0o644, "changed": 1_000_000_000, "attributes": []}
    assert world["sentinel"] == unchanged
    assert world["inherited"] == SENTINEL
    assert SENTINEL in world["module"]


@WHOLE_SETS
def test_the_attempts_do_not_reach_the_listeners(mode: str, trial: Trial) -> None:
    assert trial(mode).facts["after"]["hits"] == 0


@WHOLE_SETS
def test_the_attempts_forge_no_output_of_the_server(mode: str, trial: Trial) -> None:
    assert trial(mode).facts["noise"] == []


@WHOLE_SETS
def test_the_server_logs_no_errors(mode: str, trial: Trial) -> None:
    world = trial(mode).facts
    assert world["after"]["complaints"] == []
    assert world["stderr"] == ""


@WHOLE_SETS
def test_the_server_leaks_no_descriptors_or_processes(mode: str, trial: Trial) -> None:
    world = trial(mode).facts
    assert world["quiet"], (world["before"], world["after"])
    assert world["processes_left"]


@WHOLE_SETS
def test_the_memory_of_the_server_stays_bounded(mode: str, trial: Trial) -> None:
    before, after = trial(mode).facts["before"], trial(mode).facts["after"]
    assert after["memory_kb"] - before["memory_kb"] < 300_000


@WHOLE_SETS
def test_no_scratch_files_are_left_behind(mode: str, trial: Trial) -> None:
    world = trial(mode).facts
    assert world["scratch_left"] == []
    assert world["directories_left"] == []


# --- the attempts themselves ----------------------------------------------------------------------


def test_the_attempts_succeed_without_isolation(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The attempts succeed without isolation, so the outcomes above are caused by the isolation."""
    setup = Setup(isolation="off", forked=False)
    facts = compute_once(tmp_path_factory, "proven", lambda: _prove(setup))
    failed = {
        each.id: facts[each.id]
        for each in PROVEN
        if SENTINEL not in "".join(facts[each.id]["blocks"])
    }
    assert not failed
    assert len(PROVEN) > 50


def _prove(setup: Setup) -> dict[str, Any]:
    with open_arena(setup) as arena:
        return _run_attempts(arena, PROVEN)


def test_ordinary_code_works_without_isolation(tmp_path_factory: pytest.TempPathFactory) -> None:
    def ordinary() -> dict[str, Any]:
        with open_arena(Setup(isolation="off", forked=False)) as arena:
            return _run_attempts(arena, ALLOWED)

    facts = compute_once(tmp_path_factory, "allowed-off", ordinary)
    outcomes = {each.id: Outcome.of(facts[each.id]) for each in ALLOWED}
    assert not {
        ident: outcome for ident, outcome in outcomes.items() if outcome.is_error or outcome.raised
    }
    assert not [each.id for each in ALLOWED if each.says not in outcomes[each.id].text]


def test_the_set_of_attempts_does_not_shrink() -> None:
    assert len(KNOWN) >= 102
    assert len(ATTEMPTS) >= 60
    assert len({attempt.id for attempt in ALL}) == len(ALL)


def test_attempts_run_as_the_current_and_an_ordinary_user(trial: Trial) -> None:
    users = {"current-user": os.geteuid()}
    if IS_ROOT and "ordinary-user" in MODES:
        users["ordinary-user"] = ORDINARY_USER
    for mode, user in users.items():
        result = trial(mode)
        assert result.facts["after"]["user"] == user
        assert result.outcomes.keys() == {attempt.id for attempt in MODES[mode][1]}
    assert MODES["current-user"][1] == ALL
