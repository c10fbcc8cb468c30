"""What the sandbox says about paths: patterns, whole names, and everything that hides in a path."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings, strategies as st

from onetool.context import ToolContext
from onetool.errors import ArgumentError, ConfigError, SandboxDenied, ToolError
from onetool.files import Files, read
from onetool.files.asked import asked
from onetool.files.beneath import open_by_kernel, open_by_walking
from onetool.files.globs import Glob, alternatives
from onetool.files.rules import Refusal, Rules, is_below

RIPGREP = str(Path(sys.executable).with_name("rg"))
NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
    lambda name: name not in {".", ".."}
)
PARTS = st.sampled_from(["a", "b", "*", "a*", "?", "**", "*.py", "[ab]", "[!a]", "x.py"])
SHORT = st.sampled_from(["a", "b", "ab", "x.py", ".env", "c"])


def rules(folder: Path | str = "/app", **sandbox: Any) -> Rules:
    return Rules.of(ToolContext(working_dir=Path(folder), sandbox=sandbox))


def files(folder: Path, **sandbox: Any) -> Files:
    return Files(ToolContext(working_dir=folder, sandbox=sandbox))


# --- patterns ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("*.py", "a.py", True),
        ("*.py", "src/a.py", False),
        ("**/*.py", "a.py", True),
        ("**/*.py", "src/deep/a.py", True),
        ("src/**/*.py", "src/a.py", True),
        ("src/**/*.py", "src/x/y/a.py", True),
        ("src/**", "src", False),
        ("src/**", "src/a", True),
        ("src/**", "src/a/b", True),
        ("**", "a/b/c", True),
        ("**/**/**/a", "a", True),
        ("a/b*c", "a/b/c", False),
        ("a?c", "a/c", False),
        ("[!a]", "b", True),
        ("[!a]", "a", False),
        ("[", "[", True),
        ("a**b", "axxb", True),
        ("a**b", "a/b", False),
        ("./a//b", "a/b", True),
        (".*", ".env", True),
        ("*", ".env", True),
        ("a\n*", "a\nb", True),
    ],
)
def test_a_pattern_fits_whole_paths(pattern: str, path: str, fits: bool) -> None:
    *_, states = Glob(pattern).through(path.split("/"))
    assert Glob(pattern).complete(states) is fits


@given(st.lists(st.sampled_from(["a", "b", "**", "x.py", "*"]), min_size=1, max_size=5), st.lists(SHORT, max_size=5))
def test_stepping_through_names_is_what_one_expression_says(parts: list[str], names: list[str]) -> None:
    said = parts if parts[-1] != "**" else [*parts, "*"]
    expression = "".join(
        "(?:[^/]+/)*" if part == "**" else "[^/]+/" if part == "*" else re.escape(part) + "/" for part in said
    )
    *_, states = Glob("/".join(parts)).through(names)
    assert Glob("/".join(parts)).complete(states) is bool(re.fullmatch(expression, "".join(f"{n}/" for n in names)))


@given(st.lists(PARTS, min_size=1, max_size=4), st.lists(SHORT, max_size=3), st.lists(SHORT, max_size=3))
def test_what_a_pattern_says_from_a_folder_is_what_it_says_of_the_whole(
    parts: list[str], folder: list[str], names: list[str]
) -> None:
    glob = Glob("/".join(parts))
    rests = [Glob(rest) for rest in glob.rests(folder)]
    covered_before = glob.covers(folder)
    assert glob.covers([*folder, *names]) is (covered_before or any(rest.covers(names) for rest in rests))


@given(st.lists(PARTS, min_size=1, max_size=5), st.lists(SHORT, min_size=1, max_size=4), SHORT)
def test_what_is_below_what_fits_is_covered(parts: list[str], names: list[str], more: str) -> None:
    glob = Glob("/".join(parts))
    if glob.covers(names):
        assert glob.covers([*names, more])


def test_a_hostile_pattern_takes_no_time() -> None:
    names = ["a" * 255] * 200
    assert not Glob("*a" * 100 + "b").covers(names)
    assert not Glob("/".join(["**", "a*"] * 50 + ["b"])).covers(names)


def test_braces_are_alternatives() -> None:
    assert sorted(alternatives("*.{pem,key}")) == ["*.key", "*.pem"]
    assert sorted(alternatives("{a,{b,c}}")) == ["a", "b", "c"]
    assert alternatives("{a}") == ["{a}"]
    with pytest.raises(ArgumentError, match="expands to more than"):
        alternatives("{a,b}" * 20)


# --- what is denied ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "path", "is_denied"),
    [
        (".env*", "/app/.env", True),
        (".env*", "/app/a/b/.env.local", True),
        (".env*", "/app/.environment/file", True),
        (".env*", "/app/x.env", False),
        ("node_modules", "/app/a/node_modules/b/c.js", True),
        ("node_modules/", "/app/node_modules/b", True),
        ("**/*.secret", "/app/a.secret", True),
        ("**/*.secret", "/app/a/b/c.secret", True),
        ("config/*.key", "/app/config/a.key", True),
        ("config/*.key", "/app/x/config/a.key", False),
        ("config/*.key", "/app/config/x/a.key", False),
        ("./config", "/app/config", True),
        ("/app/private", "/app/private/x", True),
        ("/app/private", "/app/private2", False),
        ("/app/*/x", "/app/b/x/y", True),
        ("*.{pem,key}", "/app/a.pem", True),
        ("/", "/app/anything", True),
        ("app", "/app/x", False),
        ("secret\u0301", "/app/secre\u0074\u0301", True),
        ("caf\u00e9", "/app/cafe\u0301", True),
        ("cafe\u0301", "/app/caf\u00e9/x", True),
    ],
)
def test_denied_patterns(pattern: str, path: str, is_denied: bool) -> None:
    expected = Refusal.DENIED if is_denied else None
    assert rules(denied_patterns=[pattern]).refusal(path, writing=False) is expected


def test_a_pattern_starts_at_each_allowed_path() -> None:
    both = rules(allowed_paths=["/app", "/app/sub", "/nowhere"], denied_patterns=["x/y"])
    denied = ["/app/x/y", "/app/sub/x/y", "/nowhere/x/y/z"]
    assert [both.refusal(path, writing=False) for path in denied] == [Refusal.DENIED] * 3
    assert both.refusal("/app/z/x/y", writing=False) is None


def test_a_denied_name_on_the_way_to_an_allowed_folder_denies_nothing() -> None:
    assert rules("/build/app", denied_patterns=["build"]).refusal("/build/app/x", writing=False) is None


def test_a_denied_pattern_beats_an_allowed_file() -> None:
    only = rules(allowed_paths=["/nowhere/.env", "/nowhere/a.txt"], denied_patterns=[".env"])
    assert only.refusal("/nowhere/.env", writing=False) is Refusal.DENIED
    assert only.refusal("/nowhere/a.txt", writing=False) is None
    assert only.refusal("/nowhere/b.txt", writing=False) is Refusal.OUTSIDE


def test_a_denied_pattern_in_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    mine = rules(allowed_paths=["~"], denied_patterns=["~/.ssh"])
    assert mine.refusal("/home/ada/.ssh/id", writing=False) is Refusal.DENIED
    assert mine.refusal("/home/ada/x/.ssh", writing=False) is None


def test_an_absolute_pattern_through_a_link_denies_what_is_behind_the_link(tmp_path: Path) -> None:
    real = tmp_path / "real"
    (real / "in").mkdir(parents=True)
    (tmp_path / "link").symlink_to(real)
    denying = rules(tmp_path, denied_patterns=[f"{tmp_path}/link/in/*"])
    assert denying.refusal(f"{real}/in/x", writing=False) is Refusal.DENIED


@pytest.mark.parametrize(
    "key", ["allowed_paths", "denied_patterns", "readable_paths", "hidden_paths", "protected_paths"]
)
@pytest.mark.parametrize("value", ["/app", [1], [""], {"a": 1}, [None]])
def test_rules_that_are_no_list_of_texts_are_refused(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"sandbox.{key}: expected a list of strings"):
        rules(**{key: value})


def test_an_alternative_that_is_empty_denies_nothing() -> None:
    assert [path for path in ("/app/a", "/app/b") if rules(denied_patterns=["{a,}"]).is_denied(path)] == ["/app/a"]


def test_who_has_no_home_folder_reads_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*_: object) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    assert rules(denied_patterns=["~/x"]).refusal("/app/x", writing=False) is None
    assert asked("~/x", Path("/app")).whole == "/app/~/x"


def test_a_pattern_that_leads_out_is_refused() -> None:
    with pytest.raises(ConfigError, match="leaves the directory"):
        rules(denied_patterns=["../x"])


# --- where ---------------------------------------------------------------------------------------------------


@given(st.lists(NAMES, min_size=1, max_size=4), st.lists(NAMES, max_size=3), NAMES)
def test_a_folder_admits_what_is_in_it_and_no_namesake(root: list[str], below: list[str], more: str) -> None:
    folder = "/" + "/".join(root)
    assert is_below("/".join([folder, *below]), folder)
    assert not is_below(folder + more, folder)
    assert is_below(folder, "/")


@given(st.lists(st.one_of(NAMES, st.sampled_from(["..", ".", "", "~"])), max_size=8))
@example(["..", "app2", "x"])
@example(["..", "app", "x"])
def test_no_dots_lead_out_of_the_folder(names: list[str]) -> None:
    context = ToolContext(working_dir=Path("/nowhere/app"), sandbox={})
    path = "/".join(names) or "."
    admitted = Files(context).admits(Path(f"/nowhere/app/{path}"))
    assert admitted is Path(os.path.normpath(f"/nowhere/app/{path}")).is_relative_to("/nowhere/app")


def test_read_only_hidden_and_protected_paths() -> None:
    guarded = rules(
        readable_paths=["/nowhere"], hidden_paths=["/app/.onetool/secrets.yaml"], protected_paths=["/app/.onetool"]
    )
    reading = {path: guarded.refusal(path, writing=False) for path in ("/nowhere/a", "/app/.onetool/onetool.yaml")}
    assert reading == {"/nowhere/a": None, "/app/.onetool/onetool.yaml": None}
    assert guarded.refusal("/app/.onetool/secrets.yaml", writing=False) is Refusal.HIDDEN
    assert guarded.refusal("/nowhere/a", writing=True) is Refusal.READ_ONLY
    assert guarded.refusal("/app/.onetool/new", writing=True) is Refusal.PROTECTED
    assert guarded.refusal("/app/.onetool2", writing=True) is None


def test_hidden_paths_are_hidden_behind_links_and_in_every_spelling(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    hiding = rules(tmp_path, hidden_paths=[f"{tmp_path}/link/caf\u00e9"])
    for path in ("real/caf\u00e9", "real/cafe\u0301", "link/cafe\u0301/x"):
        assert hiding.named_refusal(f"{tmp_path}/{path}") is Refusal.HIDDEN


def test_without_a_sandbox_everything_is_open() -> None:
    for sandbox in (None, {"enabled": False, "allowed_paths": ["/x"], "denied_patterns": ["*"]}):
        assert Rules.of(ToolContext(sandbox=sandbox)).refusal("/etc/passwd", writing=True) is None


def test_allowed_paths_start_at_the_working_folder_and_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    some = rules("/app", allowed_paths=["src", "../nowhere", "~/x"])
    open_ = [path for path in ("/app/src/a", "/app/a", "/nowhere/a", "/home/ada/x/a", "/home/ada/y")
             if some.refusal(path, writing=True) is None]  # fmt: skip
    assert open_ == ["/app/src/a", "/nowhere/a", "/home/ada/x/a"]


@pytest.mark.parametrize(
    ("folder", "sandbox", "is_guarded"),
    [
        ("/app/a", {"denied_patterns": ["a/secret"]}, True),
        ("/app/b", {"denied_patterns": ["a/secret"]}, False),
        ("/app/a", {"denied_patterns": ["*.key", "**/.env"]}, False),
        ("/app/private", {"denied_patterns": ["**/private/*.key"]}, True),
        ("/app/a", {"denied_patterns": ["/app/a/b"]}, True),
        ("/app/a", {"hidden_paths": ["/app/a/b/c"]}, True),
        ("/app/a", {"protected_paths": ["/app/a/b"]}, True),
        ("/app/b", {"protected_paths": ["/app/a/b"]}, False),
    ],
)
def test_folders_that_rules_speak_of_are_not_renamed(folder: str, sandbox: dict[str, Any], is_guarded: bool) -> None:
    assert rules(**sandbox).holds_guarded(folder) is is_guarded


# --- nasty paths ---------------------------------------------------------------------------------------------

NASTY = [
    "../outside/secret.txt", "./../outside/secret.txt", "in/../../outside/secret.txt", "link/secret.txt",
    "link/../outside/secret.txt", "in/./.././../outside/secret.txt", "//in/../../outside/secret.txt", "../app2/x",
    "../app/../outside/secret.txt", "deep/up/secret.txt", "file_link", "chain", "/etc/passwd", "//etc/passwd",
    "///etc///passwd", "/proc/self/root/etc/passwd", "/proc/self/cwd/../../../etc/passwd", "/dev/fd/0", "/dev/stdin",
    "/proc/self/environ", "~/../../etc/passwd", "~root/../../etc/passwd", "in/..%2f..%2fetc/passwd", "..\\outside",
    "in/\u2025/\u2025/etc/passwd", "\uff0e\uff0e/outside/secret.txt", " ../outside/secret.txt",
    "../outside/secret.txt ", "in/..;/outside", "....//....//etc/passwd", "file:///etc/passwd",
    "in/.env/../../../outside/secret.txt",
    ".env", "in/.env", "in/../.env", "./.env", "env_link", ".env/.", "in/.ENV/../../.env", "cafe\u0301", "caf\u00e9",
    "\t/etc/passwd", "/etc/passwd\n", "x" * 255, "a/" * 1500 + "x", "..", "../..", "/",
    "in/file.txt/../../../outside/secret.txt",
]  # fmt: skip


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    app = tmp_path / "app"
    for folder in ("app/in", "app/deep", "app2", "outside"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("app/in/file.txt", "app2/x", "outside/secret.txt", "app/.env", "app/in/.env", "app/caf\u00e9"):
        (tmp_path / file).write_text("secret" if "in/file" not in file else "fine")
    (app / "link").symlink_to(tmp_path / "outside")
    (app / "deep" / "up").symlink_to("../../outside")
    (app / "file_link").symlink_to("../outside/secret.txt")
    (app / "chain").symlink_to("file_link")
    (app / "env_link").symlink_to(".env")
    return app


@pytest.mark.parametrize("path", NASTY)
@pytest.mark.parametrize("opener", ["kernel", "walking"])
def test_a_nasty_path_reads_nothing_that_is_not_to_be_read(tree: Path, path: str, opener: str) -> None:
    context = ToolContext(working_dir=tree, sandbox={"denied_patterns": [".env*", "cafe\u0301"]})
    chosen = open_by_kernel if opener == "kernel" else open_by_walking
    with pytest.raises((SandboxDenied, FileNotFoundError, ArgumentError)):
        read(Files(context, chosen), path, 1 << 20)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=400, deadline=None)
@given(
    st.lists(
        st.sampled_from(["..", ".", "", "in", "app", "app2", "link", "deep", "up", "outside", "secret.txt", ".env",
                         "file.txt", "chain", "file_link", "env_link", "~", "caf\u00e9", "cafe\u0301"]),
        min_size=1, max_size=9,
    )
)  # fmt: skip
def test_whatever_is_read_is_the_one_file_that_may_be_read(tree: Path, names: list[str]) -> None:
    opened = files(tree, denied_patterns=[".env*", "cafe\u0301"])
    try:
        content = read(opened, "/".join(names) or ".", 1 << 20)
    except (ToolError, FileNotFoundError):
        return
    assert (content.data, content.path) == (b"fine", f"{tree}/in/file.txt")


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("", "the path is empty"),
        ("a\0b", "NUL"),
        ("a\ud800", "unpaired surrogate"),
        ("x" * 256, "too long"),
        ("\u00e9" * 128, "too long"),
        ("x/" * 2100, "too long"),
        ("".join(f"{number}/../" for number in range(20)), "too many `..` segments"),
    ],
)
def test_what_can_be_no_path_is_said_so(path: str, complaint: str) -> None:
    with pytest.raises(ArgumentError, match=complaint):
        asked(path, Path("/app"))


def test_what_is_named_on_the_way_and_left_again_counts() -> None:
    assert set(asked("a/.env/../b/../../c", Path("/app")).passed()) == {"/app/a/.env", "/app/a/b", "/app/c"}
    assert set(asked("a/b", Path("/app")).passed()) == {"/app/a/b"}


def test_what_cannot_be_asked_for_is_not_admitted(tmp_path: Path) -> None:
    assert not files(tmp_path).admits(tmp_path / os.fsdecode(b"\xff"))
    assert not files(tmp_path).admits(tmp_path / ("x" * 300))
    assert files(tmp_path).admits(tmp_path / "x")


def test_the_longest_paths_are_decided_soon(tmp_path: Path) -> None:
    """Each name is looked at once for each pattern; looking at each way to each name would take minutes."""
    sandbox = {"denied_patterns": [".env*", "**/*.key", "a/**/b", "*.pem", "x/**/y/**/z"]}
    context = ToolContext(working_dir=tmp_path, sandbox=sandbox)
    longest = ["a/" * 2000 + "x", "a/" * 1000 + "../" * 600 + "x", "a/../" * 800 + "x", "../" * 1300 + "x"]
    assert [Files(context).admits(Path(path)) for path in longest] == [True, True, True, False]


# --- what the refusals say -----------------------------------------------------------------------------------


def message(opened: Files, path: str, **options: Any) -> str:
    with pytest.raises(SandboxDenied) as caught:
        opened.at(path, lambda _: None, **options)
    assert caught.value.path == path
    return caught.value.message


def test_the_line_that_would_allow_it_is_yaml_that_allows_it(tmp_path: Path) -> None:
    app, other = tmp_path / "app", tmp_path / 'oth"er: [x'
    app.mkdir()
    other.mkdir()
    context = ToolContext(agent_id="helper", working_dir=app, sandbox={"enabled": True})
    said = message(Files(context), str(other / "a.txt"))
    assert said.startswith(f"File access denied by sandbox: {other}/a.txt. ")
    line = yaml.safe_load(said.partition("onetool.yaml: ")[2])
    assert Files(ToolContext(working_dir=app, sandbox=line["agents"]["helper"]["sandbox"])).admits(other / "a.txt")
    assert Files(ToolContext(working_dir=app, sandbox=line["agents"]["helper"]["sandbox"])).admits(app / "a.txt")


def test_a_refusal_says_the_same_of_what_is_there_and_what_is_not(tree: Path) -> None:
    opened = files(tree, denied_patterns=[".env*"], hidden_paths=[str(tree / "deep")])
    pairs = [("../outside/secret.txt", "../outside/nothing.txt"), (".env", ".env.nothing"), ("deep/up", "deep/nothing"),
             ("link/secret.txt", "link/nothing.txt"), ("in/.env", "in/.env2")]  # fmt: skip
    for present, missing in pairs:
        for options in ({}, {"writing": True}, {"writing": True, "follow": False}, {"create_folders": True}):
            one, other = message(opened, present, **options), message(opened, missing, **options)
            assert one.replace(Path(present).name, "_") == other.replace(Path(missing).name, "_")


def test_a_refusal_does_not_tell_where_a_link_leads(tree: Path) -> None:
    assert "outside" not in message(files(tree), "link/secret.txt")


# --- ripgrep -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("below", ["", "in", "src", "src/deep"])
def test_ripgrep_with_the_globs_finds_what_is_admitted_and_nothing_else(tmp_path: Path, below: str) -> None:
    names = ["a.txt", ".env", "in/.env.x", "in/b.txt", "src/a.key", "src/deep/a.key", "src/deep/a.pem", "x{y}/a",
             "sp ace/a", "caf\u00e9/a", "src/cafe\u0301/a", "hid[den]/a", "src/deep/q/w.txt", "b\\c/a", "s1/a",
             "sz/a"]  # fmt: skip
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("needle")
    opened = files(
        tmp_path,
        denied_patterns=[
            ".env*",
            "src/*.key",
            "**/deep/*.pem",
            "x{y}",
            "sp ace",
            "caf\u00e9",
            "b\\c",
            "s[0-9]",
            "src/*/q",
        ],
        hidden_paths=[str(tmp_path / "hid[den]")],
    )
    root = opened.search_root(below or ".")
    globs = [f"--glob={glob}" for glob in opened.denied_globs(root)]
    command = [RIPGREP, "--no-config", "--hidden", "--no-ignore", "--json", *globs, "-e", "needle", "--", "."]
    done = subprocess.run(command, cwd=root, capture_output=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    found = {line["data"]["path"]["text"].removeprefix("./") for line in lines if line["type"] == "match"}
    below_root = {str((tmp_path / name).relative_to(root)) for name in names if (tmp_path / name).is_relative_to(root)}
    assert done.stderr == b""
    assert found == {name for name in below_root if opened.admits(root / name)}


def test_a_pattern_that_ripgrep_reads_differently_is_left_to_the_second_look(tmp_path: Path) -> None:
    for pattern in ("[z-a]", "[^a]", "[]", "a[", "[\\w]"):
        for glob in files(tmp_path, denied_patterns=[pattern]).denied_globs(tmp_path):
            done = subprocess.run(
                [RIPGREP, f"--glob={glob}", "--files"], cwd=tmp_path, capture_output=True, check=False
            )
            assert done.stderr == b"", (pattern, glob)


@pytest.mark.parametrize(
    ("path", "writing", "refusal"),
    [
        ("/elsewhere/.onetool/onetool.yaml", False, Refusal.HIDDEN),
        ("/elsewhere/.OneTool/tools/x/x_tools.py", True, Refusal.HIDDEN),
        ("/elsewhere/packs/x/x_tools.py", True, Refusal.PROTECTED),
        ("/elsewhere/packs/x/x_tools.py", False, Refusal.OUTSIDE),
        ("/elsewhere/file", True, Refusal.OUTSIDE),
    ],
)
def test_what_no_setting_can_allow_is_not_called_outside(path: str, writing: bool, refusal: Refusal) -> None:
    given = rules(hidden_names=[".onetool"], protected_paths=["/elsewhere/packs"])
    assert given.refusal(path, writing=writing) is refusal
