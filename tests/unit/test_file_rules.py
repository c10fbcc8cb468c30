"""Sandbox rules for paths: patterns, names, links and hostile paths."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings, strategies as st

from onetool.errors import ArgumentError, ConfigError, SandboxDenied, ToolError
from onetool.sources.files import Files, read
from onetool.sources.files.files import open_by_kernel, open_by_walking
from onetool.sources.files.requested_path import parse_path
from onetool.sources.files.rules import Denial, Glob, Rules, expand_braces, is_below
from onetool.util.context import ToolContext

RIPGREP = str(Path(sys.executable).with_name("rg"))
NAMES = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=8
).filter(lambda name: name not in {".", ".."})
PARTS = st.sampled_from(["a", "b", "*", "a*", "?", "**", "*.py", "[ab]", "[!a]", "x.py"])
SHORT = st.sampled_from(["a", "b", "ab", "x.py", ".env", "c"])


def make_rules(directory: Path | str = "/app", **sandbox: Any) -> Rules:
    return Rules.from_context(ToolContext(working_dir=Path(directory), sandbox=sandbox))


def make_files(directory: Path, **sandbox: Any) -> Files:
    return Files(ToolContext(working_dir=directory, sandbox=sandbox))


# --- patterns -------------------------------------------------------------------------------------


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
def test_a_pattern_matches_whole_paths(pattern: str, path: str, fits: bool) -> None:
    *_, states = Glob(pattern).iter_states(path.split("/"))
    assert Glob(pattern).is_complete(states) is fits


@given(
    st.lists(st.sampled_from(["a", "b", "**", "x.py", "*"]), min_size=1, max_size=5),
    st.lists(SHORT, max_size=5),
)
def test_matching_by_name_equals_one_regular_expression(parts: list[str], names: list[str]) -> None:
    segments = parts if parts[-1] != "**" else [*parts, "*"]
    expression = "".join(
        "(?:[^/]+/)*" if part == "**" else "[^/]+/" if part == "*" else re.escape(part) + "/"
        for part in segments
    )
    *_, states = Glob("/".join(parts)).iter_states(names)
    assert Glob("/".join(parts)).is_complete(states) is bool(
        re.fullmatch(expression, "".join(f"{n}/" for n in names))
    )


@given(
    st.lists(PARTS, min_size=1, max_size=4),
    st.lists(SHORT, max_size=3),
    st.lists(SHORT, max_size=3),
)
def test_a_remainder_matches_like_the_whole_pattern(
    parts: list[str], directory: list[str], names: list[str]
) -> None:
    glob = Glob("/".join(parts))
    rests = [Glob(rest) for rest in glob.remainders(directory)]
    covered_before = glob.covers(directory)
    assert glob.covers([*directory, *names]) is (
        covered_before or any(rest.covers(names) for rest in rests)
    )


@given(st.lists(PARTS, min_size=1, max_size=5), st.lists(SHORT, min_size=1, max_size=4), SHORT)
def test_everything_below_a_match_is_covered(parts: list[str], names: list[str], more: str) -> None:
    glob = Glob("/".join(parts))
    if glob.covers(names):
        assert glob.covers([*names, more])


def test_a_hostile_pattern_is_matched_quickly() -> None:
    names = ["a" * 255] * 200
    assert not Glob("*a" * 100 + "b").covers(names)
    assert not Glob("/".join(["**", "a*"] * 50 + ["b"])).covers(names)


def test_braces_are_expanded() -> None:
    assert sorted(expand_braces("*.{pem,key}")) == ["*.key", "*.pem"]
    assert sorted(expand_braces("{a,{b,c}}")) == ["a", "b", "c"]
    assert expand_braces("{a}") == ["{a}"]
    with pytest.raises(ArgumentError, match="expands to more than"):
        expand_braces("{a,b}" * 20)


# --- denied patterns ------------------------------------------------------------------------------


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
def test_denied_patterns_match_paths_and_names(pattern: str, path: str, is_denied: bool) -> None:
    expected = Denial.DENIED if is_denied else None
    assert make_rules(denied_patterns=[pattern]).find_denial(path, writing=False) is expected


def test_a_pattern_starts_at_each_allowed_path() -> None:
    both = make_rules(allowed_paths=["/app", "/app/sub", "/nowhere"], denied_patterns=["x/y"])
    denied = ["/app/x/y", "/app/sub/x/y", "/nowhere/x/y/z"]
    assert [both.find_denial(path, writing=False) for path in denied] == [Denial.DENIED] * 3
    assert both.find_denial("/app/z/x/y", writing=False) is None


def test_a_denied_name_above_an_allowed_directory_denies_nothing() -> None:
    assert (
        make_rules("/build/app", denied_patterns=["build"]).find_denial(
            "/build/app/x", writing=False
        )
        is None
    )


def test_a_denied_pattern_beats_an_allowed_file() -> None:
    only = make_rules(allowed_paths=["/nowhere/.env", "/nowhere/a.txt"], denied_patterns=[".env"])
    assert only.find_denial("/nowhere/.env", writing=False) is Denial.DENIED
    assert only.find_denial("/nowhere/a.txt", writing=False) is None
    assert only.find_denial("/nowhere/b.txt", writing=False) is Denial.OUTSIDE


def test_a_denied_pattern_may_start_with_a_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    mine = make_rules(allowed_paths=["~"], denied_patterns=["~/.ssh"])
    assert mine.find_denial("/home/ada/.ssh/id", writing=False) is Denial.DENIED
    assert mine.find_denial("/home/ada/x/.ssh", writing=False) is None


def test_an_absolute_pattern_through_a_link_denies_what_is_behind_the_link(tmp_path: Path) -> None:
    real = tmp_path / "real"
    (real / "in").mkdir(parents=True)
    (tmp_path / "link").symlink_to(real)
    denying = make_rules(tmp_path, denied_patterns=[f"{tmp_path}/link/in/*"])
    assert denying.find_denial(f"{real}/in/x", writing=False) is Denial.DENIED


@pytest.mark.parametrize(
    "key", ["allowed_paths", "denied_patterns", "readable_paths", "hidden_paths", "protected_paths"]
)
@pytest.mark.parametrize("value", ["/app", [1], [""], {"a": 1}, [None]])
def test_rules_must_be_lists_of_strings(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"sandbox.{key}: expected a list of strings"):
        make_rules(**{key: value})


def test_an_empty_alternative_denies_nothing() -> None:
    assert [
        path
        for path in ("/app/a", "/app/b")
        if make_rules(denied_patterns=["{a,}"]).is_denied(path)
    ] == ["/app/a"]


def test_files_are_read_without_a_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*_: object) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    assert make_rules(denied_patterns=["~/x"]).find_denial("/app/x", writing=False) is None
    assert parse_path("~/x", Path("/app")).absolute == "/app/~/x"


def test_a_pattern_with_dots_is_rejected() -> None:
    with pytest.raises(ConfigError, match="leaves the directory"):
        make_rules(denied_patterns=["../x"])


# --- allowed paths --------------------------------------------------------------------------------


@given(st.lists(NAMES, min_size=1, max_size=4), st.lists(NAMES, max_size=3), NAMES)
def test_an_allowed_directory_allows_its_contents_only(
    root: list[str], below: list[str], more: str
) -> None:
    directory = "/" + "/".join(root)
    assert is_below("/".join([directory, *below]), directory)
    assert not is_below(directory + more, directory)
    assert is_below(directory, "/")


@given(st.lists(st.one_of(NAMES, st.sampled_from(["..", ".", "", "~"])), max_size=8))
@example(["..", "app2", "x"])
@example(["..", "app", "x"])
def test_dots_do_not_leave_the_directory(names: list[str]) -> None:
    context = ToolContext(working_dir=Path("/nowhere/app"), sandbox={})
    path = "/".join(names) or "."
    admitted = Files(context).is_allowed(Path(f"/nowhere/app/{path}"))
    assert admitted is Path(os.path.normpath(f"/nowhere/app/{path}")).is_relative_to("/nowhere/app")


def test_read_only_hidden_and_protected_paths_are_denied() -> None:
    guarded = make_rules(
        readable_paths=["/nowhere"],
        hidden_paths=["/app/.onetool/secrets.yaml"],
        protected_paths=["/app/.onetool"],
    )
    reading = {
        path: guarded.find_denial(path, writing=False)
        for path in ("/nowhere/a", "/app/.onetool/onetool.yaml")
    }
    assert reading == {"/nowhere/a": None, "/app/.onetool/onetool.yaml": None}
    assert guarded.find_denial("/app/.onetool/secrets.yaml", writing=False) is Denial.HIDDEN
    assert guarded.find_denial("/nowhere/a", writing=True) is Denial.READ_ONLY
    assert guarded.find_denial("/app/.onetool/new", writing=True) is Denial.PROTECTED
    assert guarded.find_denial("/app/.onetool2", writing=True) is None


def test_hidden_paths_are_hidden_behind_links_and_in_every_spelling(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    hiding = make_rules(tmp_path, hidden_paths=[f"{tmp_path}/link/caf\u00e9"])
    for path in ("real/caf\u00e9", "real/cafe\u0301", "link/cafe\u0301/x"):
        assert hiding.find_name_denial(f"{tmp_path}/{path}") is Denial.HIDDEN


def test_without_a_sandbox_everything_is_open() -> None:
    for sandbox in (None, {"enabled": False, "allowed_paths": ["/x"], "denied_patterns": ["*"]}):
        assert (
            Rules.from_context(ToolContext(sandbox=sandbox)).find_denial(
                "/etc/passwd", writing=True
            )
            is None
        )


def test_allowed_paths_start_at_the_working_directory_and_at_home(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    some = make_rules("/app", allowed_paths=["src", "../nowhere", "~/x"])
    open_ = [path for path in ("/app/src/a", "/app/a", "/nowhere/a", "/home/ada/x/a", "/home/ada/y")
             if some.find_denial(path, writing=True) is None]  # fmt: skip
    assert open_ == ["/app/src/a", "/nowhere/a", "/home/ada/x/a"]


@pytest.mark.parametrize(
    ("directory", "sandbox", "is_guarded"),
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
def test_directories_with_rules_are_detected(
    directory: str, sandbox: dict[str, Any], is_guarded: bool
) -> None:
    assert make_rules(**sandbox).has_rules_below(directory) is is_guarded


# --- hostile paths --------------------------------------------------------------------------------

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
    for directory in ("app/in", "app/deep", "app2", "outside"):
        (tmp_path / directory).mkdir(parents=True)
    for file in (
        "app/in/file.txt",
        "app2/x",
        "outside/secret.txt",
        "app/.env",
        "app/in/.env",
        "app/caf\u00e9",
    ):
        (tmp_path / file).write_text("secret" if "in/file" not in file else "fine")
    (app / "link").symlink_to(tmp_path / "outside")
    (app / "deep" / "up").symlink_to("../../outside")
    (app / "file_link").symlink_to("../outside/secret.txt")
    (app / "chain").symlink_to("file_link")
    (app / "env_link").symlink_to(".env")
    return app


@pytest.mark.parametrize("path", NASTY)
@pytest.mark.parametrize("opener", ["kernel", "walking"])
def test_a_hostile_path_reads_no_denied_file(tree: Path, path: str, opener: str) -> None:
    context = ToolContext(working_dir=tree, sandbox={"denied_patterns": [".env*", "cafe\u0301"]})
    chosen = open_by_kernel if opener == "kernel" else open_by_walking
    with pytest.raises((SandboxDenied, FileNotFoundError, ArgumentError)):
        read(Files(context, chosen), path, 1 << 20)


@pytest.mark.slow
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=400, deadline=None
)
@given(
    st.lists(
        st.sampled_from(["..", ".", "", "in", "app", "app2", "link", "deep", "up", "outside", "secret.txt", ".env",
                         "file.txt", "chain", "file_link", "env_link", "~", "caf\u00e9", "cafe\u0301"]),
        min_size=1, max_size=9,
    )
)  # fmt: skip
def test_random_paths_read_only_the_allowed_file(tree: Path, names: list[str]) -> None:
    opened = make_files(tree, denied_patterns=[".env*", "cafe\u0301"])
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
def test_an_invalid_path_is_rejected(path: str, complaint: str) -> None:
    with pytest.raises(ArgumentError, match=complaint):
        parse_path(path, Path("/app"))


def test_directories_left_by_dots_are_checked() -> None:
    assert set(parse_path("a/.env/../b/../../c", Path("/app")).iter_paths()) == {
        "/app/a/.env",
        "/app/a/b",
        "/app/c",
    }
    assert set(parse_path("a/b", Path("/app")).iter_paths()) == {"/app/a/b"}


def test_an_invalid_path_is_not_allowed(tmp_path: Path) -> None:
    assert not make_files(tmp_path).is_allowed(tmp_path / os.fsdecode(b"\xff"))
    assert not make_files(tmp_path).is_allowed(tmp_path / ("x" * 300))
    assert make_files(tmp_path).is_allowed(tmp_path / "x")


def test_long_paths_are_checked_quickly(tmp_path: Path) -> None:
    """Each name is matched once per pattern; trying every path to each name would take minutes."""
    sandbox = {"denied_patterns": [".env*", "**/*.key", "a/**/b", "*.pem", "x/**/y/**/z"]}
    context = ToolContext(working_dir=tmp_path, sandbox=sandbox)
    longest = [
        "a/" * 2000 + "x",
        "a/" * 1000 + "../" * 600 + "x",
        "a/../" * 800 + "x",
        "../" * 1300 + "x",
    ]
    assert [Files(context).is_allowed(Path(path)) for path in longest] == [True, True, True, False]


# --- error messages -------------------------------------------------------------------------------


def get_message(opened: Files, path: str, **options: Any) -> str:
    with pytest.raises(SandboxDenied) as caught:
        opened.run_at(path, lambda _: None, **options)
    assert caught.value.path == path
    return caught.value.message


def test_the_suggested_setting_is_yaml_that_allows_the_path(tmp_path: Path) -> None:
    app, other = tmp_path / "app", tmp_path / 'oth"er: [x'
    app.mkdir()
    other.mkdir()
    context = ToolContext(
        agent_id="helper", working_dir=app, sandbox={"enabled": True}, system=cast("Any", object())
    )
    message = get_message(Files(context), str(other / "a.txt"))
    assert message.startswith(f"File access denied by sandbox: {other}/a.txt. ")
    line = yaml.safe_load(message.partition("onetool.yaml: ")[2])
    assert Files(
        ToolContext(working_dir=app, sandbox=line["agents"]["helper"]["sandbox"])
    ).is_allowed(other / "a.txt")
    assert Files(
        ToolContext(working_dir=app, sandbox=line["agents"]["helper"]["sandbox"])
    ).is_allowed(app / "a.txt")


def test_an_error_does_not_reveal_whether_a_file_exists(tree: Path) -> None:
    opened = make_files(tree, denied_patterns=[".env*"], hidden_paths=[str(tree / "deep")])
    pairs = [("../outside/secret.txt", "../outside/nothing.txt"), (".env", ".env.nothing"), ("deep/up", "deep/nothing"),
             ("link/secret.txt", "link/nothing.txt"), ("in/.env", "in/.env2")]  # fmt: skip
    for present, missing in pairs:
        for options in (
            {},
            {"writing": True},
            {"writing": True, "follow": False},
            {"create_folders": True},
        ):
            one, other = (
                get_message(opened, present, **options),
                get_message(opened, missing, **options),
            )
            assert one.replace(Path(present).name, "_") == other.replace(Path(missing).name, "_")


def test_an_error_does_not_reveal_the_target_of_a_link(tree: Path) -> None:
    assert "outside" not in get_message(make_files(tree), "link/secret.txt")


# --- ripgrep --------------------------------------------------------------------------------------


@pytest.mark.parametrize("below", ["", "in", "src", "src/deep"])
def test_ripgrep_with_the_globs_finds_allowed_files_only(tmp_path: Path, below: str) -> None:
    names = ["a.txt", ".env", "in/.env.x", "in/b.txt", "src/a.key", "src/deep/a.key", "src/deep/a.pem", "x{y}/a",
             "sp ace/a", "caf\u00e9/a", "src/cafe\u0301/a", "hid[den]/a", "src/deep/q/w.txt", "b\\c/a", "s1/a",
             "sz/a"]  # fmt: skip
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("needle")
    opened = make_files(
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
    root = opened.resolve_search_root(below or ".")
    globs = [f"--glob={glob}" for glob in opened.list_denied_globs(root)]
    command = [
        RIPGREP,
        "--no-config",
        "--hidden",
        "--no-ignore",
        "--json",
        *globs,
        "-e",
        "needle",
        "--",
        ".",
    ]
    done = subprocess.run(command, cwd=root, capture_output=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    found = {
        line["data"]["path"]["text"].removeprefix("./") for line in lines if line["type"] == "match"
    }
    below_root = {
        str((tmp_path / name).relative_to(root))
        for name in names
        if (tmp_path / name).is_relative_to(root)
    }
    assert done.stderr == b""
    assert found == {name for name in below_root if opened.is_allowed(root / name)}


def test_a_pattern_that_ripgrep_reads_differently_is_not_passed_to_it(tmp_path: Path) -> None:
    for pattern in ("[z-a]", "[^a]", "[]", "a[", "[\\w]"):
        for glob in make_files(tmp_path, denied_patterns=[pattern]).list_denied_globs(tmp_path):
            done = subprocess.run(
                [RIPGREP, f"--glob={glob}", "--files"],
                cwd=tmp_path,
                capture_output=True,
                check=False,
            )
            assert done.stderr == b"", (pattern, glob)


@pytest.mark.parametrize(
    ("path", "writing", "error"),
    [
        ("/elsewhere/.onetool/onetool.yaml", False, Denial.HIDDEN),
        ("/elsewhere/.OneTool/tools/x/x_tools.py", True, Denial.HIDDEN),
        ("/elsewhere/packs/x/x_tools.py", True, Denial.PROTECTED),
        ("/elsewhere/packs/x/x_tools.py", False, Denial.OUTSIDE),
        ("/elsewhere/file", True, Denial.OUTSIDE),
    ],
)
def test_a_path_that_no_setting_can_allow_is_not_reported_as_outside(
    path: str, writing: bool, error: Denial
) -> None:
    given = make_rules(hidden_names=[".onetool"], protected_paths=["/elsewhere/packs"])
    assert given.find_denial(path, writing=writing) is error
