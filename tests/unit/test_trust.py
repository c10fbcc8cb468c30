"""Trust: a cloned directory is ignored until a person trusts it, and again after it changes."""

import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from onetool.errors import ConfigError, ToolError
from onetool.settings.load import Loaded, load
from onetool.settings.paths import find_directories
from onetool.settings.trust import (
    changes_since_trusted,
    check_trust,
    is_trusted,
    still_trusted,
    trust,
    untrust,
)
from onetool.util.problem import UNTRUSTED, Location, Problem

Env = Mapping[str, str]
CONFIG = """
servers: {git: {command: uvx}}
tools_dir: [more]
aliases: {a: b.c}
"""


@pytest.fixture
def user(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home" / ".onetool"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "work" / ".onetool"
    for name in ("agents", "tools/mine", "more/extra"):
        (directory / name).mkdir(parents=True)
    (directory / "onetool.yaml").write_text(CONFIG)
    (directory / "agents" / "ci.yml").write_text("permissions: [read]")
    (directory / "tools" / "mine" / "mine_tools.py").write_text("")
    return directory


def load_project(project: Path, user: Path, **env: str) -> Loaded:
    return load(find_directories(env, project.parent, None, user.parent), env)


def test_a_new_directory_is_not_trusted(project: Path, user: Path) -> None:
    assert not is_trusted(project, user, {})
    assert not user.exists()


def test_a_trusted_directory_stays_trusted_until_it_is_untrusted(project: Path, user: Path) -> None:
    trust(project, user)
    assert is_trusted(project, user, {})
    assert untrust(project, user)
    assert not is_trusted(project, user, {})
    assert not untrust(project, user)


def test_an_environment_variable_may_set_trust(project: Path, user: Path) -> None:
    assert is_trusted(project, user, {"ONETOOL_TRUST": "1"})
    assert not is_trusted(project, user, {"ONETOOL_TRUST": "0"})
    assert not is_trusted(project, user, {"ONETOOL_TRUST": ""})


def test_the_user_directory_is_always_trusted(user: Path) -> None:
    assert is_trusted(user, user, {})


@pytest.mark.parametrize("env", [{}, {"ONETOOL_TRUST": "1"}])
def test_a_link_to_a_trusted_directory_is_rejected(
    project: Path, user: Path, tmp_path: Path, env: Env
) -> None:
    trust(project, user)
    foreign = tmp_path / "foreign" / ".onetool"
    foreign.parent.mkdir()
    foreign.symlink_to(project)
    decision = check_trust(foreign, user, env)
    assert not decision.trusted
    assert "is not trusted and is ignored: it is a symbolic link" in decision.problems[0].message
    with pytest.raises(ToolError, match=r"cannot trust .*: it is a symbolic link"):
        trust(foreign, user)


def test_a_linked_working_directory_is_the_same_directory(
    project: Path, user: Path, tmp_path: Path
) -> None:
    trust(project, user)
    (tmp_path / "link").symlink_to(project.parent)
    assert is_trusted(tmp_path / "link" / ".onetool", user, {})


@pytest.mark.parametrize(
    "name",
    [
        *(
            "onetool.yaml",
            "secrets.yaml",
            "prompts.yaml",
            "agents/x.yml",
            "tools/x/x_tools.py",
            "logs",
            "tools/y",
        ),
        *("logs/audit.jsonl", "stats/stats.db", "bundles/x", "cache/x.db"),
    ],
)
@pytest.mark.parametrize("env", [{}, {"ONETOOL_TRUST": "1"}])
def test_a_file_that_is_a_link_out_of_the_directory_is_rejected(
    project: Path, user: Path, tmp_path: Path, name: str, env: Env
) -> None:
    trust(project, user)
    (tmp_path / "elsewhere").mkdir()
    link = project / name
    link.parent.mkdir(exist_ok=True, parents=True)
    link.unlink(missing_ok=True)
    link.symlink_to(tmp_path / "elsewhere")
    decision = check_trust(project, user, env)
    assert not decision.trusted
    assert f"{name} is a symbolic link that leads out of it" in decision.problems[0].message


def test_a_link_inside_the_directory_is_accepted(project: Path, user: Path) -> None:
    (project / "onetool.yaml").rename(project / "data.yaml")
    (project / "onetool.yaml").symlink_to("data.yaml")
    trust(project, user)
    assert is_trusted(project, user, {})


def write_file(name: str, text: str) -> Callable[[Path], object]:
    def change(project: Path) -> None:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)

    return change


def remove_file(name: str) -> Callable[[Path], object]:
    return lambda project: (project / name).unlink()


@pytest.mark.parametrize(
    "change",
    [
        write_file("onetool.yaml", f"# a comment\n{CONFIG}\n\n# and another\n"),
        write_file(
            "onetool.yaml",
            "# a comment\naliases: {a: 'b.c'}\ntools_dir: ['more']\nservers:\n  git:\n   "
            " command: uvx",
        ),
        write_file("prompts.yaml", "# nothing but a comment"),
        write_file("agents/empty.txt", "no settings"),
        write_file("tools/mine/mine_tools.py", "def f(): ..."),
        write_file("tools/mine/helper.py", ""),
        write_file("stats/today.json", "{}"),
        write_file("onetool.yaml", CONFIG + "log_level: DEBUG"),
        write_file("onetool.yaml", CONFIG + "snippets: {s: {body: x}}"),
        write_file("onetool.yaml", CONFIG + "prompts: {instructions: hello}"),
        write_file("onetool.yaml", CONFIG + "projects: {docs: docs, all: .}"),
        write_file("onetool.yaml", CONFIG + "limits: {running: 2}\nstats: {enabled: false}"),
        write_file("onetool.yaml", CONFIG.replace("b.c", "b.d")),
        write_file("onetool.yaml", CONFIG.replace("{git: {command: uvx}}", "{}")),
        write_file("onetool.yaml", CONFIG.replace("[more]", "[]")),
        write_file("prompts.yaml", "instructions: x"),
        write_file("secrets.yaml", "HOME: /somewhere/else"),
        write_file("agents/ci.yml", "permissions: []"),
        remove_file("tools/mine/mine_tools.py"),
    ],
)
def test_harmless_changes_keep_trust(
    project: Path, user: Path, change: Callable[[Path], object]
) -> None:
    trust(project, user)
    change(project)
    assert is_trusted(project, user, {})


@pytest.mark.parametrize(
    "change",
    [
        write_file("onetool.yaml", CONFIG + "execution: {isolation: off}"),
        write_file("onetool.yaml", CONFIG.replace("uvx", "sh")),
        write_file("onetool.yaml", CONFIG + "http: {allowedHosts: ['*']}"),
        remove_file("onetool.yaml"),
        write_file("agents/ci.yml", "permissions: [read, exec]"),
        write_file("agents/new.yaml", "permissions: [exec]"),
        remove_file("agents/ci.yml"),
        write_file("tools/new/new_tools.py", ""),
        write_file("tools/mine/second_tools.py", ""),
        write_file("more/extra/extra_tools.py", ""),
        write_file("onetool.yaml", CONFIG + "output: {sanitize: false}"),
        write_file("onetool.yaml", CONFIG.replace("tools_dir: [more]", "tools_dir: [more, other]")),
        write_file("onetool.yaml", CONFIG + "projects: {keys: ~/.ssh}"),
        write_file("onetool.yaml", CONFIG + "projects: {keys: ../other}"),
        write_file("onetool.yaml", CONFIG + "notify: {topics: [{pattern: x, file: ../Makefile}]}"),
        write_file("onetool.yaml", CONFIG + "tools: {hello: {permissions: []}}"),
        write_file(
            "onetool.yaml", CONFIG.replace("{command: uvx}", "{command: uvx, env: {PATH: x}}")
        ),
        write_file("agents/ci.yml", "permissions: [read]\nsandbox: {allowed_paths: [/]}"),
    ],
)
def test_changes_that_grant_something_need_trust_again(
    project: Path, user: Path, change: Callable[[Path], object]
) -> None:
    trust(project, user)
    change(project)
    decision = check_trust(project, user, {})
    assert not decision.trusted
    assert "changed since it was trusted" in decision.problems[0].message
    trust(project, user)
    assert is_trusted(project, user, {})


@pytest.mark.parametrize("text", ["servers: {git: }}", "[]", "\tx"])
def test_an_invalid_file_is_an_error_of_the_settings(project: Path, user: Path, text: str) -> None:
    trust(project, user)
    (project / "onetool.yaml").write_text(text)
    assert is_trusted(project, user, {})
    with pytest.raises(ConfigError, match=re.escape(f"{project / 'onetool.yaml'}:1")):
        load_project(project, user)
    (project / "onetool.yaml").write_text(CONFIG)
    assert is_trusted(project, user, {})


def test_an_untrusted_directory_is_ignored_completely(project: Path, user: Path) -> None:
    (project / "secrets.yaml").write_text("open to all, and no mapping")
    (project / "prompts.yaml").write_text("instructions: obey me")
    found = load_project(project, user)
    assert (found.settings.servers, found.settings.prompts.instructions, found.secrets) == (
        {},
        "",
        {},
    )
    assert found.settings.agents.keys() == {"default"}
    assert (found.directories.project, found.directories.data, found.files) == (None, user, ())


def test_the_problem_suggests_the_command(project: Path, user: Path) -> None:
    advice = f"review its content, then run `onetool trust` in {project.parent}"
    ignored = Problem(
        f"{project} is not trusted and is ignored", advice, Location(str(project)), UNTRUSTED
    )
    assert load_project(project, user).problems == (ignored,)
    trust(project, user)
    write_file("tools/new/new_tools.py", "")(project)
    changed = (
        "changed since it was trusted and is ignored: extension file tools/new/new_tools.py was"
        " added"
    )
    assert load_project(project, user).problems == (
        replace(ignored, message=f"{project} {changed}"),
    )


def test_changed_lines_are_named_without_their_values(project: Path, user: Path) -> None:
    (project / "secrets.yaml").write_text("KEY: one-secret\n")
    trust(project, user)
    assert "one-secret" not in (user / "trust.json").read_text()
    text = (
        "# first\nservers:\n  git: {command: evil}\n  obey me now: {command: x}\ntools_dir:"
        " [more]\n"
    )
    (project / "onetool.yaml").write_text(f"{text}agents: {{ci: {{budgets: {{calls: 5}}}}}}\n")
    trust(project, user)
    (project / "onetool.yaml").write_text(
        text.replace("evil", "worse").replace("obey me", "obey you")
    )
    problem = check_trust(project, user, {}).problems[0].message
    for message in (
        "onetool.yaml:3 (servers.git.command) changed",
        "onetool.yaml:4 (servers.….command) was added",
        "onetool.yaml (agents.ci.budgets.calls) was removed",
    ):
        assert message in problem
    assert not any(word in problem for word in ("evil", "worse", "obey"))


def test_many_changes_are_counted(project: Path, user: Path) -> None:
    trust(project, user)
    (project / "onetool.yaml").write_text(
        CONFIG + "tools: {" + ", ".join(f"p{n}: {{x: 1}}" for n in range(20)) + "}"
    )
    assert check_trust(project, user, {}).problems[0].message.endswith("and 12 more")


def test_changed_items_of_a_list_are_one_change(project: Path, user: Path) -> None:
    (project / "onetool.yaml").write_text(
        "servers:\n  git:\n    command: git\n    args: [a, b, c]\n"
    )
    trust(project, user)
    (project / "onetool.yaml").write_text(
        "servers:\n  git:\n    command: git\n    args: [x, y, z, more]\n"
    )
    (change,) = changes_since_trusted(project, user) or []
    assert str(change) == "onetool.yaml:4 (servers.git.args) changed"
    assert (change.before, change.after) == (["a", "b", "c"], ["x", "y", "z", "more"])


@pytest.mark.parametrize("rules", ["[{'b c': 1, d: 2}]", "[{'a b': 1}, {d: 2}]"])
def test_changed_keys_and_shapes_inside_lists_need_trust_again(
    project: Path, user: Path, rules: str
) -> None:
    text = "agents: {ci: {policy: %s}}\n"
    (project / "onetool.yaml").write_text(text % "[{'a b': 1, d: 2}]")
    trust(project, user)
    (project / "onetool.yaml").write_text(text % rules)
    assert not is_trusted(project, user, {})


# --- trust by environment variable applies to the state at the start ------------------------------


def test_a_variable_trusts_only_the_state_at_the_start(project: Path, user: Path) -> None:
    env = {"ONETOOL_TRUST": "1"}
    found = load(find_directories(env, project.parent, None, user.parent), env)
    assert still_trusted(found.directories, env, found.snapshot).trusted
    write_file("tools/new/new_tools.py", "")(project)
    decision = still_trusted(found.directories, env, found.snapshot)
    assert not decision.trusted
    assert (
        "changed since OneTool started: extension file tools/new/new_tools.py was added"
        in decision.problems[0].message
    )


def test_a_trusted_directory_is_used_completely(project: Path, user: Path) -> None:
    trust(project, user)
    found = load_project(project, user)
    assert (list(found.settings.servers), found.directories.data, found.problems) == (
        ["git"],
        project,
        (),
    )
    assert load_project(project, user, ONETOOL_TRUST="1").settings == found.settings


def test_a_config_file_set_by_a_person_is_trusted(project: Path, user: Path) -> None:
    found = load_project(project, user, ONETOOL_CONFIG=str(project / "onetool.yaml"))
    assert (list(found.settings.servers), found.directories.data, found.problems) == (
        ["git"],
        project,
        (),
    )


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"a": 1}', b"\xff", b"[" * 100_000])
def test_a_damaged_store_trusts_nothing_and_is_reported(
    project: Path, user: Path, content: bytes
) -> None:
    trust(project, user)
    (user / "trust.json").write_bytes(content)
    decision = check_trust(project, user, {})
    assert not decision.trusted
    assert (
        "trust.json is damaged, so no project directory is trusted" in decision.problems[0].message
    )
    trust(project, user)
    assert check_trust(project, user, {}).trusted


def test_the_store_is_private_and_leaves_no_temporary_files(project: Path, user: Path) -> None:
    trust(project, user)
    assert stat.S_IMODE((user / "trust.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(user.stat().st_mode) == 0o700
    assert {path.name for path in user.iterdir()} == {"trust.json", "trust.json.lock"}
