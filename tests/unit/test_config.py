"""Settings from files and environment variables: layers, references, secrets and error messages."""

import math
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from pydantic import ValidationError

from onetool.errors import ConfigError
from onetool.settings.access import Agent
from onetool.settings.load import Loaded, load
from onetool.settings.model import Settings
from onetool.settings.paths import find_directories
from onetool.util import yaml_loader
from onetool.util.context import Permission
from onetool.util.problem import Problem, limit_problems

DEFAULTS = """
    version: 1
    aliases: {}
    bundle_secrets: {}
    snippets: {}
    servers: {}
    expose: code
    projects: {}
    prompts: {instructions: "", packs: {}}
    tools: {}
    tools_dir: []
    disabled_packages: []
    execution: {timeout: 120, memory_mb: 512, max_tool_calls: 1000, max_command_bytes: 1000000,
                max_output_bytes: 104857600, isolation: auto, cells: 2}
    workers: {idle_timeout: 600, start_timeout: 120, call_timeout: 60, job_ttl: 86400}
    output: {max_inline_size: 50000, preview_lines: 10, result_ttl: 3600, max_stored_bytes: 1073741824,
      max_stored_bytes_per_agent: 268435456, sanitize: false}
    stats: {enabled: true, keep_days: 365, round_trip_ms: 4000}
    runs: {values: true, value_days: 7, max_value_bytes: 268435456}
    notify: {topics: [], per_minute: 60, max_file_bytes: 10485760}
    http: {allowedHosts: [], allowPrivateAddresses: false, timeoutMs: 10000, maxResponseBytes: 10485760,
           retries: 2}
    llm: {base_url: null, model: null, api_key: null, sampling: false, timeout: 60, max_tokens: 4096,
          max_tokens_per_run: 100000, max_tokens_per_day: 1000000, options: {}}
    bundles: {dir: bundles, maxTools: 100000}
    audit: {file: logs/audit.jsonl, max_bytes: 104857600, keep: 10}
    agents: {default: {permissions: [read, network], sandbox: {enabled: true}}}
    approvals: {wait: 25, ttl: 86400, by: terminal, notify: {command: [], webhook: null}, record: false}
    daemon: {shared: true, idle: 600, http: false}
    auth: {tokens: [], issuers: [], public_url: null, allowed_hosts: [], trusted_proxies: []}
    limits: {running: 8, total: 32, waiting: 128}
    docs_url: https://onetool.beycom.online/reference/tools/
    store: ""
    log_level: INFO
"""


@dataclass
class FakeMachine:
    """A machine in a directory: a home directory, a working directory, and files in both."""

    root: Path

    def __post_init__(self) -> None:
        (self.root / "home").mkdir()
        (self.root / "work").mkdir()

    @property
    def user(self) -> Path:
        return self.root / "home" / ".onetool"

    @property
    def project(self) -> Path:
        return self.root / "work" / ".onetool"

    def write(self, path: Path, text: str, mode: int = 0o600) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
        path.chmod(mode)

    def load(
        self,
        env: Mapping[str, str] | None = None,
        *,
        config: Path | None = None,
        trust: bool | None = True,
    ) -> Loaded:
        directories = find_directories(env or {}, self.root / "work", config, self.root / "home")
        return load(directories, env or {}, trust=trust)

    def settings(self, text: str = "", *, is_named: bool = False, **env: str) -> Settings:
        """Return the settings with this text in the project's file.

        A file that the user names has no restrictions.
        """
        file = self.project / "onetool.yaml"
        if text:
            self.write(file, text)
        return self.load(env, config=file if is_named else None).settings

    def error(self, text: str = "", *, is_named: bool = False, **env: str) -> str:
        with pytest.raises(ConfigError) as caught:
            self.settings(text, is_named=is_named, **env)
        return self.shorten(str(caught.value))

    def shorten(self, text: str) -> str:
        return (
            text.replace(str(self.user), "~")
            .replace(f"{self.project}/", "")
            .replace(str(self.root), "")
        )


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


def dump_settings(model: Settings) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True)


def test_defaults_match_the_documentation(machine: FakeMachine) -> None:
    documented = yaml_loader.read(dedent(DEFAULTS), "interfaces.md").data
    assert Settings.model_validate(documented) == Settings() == machine.settings()
    dumped = dump_settings(Settings())
    assert dumped.keys() == documented.keys()
    assert {key: dumped[key] for key in documented.keys() - {"agents"}} == {
        key: documented[key] for key in documented.keys() - {"agents"}
    }


def test_the_default_agent_may_read_in_the_working_directory(machine: FakeMachine) -> None:
    agent = machine.settings().agents["default"]
    assert agent.permissions == {Permission.READ, Permission.NETWORK}
    assert (agent.sandbox.enabled, agent.sandbox.allowed_paths, agent.tools) == (True, (), None)


def test_loading_settings_imports_few_modules() -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from onetool.settings import load; from onetool.settings.paths import find_directories\n"
        "load.load(find_directories({}, Path('/'), None, Path('/none')), {})\n"
        "print(sorted({'yaml', 'rapidfuzz'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_settings_are_immutable() -> None:
    with pytest.raises(ValidationError):
        Settings().execution.timeout = 5


def test_a_server_has_all_documented_keys(machine: FakeMachine) -> None:
    server = machine.settings(
        "servers: {git: {command: uvx, args: [mcp-server-git, 8080]}}"
    ).servers["git"]
    assert server.args == ("mcp-server-git", "8080")
    assert server.model_dump(exclude={"command", "args"}) == {
        "env": {}, "cwd": None, "url": None, "headers": {}, "auth": None, "accounts": (), "transport": "http",
        "enabled": True, "timeout": 30, "idle_timeout": 600, "tools": {"include": (), "exclude": ()}, "pin": "warn",
        "sanitize": False, "stateful": False, "shared": None, "expose": None,
    }  # fmt: skip


def test_packs_accept_their_own_keys(machine: FakeMachine) -> None:
    pack = machine.settings(
        "tools: {brave: {timeout: 5, secrets: [KEY], safe: off, deep: {a: [1]}}}"
    ).tools["brave"]
    assert (pack.timeout, pack.secrets, pack.permissions) == (5, ("KEY",), None)
    assert pack.options == {"safe": "off", "deep": {"a": [1]}}


def test_snippet_parameters_without_default_are_required(machine: FakeMachine) -> None:
    text = (
        "snippets: {s: {body: x, params: {a: {description: d}, b: {default: null}, c: {default: 5},"
        " d: }}}"
    )
    params = machine.settings(text).snippets["s"].params
    assert {name: param.required for name, param in params.items()} == {
        "a": True,
        "b": False,
        "c": False,
        "d": True,
    }


def test_yaml_1_1_booleans_are_strings(machine: FakeMachine) -> None:
    found = machine.settings(
        "execution: {isolation: off}\nservers: {a: {url: http://a, pin: off}}", is_named=True
    )
    assert (found.execution.isolation, found.servers["a"].pin) == ("off", "off")


def test_log_levels_may_be_lower_case(machine: FakeMachine) -> None:
    assert machine.settings("log_level: debug").log_level == "DEBUG"


def test_keys_without_a_value_keep_defaults(machine: FakeMachine) -> None:
    machine.write(
        machine.user / "onetool.yaml", "servers: {a: {url: http://a}}\nexecution: {timeout: 7}"
    )
    found = machine.settings(
        "servers:\nexecution:\nprompts: {packs: }\nagents: {ci: }\ntools: {x: }"
    )
    assert (list(found.servers), found.execution.timeout, found.prompts.packs) == (["a"], 7, {})
    assert (found.agents["ci"], found.tools["x"].options) == (Agent(), {})


def test_a_file_with_only_comments_changes_nothing(machine: FakeMachine) -> None:
    assert machine.settings("# servers:\n#   a: {}\n") == Settings()


# Layers


def test_project_settings_override_user_settings_by_key(machine: FakeMachine) -> None:
    machine.write(
        machine.user / "onetool.yaml", "execution: {timeout: 1, cells: 1}\ntools_dir: [/a, /b]"
    )
    found = machine.settings("execution: {timeout: 2}\ntools_dir: [/c]")
    assert (found.execution.timeout, found.execution.cells, found.tools_dir) == (2, 1, ("/c",))


def test_environment_variables_override_all_files(machine: FakeMachine) -> None:
    found = machine.settings(
        "execution: {timeout: 2, cells: 1}",
        ONETOOL_EXECUTION__TIMEOUT="3.5",
        ONETOOL_HTTP__ALLOWEDHOSTS="[a.com, '*.b.com:8443']",
        ONETOOL_LOG_LEVEL="ERROR",
        ONETOOL_CONFIG="",
        ONETOOL_TRUST="1",
        ONETOOL_PROMPTS__INSTRUCTIONS="",
    )
    assert (found.execution.timeout, found.execution.cells, found.log_level) == (3.5, 1, "ERROR")
    assert found.http.allowed_hosts == ("a.com", "*.b.com:8443")


def test_environment_variables_match_names_case_insensitively(machine: FakeMachine) -> None:
    found = machine.settings(
        "servers: {GitHub: {url: http://a}}",
        ONETOOL_SERVERS__GITHUB__TIMEOUT="5",
        ONETOOL_SERVERS__NEW__COMMAND="run",
        ONETOOL_SERVERS__NEW__ENV__API_KEY="k",
        ONETOOL_TOOLS__BRAVE__SAFE_SEARCH="true",
        ONETOOL_AGENTS__DEFAULT__BUDGETS__CALLS="9",
    )
    assert found.servers["GitHub"].timeout == 5
    assert (found.servers["new"].command, found.servers["new"].env) == ("run", {"API_KEY": "k"})
    assert found.tools["brave"].options == {"safe_search": True}
    assert found.agents["default"].budgets.calls == 9
    assert found.agents["default"].permissions == {Permission.READ, Permission.NETWORK}


def test_invalid_environment_variables_are_errors(machine: FakeMachine) -> None:
    message = machine.error(
        ONETOOL_EXECUTON__TIMEOUT="1",
        ONETOOL_EXECUTION__TIMOUT="1",
        ONETOOL_EXECUTION__CELLS="many",
        ONETOOL_EXECUTION__CELLS__X="1",
        ONETOOL_OUTPUT__SANITIZE="@",
    )
    assert message.replace("environment variable ONETOOL_", "").split("\n") == [
        'EXECUTION__CELLS: execution.cells must be an integer, not "many"',
        "EXECUTION__CELLS__X: execution.cells.x is an unknown key: no keys are allowed here",
        "EXECUTION__TIMOUT: execution.timout is an unknown key",
        "Hint: did you mean timeout?",
        "EXECUTON__TIMEOUT: executon is an unknown key",
        "Hint: did you mean execution?",
        "OUTPUT__SANITIZE:1: is not valid YAML: found character that cannot start any token",
    ]


def test_unknown_environment_variables_are_only_reported(machine: FakeMachine) -> None:
    assert tuple(map(str, machine.load({"ONETOOL_LOGLEVEL": "x"}).problems)) == (
        (
            "environment variable ONETOOL_LOGLEVEL: loglevel is an unknown key\nHint: did you mean"
            " log_level?"
        ),
    )


def test_prompts_are_read_from_their_own_file(machine: FakeMachine) -> None:
    machine.write(machine.user / "prompts.yaml", "instructions: user\npacks: {a: ua, b: ub}")
    machine.write(machine.project / "prompts.yaml", "packs: {b: pb, c: pc}")
    prompts = machine.settings("prompts: {packs: {c: inline}}").prompts
    assert (prompts.instructions, prompts.packs) == ("user", {"a": "ua", "b": "pb", "c": "inline"})


def test_agents_are_read_from_their_own_files(machine: FakeMachine) -> None:
    machine.write(machine.user / "agents" / "ci.yml", "permissions: [read]\nclients: [bot]")
    machine.write(machine.project / "agents" / "one.yaml", "name: ci\nbudgets: {calls: 3}")
    machine.write(
        machine.project / "agents" / "notifier.yml",
        "tools: [slack.notify]\ntool_config: {slack.notify: {a: 1}}",
    )
    agents = machine.settings().agents
    assert agents["ci"].permissions == {Permission.READ}
    assert (agents["ci"].clients, agents["ci"].budgets.calls) == (("bot",), 3)
    assert (agents["notifier"].tools, agents["notifier"].tool_config) == (
        ("slack.notify",),
        {"slack.notify": {"a": 1}},
    )
    assert agents.keys() == {"default", "ci", "notifier"}


def test_an_agent_defined_twice_is_an_error(machine: FakeMachine) -> None:
    machine.write(machine.project / "agents" / "ci.yml", "permissions: [read]")
    machine.write(machine.project / "agents" / "other.yml", "# second\nname: ci")
    assert machine.error("log_level: INFO\nagents: {ci: {permissions: [read]}}").split("\n") == [
        'agents/ci.yml:1: agent "ci" is already defined in onetool.yaml:2',
        "Hint: delete one of them",
        'agents/other.yml:2: agent "ci" is already defined in agents/ci.yml:1',
        "Hint: delete one of them",
    ]


@pytest.mark.parametrize("names", ["[read, write]", "[':read', ':write']", "[:read, :write]"])
def test_permissions_may_be_written_with_colons(machine: FakeMachine, names: str) -> None:
    agents = machine.settings(
        f"agents: {{a: {{permissions: {names}}}, b: {{budgets: {{permissions: {names}}}}}}}"
    ).agents
    assert agents["a"].permissions == agents["b"].permissions == {Permission.READ, Permission.WRITE}


def test_permissions_in_budgets_replace_the_default_ones(machine: FakeMachine) -> None:
    agent = machine.settings("agents: {default: {budgets: {permissions: [exec]}}}").agents[
        "default"
    ]
    assert agent.permissions == {Permission.EXEC}
    assert agent.sandbox.enabled


def test_equal_permissions_in_both_locations_are_accepted(machine: FakeMachine) -> None:
    text = "agents: {a: {permissions: [read, write], budgets: {permissions: [:write, :read]}}}"
    assert machine.settings(text).agents["a"].permissions == {Permission.READ, Permission.WRITE}


def test_extension_directories_are_relative_to_their_file(machine: FakeMachine) -> None:
    machine.write(machine.user / "onetool.yaml", "tools_dir: [mine, ~/more, '${BASE}/x']")
    found = machine.settings(BASE="/base").tools_dir
    assert found == (str(machine.user / "mine"), str(machine.root / "home" / "more"), "/base/x")
    assert machine.settings(ONETOOL_TOOLS_DIR="[here]").tools_dir == (
        str(machine.root / "work" / "here"),
    )


def test_the_files_that_were_read_are_listed(machine: FakeMachine) -> None:
    machine.write(machine.user / "secrets.yaml", "A: b")
    machine.write(machine.user / "onetool.yaml", "log_level: INFO")
    machine.write(machine.project / "agents" / "ci.yml", "permissions: [read]")
    assert [machine.shorten(str(path)) for path in machine.load().files] == [
        "~/secrets.yaml",
        "~/onetool.yaml",
        "agents/ci.yml",
    ]


def test_a_config_file_option_uses_the_whole_directory(machine: FakeMachine) -> None:
    conf = machine.root / "conf"
    machine.write(conf / "my.yaml", "log_level: ERROR")
    machine.write(conf / "prompts.yaml", "instructions: conf")
    machine.write(machine.project / "onetool.yaml", "log_level: DEBUG")
    for loaded in (
        machine.load(config=conf / "my.yaml", trust=None),
        machine.load({"ONETOOL_CONFIG": str(conf / "my.yaml")}),
    ):
        assert (loaded.settings.log_level, loaded.settings.prompts.instructions) == (
            "ERROR",
            "conf",
        )
        assert (loaded.directories.data, loaded.problems) == (conf, ())


def test_a_missing_config_file_is_an_error(machine: FakeMachine) -> None:
    with pytest.raises(
        ConfigError, match="file not found\nHint: check --config and ONETOOL_CONFIG"
    ):
        machine.load(config=machine.root / "none.yaml")


def test_the_home_directory_is_read_only_once(machine: FakeMachine) -> None:
    machine.write(machine.user / "onetool.yaml", "log_level: ERROR")
    loaded = machine.load({"OT_CWD": "~"}, trust=None)
    assert (loaded.settings.log_level, loaded.files) == ("ERROR", (machine.user / "onetool.yaml",))
    assert loaded.problems == ()


def test_an_invalid_working_directory_is_an_error(machine: FakeMachine) -> None:
    assert (
        machine.error(OT_CWD="/none")
        == "/none: the working directory is not a directory\nHint: check OT_CWD"
    )


# References and secrets


def test_secrets_take_precedence_in_references(machine: FakeMachine) -> None:
    machine.write(machine.user / "secrets.yaml", "TOKEN: user\nOTHER: other")
    machine.write(machine.project / "secrets.yaml", "TOKEN: project")
    text = "projects: {a: '${HOST:-local}/${EMPTY:-e}${EMPTY}', b: '${TOKEN}-${OTHER}-${ENV}'}"
    found = machine.settings(text, TOKEN="env", ENV="env", EMPTY="").projects
    assert found == {"a": "local/e", "b": "project-other-env"}


def test_references_in_values_are_not_expanded(machine: FakeMachine) -> None:
    machine.write(machine.user / "secrets.yaml", "TOKEN: '${PATH} $${'")
    found = machine.settings(
        "projects: {a: '${TOKEN}', b: 'x$${NAME}$$', c: 'a$b', d: '$$${E}'}", PATH="/bin", E="e"
    )
    assert found.projects == {"a": "${PATH} $${", "b": "x${NAME}$$", "c": "a$b", "d": "$${E}"}


def test_expanded_references_are_converted_to_the_type_of_the_setting(machine: FakeMachine) -> None:
    found = machine.settings(
        "execution: {timeout: '${T:-7}', cells: '${C}'}\nstats: {enabled: '${S:-false}'}", C="3"
    )
    assert (found.execution.timeout, found.execution.cells, found.stats.enabled) == (7, 3, False)


def test_secrets_of_a_project_are_used_only_in_its_own_settings(machine: FakeMachine) -> None:
    machine.write(machine.user / "secrets.yaml", "TOKEN: mine\nOWN: own")
    machine.write(machine.project / "secrets.yaml", "TOKEN: theirs\nHOME: /evil\nONLY: theirs")
    entry = (
        "{{command: x, env: {{A: '${{TOKEN}}', B: '${{HOME}}', C: '${{ONLY:-none}}', D:"
        " '${{OWN}}'}}, args: [{0}]}}"
    )
    machine.write(
        machine.user / "onetool.yaml",
        f"servers: {{mine: {entry.format('1')}, both: {entry.format('2')}}}",
    )
    text = f"servers: {{theirs: {entry.format('3')}, both: {{enabled: false}}}}"
    found = machine.settings(
        text, HOME="/home/ada", ONETOOL_SERVERS__MINE__ARGS="['${TOKEN}', '${ONLY:-none}']"
    ).servers
    mine = {"A": "mine", "B": "/home/ada", "C": "none", "D": "own"}
    assert (found["mine"].env, found["both"].env) == (mine, mine)
    assert found["mine"].args == ("mine", "none")
    assert found["theirs"].env == {"A": "theirs", "B": "/evil", "C": "theirs", "D": "own"}


def test_a_pack_of_the_user_gets_the_secrets_of_the_user(machine: FakeMachine) -> None:
    machine.write(machine.user / "secrets.yaml", "TOKEN: mine")
    machine.write(machine.project / "secrets.yaml", "TOKEN: theirs")
    machine.write(
        machine.user / "onetool.yaml", "tools: {mine: {secrets: [TOKEN]}, both: {secrets: [TOKEN]}}"
    )
    machine.write(
        machine.project / "onetool.yaml", "tools: {mine: {timeout: 5}, both: {secrets: [TOKEN]}}"
    )
    loaded = machine.load()
    assert (loaded.secrets_for("mine")["TOKEN"], loaded.secrets_for("both")["TOKEN"]) == (
        "mine",
        "theirs",
    )
    assert loaded.secret_values == {"mine", "theirs"}


def test_places_of_approvals_belong_to_the_layer_that_sets_them(machine: FakeMachine) -> None:
    machine.write(
        machine.user / "onetool.yaml",
        "agents: {mine: {approvals: {via: [client]}}, both: {policy: open}}",
    )
    machine.write(machine.project / "agents" / "theirs.yml", "approvals: {via: [client, ui]}")
    machine.write(
        machine.project / "onetool.yaml",
        "agents: {both: {approvals: {via: [client]}}, mine: {policy: ask-writes}}",
    )
    assert machine.load().project_approvals == {"theirs", "both"}


def test_a_secret_reference_is_not_read_from_the_environment(machine: FakeMachine) -> None:
    machine.write(machine.user / "secrets.yaml", "TOKEN: kept")
    text = (
        "servers: {x: {url: 'https://x', headers: {A: '${secret:TOKEN}', B:"
        " '${secret:NONE:-default}'}}}"
    )
    assert machine.settings(text, TOKEN="variable").servers["x"].headers == {
        "A": "kept",
        "B": "default",
    }
    message = machine.error("servers: {x: {command: '${secret:PLAIN}'}}", PLAIN="variable")
    assert (
        "refers to PLAIN, which is not set\nHint: run `onetool secret set PLAIN`, or write"
        " ${secret:PLAIN:-default}" in message
    )


def test_a_project_cannot_allow_its_bundles_to_send_secrets(machine: FakeMachine) -> None:
    message = machine.error("bundle_secrets: {evil: {KEY: ['https://evil.example']}}")
    assert message.startswith("onetool.yaml:1: bundle_secrets cannot be set by a project")
    machine.write(
        machine.user / "onetool.yaml",
        "bundle_secrets: {evil: {KEY: ['https://evil.example/path']}}",
    )
    assert "must be an origin such as https://api.example.com" in machine.error("log_level: INFO")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("audit: {file: /dev/null}", "audit"),
        ("audit: {keep: 0}", "audit"),
        ("auth: {tokens: [{name: x, hash: y}]}", "auth"),
        ("execution: {timeout: 3, isolation: off}", "execution.isolation"),
        ("store: postgresql://x@y/z", "store"),
        ("tools: {notes: {queue: gpu}}", "tools.notes.queue"),
    ],
)
def test_a_project_cannot_set_what_protects_the_user(
    machine: FakeMachine, text: str, key: str
) -> None:
    assert (
        machine.error(f"# mine\n{text}")
        == f"onetool.yaml:2: {key} cannot be set by a project\nHint: move it to ~/onetool.yaml"
    )
    machine.settings(text, is_named=True)


@pytest.mark.parametrize("file", ["~/.bashrc", "../../elsewhere", "/tmp/x", "out/x", "\\0"])
@pytest.mark.parametrize(
    ("text", "key"),
    [
        (
            'notify: {topics: [{pattern: a, file: a.yaml}, {pattern: b, file: "%s"}]}',
            "notify.topics[1].file",
        ),
        ('bundles: {dir: "%s"}', "bundles.dir"),
    ],
)
def test_a_project_writes_no_files_outside_itself(
    machine: FakeMachine, text: str, key: str, file: str
) -> None:
    machine.project.mkdir(parents=True)
    (machine.project / "out").symlink_to(machine.root)
    assert f"onetool.yaml:1: {key} leads out of the project: " in machine.error(text % file)
    machine.settings(text % "../docs/inside")


def test_a_project_cannot_name_the_language_model(machine: FakeMachine) -> None:
    mine = "llm: {base_url: 'https://mine.example/v1', model: m, api_key: '${secret:KEY}'}"
    machine.write(machine.user / "onetool.yaml", mine)
    machine.write(machine.user / "secrets.yaml", "KEY: of-the-user")
    machine.write(machine.project / "secrets.yaml", "KEY: of-the-project")
    assert (
        machine.error("http: {}\nllm: {base_url: 'https://theirs.example/v1', model: m}")
        == "onetool.yaml:2: llm cannot be set by a project\nHint: move it to ~/onetool.yaml"
    )
    assert machine.settings("llm:").llm.base_url == "https://mine.example/v1"
    assert machine.settings("http: {}").llm.api_key == "of-the-user"
    named = machine.root / "named" / "onetool.yaml"
    machine.write(named, "llm: {base_url: 'https://named.example/v1', model: m}")
    assert machine.load(config=named).settings.llm.base_url == "https://named.example/v1"
    machine.write(machine.user / "onetool.yaml", "llm: {model: m}")
    assert "llm requires both or neither of base_url and model" in machine.error()


@pytest.mark.parametrize("proof", ["client_secret: s", "private_key: k"])
def test_a_client_secret_or_key_requires_an_issuer(machine: FakeMachine, proof: str) -> None:
    """Without one, the server would choose who gets it."""
    for text in (
        "servers: {gh: {url: 'https://a.example', auth: {%s}}}",
        "tools: {petstore: {auth: {%s}}}",
    ):
        assert "auth requires issuer" in machine.error(text % f"client_id: c, {proof}")
        machine.settings(text % f"client_id: c, {proof}, issuer: 'https://id.example.com'")


def test_servers_belong_to_the_layer_that_sets_their_command(machine: FakeMachine) -> None:
    machine.write(
        machine.user / "onetool.yaml",
        "servers: {mine: {command: a}, tuned: {command: a}, taken: {command: a}}",
    )
    machine.write(
        machine.project / "onetool.yaml",
        "servers: {theirs: {command: b}, tuned: {timeout: 5}, taken: {args: [x]}}",
    )
    assert machine.load({"ONETOOL_SERVERS__EXTRA__COMMAND": "c"}).user_servers == {
        "mine",
        "tuned",
        "extra",
    }
    assert machine.load({"ONETOOL_CONFIG": str(machine.project / "onetool.yaml")}).user_servers == {
        "mine",
        "tuned",
    }


def test_prompts_and_snippets_receive_no_secrets(machine: FakeMachine) -> None:
    machine.write(machine.user / "secrets.yaml", "TOKEN: canary")
    machine.write(machine.project / "prompts.yaml", "packs: {a: 'use ${TOKEN}'}")
    found = machine.settings("""
        prompts: {instructions: "use ${TOKEN} and $${X}"}
        snippets:
          s: {description: "${TOKEN}", body: "f('${TOKEN}')", params: {p: {default: "${TOKEN}"}}}
    """)
    assert "canary" not in str(dump_settings(found))
    assert found.prompts.instructions == "use ${TOKEN} and $${X}"
    assert found.snippets["s"].body == "f('${TOKEN}')"


def test_missing_references_name_key_file_and_line(machine: FakeMachine) -> None:
    machine.write(
        machine.user / "onetool.yaml",
        "servers:\n  a:\n    url: ${URL}\n    headers: {B: '${}', C: '${x'}",
    )
    advice = "run `onetool secret set %s`, set the environment variable, or write"
    literal = "Hint: write $${ for a literal ${"
    assert machine.error("log_level: INFO\ntools:\n  brave: {keys: [a, '${KEY}']}").split("\n") == [
        "~/onetool.yaml:3: servers.a.url refers to URL, which is not set",
        "Hint: " + advice % "URL" + " ${URL:-default}",
        (
            "~/onetool.yaml:4: servers.a.headers.B contains ${ without a valid reference such as"
            " ${NAME}"
        ),
        literal,
        (
            "~/onetool.yaml:4: servers.a.headers.C contains ${ without a valid reference such as"
            " ${NAME}"
        ),
        literal,
        "onetool.yaml:3: tools.brave.keys[1] refers to KEY, which is not set",
        "Hint: " + advice % "KEY" + " ${KEY:-default}",
    ]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o602])
def test_secrets_readable_by_others_are_rejected(machine: FakeMachine, mode: int) -> None:
    machine.write(machine.project / "secrets.yaml", "TOKEN: canary", mode)
    message = machine.error("servers: {a: {url: 'http://${TOKEN}'}}")
    assert (
        message
        == "secrets.yaml: other users can read this file\nHint: run `chmod 600 secrets.yaml`"
    )


def test_secrets_are_strings_exactly_as_written(machine: FakeMachine) -> None:
    machine.write(
        machine.user / "secrets.yaml",
        "PIN: 0123\nYES: yes\nHEX: 0x10\nNUM: 1e5\nTILDE: ~\nTEXT: 'a # b'",
    )
    assert machine.load().secrets == {
        "PIN": "0123",
        "YES": "yes",
        "HEX": "0x10",
        "NUM": "1e5",
        "TILDE": "~",
        "TEXT": "a # b",
    }


def test_invalid_secrets_are_reported_without_their_values(machine: FakeMachine) -> None:
    machine.write(
        machine.user / "secrets.yaml", "A: [canary]\nB:\nbad-name: canary\nC: {x: canary}\nD: ok"
    )
    machine.write(machine.project / "secrets.yaml", "A: *canary")
    assert machine.error().split("\n") == [
        "~/secrets.yaml:1: A must be a string, not a list or a mapping",
        "~/secrets.yaml:2: B must be a string, not empty",
        '~/secrets.yaml:3: invalid secret name "bad-name"',
        "Hint: use letters, digits and _",
        "~/secrets.yaml:4: C must be a string, not a list or a mapping",
        "secrets.yaml:1: this alias has no anchor",
        "Hint: put strings that start with * in quotes",
    ]


def test_secrets_are_not_shown_in_errors_or_reprs(machine: FakeMachine) -> None:
    machine.write(machine.user / "secrets.yaml", "TOKEN: canary")
    message = machine.error(
        """
        execution: {timeout: "${TOKEN}", isolation: "${TOKEN}", cells: "${TOKEN}"}
        agents: {a: {permissions: ["${TOKEN}"]}}
        servers: {a: {url: "${TOKEN}", pin: "${TOKEN}"}}
        http: {allowedHosts: ["${TOKEN}/"]}
        log_level: ${TOKEN}
        docs_url: ${TOKEN}
        auth: {tokens: [{name: x, hash: y, agent: "${TOKEN}"}]}
    """,
        is_named=True,
    )
    assert "canary" not in message
    assert len(message.split("\n")) == 10
    loaded = machine.settings(
        "servers: {a: {url: http://a, headers: {A: '${TOKEN}'}, env: {B: '${TOKEN}'}}}"
    )
    assert "canary" not in repr(loaded) + repr(machine.load())


# Error messages


def test_invalid_files_are_reported_completely(machine: FakeMachine) -> None:
    machine.write(machine.user / "onetool.yaml", "- a\n- list\n")
    machine.write(machine.user / "prompts.yaml", "instructions: x\nintructions: y\npacks: [a]")
    machine.write(machine.user / "agents" / "list.yml", "# agents\n[a, b]")
    machine.write(machine.user / "agents" / "name.yml", "name: [a]")
    machine.write(
        machine.user / "agents" / "typo.yml", "permission: [read]\nsandbox: {allowed: [/]}"
    )
    assert (
        machine.error(
            """
        aliases: {ws: 5}
        executon: {timeout: 5}
        mcpServers: {}
        workers: {zzz: 1}
        snippets:
          nobody: {description: no body}
        servers:
          neither: {enabled: yes}
          both: {command: uvx, url: http://x}
          wrong:
            url: ftp://x
            transport: ws
            pin: sometimes
            timeout: -1
            env: {DEBUG: true, VERSION: 1.10}
            tols: {include: []}
        tools:
          brave: {timeout: soon, permissions: network, cost_per_call: -1}
        tools_dir: ~/one
        execution: {timeout: true, memory_mb: 1.5, cells: 0, isolation: maybe, max_tool_calls: .inf}
        output: [sanitize]
        stats: {enabled: perhaps}
        notify: {topics: [{pattern: notes}]}
        http:
          allowed_hosts: [a.com]
          allowedHosts: ["https://a.com", "a*b.com"]
        agents:
          fly: {permissions: [read, fly]}
          torn: {permissions: [read], budgets: {permissions: [write]}}
        auth:
          tokens: [{name: a}, {name: b, hash: x, token_env: Y}]
        log_level: LOUD
        docs_url: example.com
        """,
            is_named=True,
        )
        == dedent("""
        ~/agents/list.yml:2: the file must contain `key: value` lines
        ~/agents/name.yml:1: name must be a string
        Hint: put it in quotes
        ~/agents/typo.yml:1: agents.typo.permission is an unknown key
        Hint: did you mean permissions?
        ~/agents/typo.yml:2: agents.typo.sandbox.allowed is an unknown key
        Hint: did you mean allowed_paths?
        ~/onetool.yaml:1: the file must contain `key: value` lines
        ~/prompts.yaml:2: prompts.intructions is an unknown key
        Hint: did you mean instructions?
        ~/prompts.yaml:3: prompts.packs must be a mapping (`key: value`)
        onetool.yaml:2: aliases.ws must be a string
        Hint: put it in quotes
        onetool.yaml:3: executon is an unknown key
        Hint: did you mean execution?
        onetool.yaml:4: mcpServers is an unknown key
        Hint: did you mean servers?
        onetool.yaml:5: workers.zzz is an unknown key
        Hint: known keys: idle_timeout, start_timeout, call_timeout, job_ttl
        onetool.yaml:7: snippets.nobody.body is missing
        onetool.yaml:9: servers.neither requires exactly one of command and url
        onetool.yaml:10: servers.both requires exactly one of command and url
        onetool.yaml:12: servers.wrong.url must start with http:// or https://
        onetool.yaml:13: servers.wrong.transport must be 'http' or 'sse', not "ws"
        onetool.yaml:14: servers.wrong.pin must be 'warn', 'strict' or 'off', not "sometimes"
        onetool.yaml:15: servers.wrong.timeout must be greater than 0, not -1
        onetool.yaml:16: servers.wrong.env.DEBUG must be a string
        Hint: put it in quotes
        onetool.yaml:16: servers.wrong.env.VERSION must be a string
        Hint: put it in quotes
        onetool.yaml:17: servers.wrong.tols is an unknown key
        Hint: did you mean tools?
        onetool.yaml:19: tools.brave.cost_per_call must be at least 0, not -1
        onetool.yaml:19: tools.brave.permissions must be a list of permissions (read, write, exec, network)
        onetool.yaml:19: tools.brave.timeout must be a number, not "soon"
        onetool.yaml:20: tools_dir must be a list such as [a, b]
        onetool.yaml:21: execution.cells must be greater than 0, not 0
        onetool.yaml:21: execution.isolation must be 'auto', 'require', 'wasm' or 'off', not "maybe"
        onetool.yaml:21: execution.max_tool_calls must be a finite number, not Infinity
        onetool.yaml:21: execution.memory_mb must be an integer, not 1.5
        onetool.yaml:21: execution.timeout must be a number
        onetool.yaml:22: output must be a mapping (`key: value`)
        onetool.yaml:23: stats.enabled must be true or false, not "perhaps"
        onetool.yaml:24: notify.topics[0].file is missing
        onetool.yaml:26: http.allowed_hosts is an unknown key
        Hint: did you mean allowedHosts?
        onetool.yaml:27: http.allowedHosts[0] must be a host such as *.example.com or a.example.com:8080, not a URL
        onetool.yaml:27: http.allowedHosts[1] must be a host such as *.example.com or a.example.com:8080, not a URL
        onetool.yaml:29: agents.fly.permissions must be a list of permissions (read, write, exec, network)
        onetool.yaml:30: agents.torn has conflicting permissions and budgets.permissions; keep only one of them
        onetool.yaml:32: auth.tokens[0] requires exactly one of hash and token_env
        onetool.yaml:32: auth.tokens[1] requires exactly one of hash and token_env
        onetool.yaml:33: log_level must be 'DEBUG', 'INFO', 'WARNING', 'ERROR' or 'CRITICAL', not "LOUD"
        onetool.yaml:34: docs_url must start with http:// or https://
        """).strip()
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("execution: {timeout: .inf}", "execution.timeout must be a finite number, not Infinity"),
        ("execution: {timeout: '${X:-x}'}", 'execution.timeout must be a number, not "${X:-x}"'),
        ("a: 1\na: 2", "duplicate key 'a', first defined in line 2"),
    ],
)
def test_single_errors_have_a_precise_reason(machine: FakeMachine, text: str, reason: str) -> None:
    assert reason in machine.error("\n" + text)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a: \xff", "is not UTF-8"),
        (b"x" * 10_000_000, "too large"),
        (b"\x00\x01\x02", "is not valid YAML"),
        (b"[" * 100_000, "nested more than 100 deep"),
        (b"{" * 100_000, "nested more than 100 deep"),
        (b"just text", "must contain `key: value` lines"),
        (b"servers: &s {a: *s}", "refers to a value that contains it"),
    ],
)
@pytest.mark.parametrize("name", ["onetool.yaml", "prompts.yaml", "secrets.yaml", "agents/a.yml"])
def test_damaged_files_are_clear_errors(
    machine: FakeMachine, name: str, content: bytes, reason: str
) -> None:
    machine.write(machine.project / name, "")
    (machine.project / name).write_bytes(content)
    message = machine.error()
    assert message.startswith(name)
    assert reason in message


@pytest.mark.parametrize("name", ["onetool.yaml", "prompts.yaml", "agents/a.yml"])
def test_directories_in_place_of_files_are_errors(machine: FakeMachine, name: str) -> None:
    (machine.project / name).mkdir(parents=True)
    assert machine.error() == f"{name}: is a directory, not a file"


def test_a_file_in_place_of_the_directory_is_an_error(machine: FakeMachine) -> None:
    machine.user.write_text("")
    assert "cannot be read: Not a directory" in machine.error()


def test_a_client_can_belong_to_only_one_agent(machine: FakeMachine) -> None:
    text = "agents:\n  a: {clients: [bot]}\n  b: {clients: [x, bot]}"
    assert (
        machine.error(text) == "onetool.yaml:3: agents.b.clients[1] is already a client of agent a"
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("https://a.example", "must be a host name such as tools.example.com"),
        ("a.example:443", "must be a host name such as tools.example.com"),
        ("'*.example'", "must be a host name such as tools.example.com"),
        ("''", "must be a host name such as tools.example.com"),
        ("a.example.", "must be a host name such as tools.example.com"),
        ("LocalHost", "which needs no token"),
        ("7", "must be a string"),
    ],
)
def test_invalid_allowed_hosts_are_errors(machine: FakeMachine, name: str, message: str) -> None:
    assert message in machine.error(f"auth: {{allowed_hosts: [{name}]}}", is_named=True)


def test_tokens_and_aliases_must_be_valid(machine: FakeMachine) -> None:
    text = "aliases: {a-b: x, class: y}\nauth: {tokens: [{name: t, hash: h, agent: z}]}"
    assert machine.error(text, is_named=True).split("\n") == [
        "onetool.yaml:1: aliases.a-b is not a valid Python name",
        "Hint: use letters, digits and _",
        "onetool.yaml:1: aliases.class is a Python keyword, so code cannot call it",
        "Hint: choose another name",
        "onetool.yaml:2: auth.tokens[0].agent must be an agent (default)",
    ]


def test_unusual_keys_are_reported_on_one_line(machine: FakeMachine) -> None:
    message = machine.error('"a\\nb\\e[31m": 1\n' + "k" * 200 + ": 1")
    assert len(message.split("\n")) == 4  # each with its hint
    assert "\x1b" not in message


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
sections = st.dictionaries(st.sampled_from(list(Settings.model_fields)), json_like, max_size=4)


@pytest.mark.slow
@given(sections)
@settings(deadline=None)
def test_any_data_is_accepted_or_rejected_cleanly(data: Mapping[str, Any]) -> None:
    try:
        found = Settings.model_validate(data)
    except ValidationError:
        return
    assert math.isfinite(found.execution.timeout)
    assert "default" in found.agents


def test_issuers_need_https_an_audience_and_agents_that_exist(machine: FakeMachine) -> None:
    text = """
        auth:
          issuers:
            - {issuer: http://id.example.com, audience: x, algorithms: [HS256], scope: owner}
            - {issuer: "https://id.example.com/?x", default_agent: nobody}
            - {issuer: https://id.example.com, audience: x, agents: {a: pilot}}
    """
    errors = machine.error(dedent(text), is_named=True)
    for expected in (
        (
            "auth.issuers[0].issuer must start with https://; plain http is for issuers on loopback"
            " addresses only"
        ),
        "auth.issuers[0].algorithms[0] must be",
        "auth.issuers[0].scope must be",
        "auth.issuers[1].issuer must be a URL without user name, query and fragment",
        "auth.issuers[1].audience",
    ):
        assert expected in errors
    assert "must be an agent (default)" in machine.error(
        'auth: {issuers: [{issuer: "http://[::1]:8", audience: x, default_agent: y}]}',
        is_named=True,
    )


def test_an_error_lists_the_first_of_many_problems(machine: FakeMachine) -> None:
    keys = "\n".join(f"unknown_{number}: 1" for number in range(2_000))
    text = machine.error(f"version: 1\n{keys}\n")
    assert "the settings have 1,900 more problems" in text
    assert text.count("unknown_") <= 220


def test_other_problems_of_a_subject_are_counted() -> None:
    problems = [Problem(f"{number} is wrong", "fix it", level="warning") for number in range(25)]
    listed = limit_problems(problems, "server")
    assert listed[:20] == problems[:20]
    assert listed[20:] == [Problem("server has 5 more problems", "fix it", level="warning")]
    assert limit_problems(problems[:20], "server") == problems[:20]


@pytest.mark.parametrize(
    "host", ["", "a b.example", "evil\x1b[31m.com", "a\u200b.example", "a.example#b", "*.*.example"]
)
def test_hosts_with_invisible_or_reserved_characters_are_rejected(host: str) -> None:
    for values in ({"http": {"allowedHosts": [host]}}, {"agents": {"default": {"hosts": [host]}}}):
        with pytest.raises(ValidationError, match="must be a host such as"):
            Settings.model_validate(values)


def test_international_hosts_are_accepted() -> None:
    hosts = ["bücher.example", "*.例え.jp", "[::1]:8080"]
    assert [*Settings.model_validate({"http": {"allowedHosts": hosts}}).http.allowed_hosts] == hosts
