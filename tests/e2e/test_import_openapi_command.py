"""`onetool import` of OpenAPI documents and archives, and calls of the imported tools."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.http_support import Site, serve_site
from tests.openapi_support import build_document, build_swagger
from tests.support import PROGRAM, configure, environment, run_cli

from onetool.settings.trust import is_trusted, trust
from onetool.sources.bundles.importer import is_bundle
from onetool.util.yaml_loader import read_file

GET_PET = {
    "operationId": "getPet",
    "parameters": [
        {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}},
        {"name": "X-Trace", "in": "header", "schema": {"type": "string"}},
    ],
    "security": [{"key": []}],
    "responses": {"200": {"description": "ok"}},
}
LIST_PETS = {
    "operationId": "listPets",
    "parameters": [{"name": "limit", "in": "query", "schema": {"type": "integer"}}],
}
KEY = {"key": {"type": "apiKey", "in": "header", "name": "X-Key"}}
SECRET = "a-key-that-nobody-is-to-see"


def petstore(
    server: str = "https://pets.example.com/v1",
    version: str = "1.0",
    more: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    shown = {"/echo": {"get": LIST_PETS}, "/pets/{id}": {"get": GET_PET}, **(more or {})}
    info = {"title": "Swagger Petstore - OpenAPI 3.0", "version": version}
    known = {"securitySchemes": KEY}
    return {
        "openapi": "3.0.3",
        "info": info,
        "servers": [{"url": server}],
        "paths": shown,
        "components": known,
    }


def write_document(home: Path, document: Mapping[str, Any], name: str = "petstore.yaml") -> None:
    text = (
        json.dumps(document)
        if name.endswith(".json")
        else yaml.safe_dump(dict(document), sort_keys=False)
    )
    (home / name).write_text(text, encoding="utf-8")


def run_import(
    home: Path, *arguments: str, directory: Path | None = None, answer: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, "import", *arguments],
        cwd=directory or home,
        env=environment(home),
        input=answer,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


def import_successfully(home: Path, *arguments: str) -> str:
    done = run_import(home, *arguments)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def import_unsuccessfully(home: Path, *arguments: str) -> str:
    done = run_import(home, *arguments)
    assert done.returncode in {1, 2}, done.stdout
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.fixture
def site() -> Iterator[Site]:
    with serve_site() as site:
        yield site


def test_the_import_ends_with_the_remaining_steps(tmp_path: Path) -> None:
    write_document(tmp_path, petstore(more={"/x": {"trace": {}}}))
    directory = tmp_path / ".onetool"
    assert import_successfully(tmp_path, "petstore.yaml").splitlines() == [
        f"petstore: imported 2 tools of version 1.0 into {directory / 'bundles'}",
        "Not imported, or imported with changes:",
        "  TRACE /x: TRACE is not supported, because it reveals credentials",
        "Set these secrets:",
        "  onetool secret set PETSTORE_KEY",
        "Allow the tools to send this secret (or use --write):",
        "  onetool secret allow PETSTORE_KEY --bundle petstore --host https://pets.example.com",
        f"Allow this host in {directory / 'onetool.yaml'} (or use --write):",
        "  http: {allowedHosts: [pets.example.com]}",
        "Running servers see the tools at once, and changed settings and secrets within 2 seconds.",
        "Example:",
        "  onetool call petstore.list-pets",
        "  petstore.list_pets()",
        "",
        (
            "Connect your assistant: onetool connect claude-code --write. Restart it, then ask it: "
            '"What can you do with petstore in OneTool?"'
        ),
    ]
    assert not (directory / "onetool.yaml").exists()


@pytest.mark.slow
def test_an_imported_tool_uses_its_secret_and_never_shows_it(tmp_path: Path, site: Site) -> None:
    write_document(tmp_path, petstore(site.url("")), "petstore.json")
    output = import_successfully(tmp_path, "petstore.json", "--write")
    assert f'+  allowedHosts: ["127.0.0.1:{site.port}"]' in output
    assert "http: {allowPrivateAddresses: true}" in output
    config = tmp_path / ".onetool" / "onetool.yaml"
    origin = f"127.0.0.1:{site.port}"
    allowed = {"petstore": {"PETSTORE_KEY": [f"http://{origin}"]}}
    assert read_file(config).data == {"http": {"allowedHosts": [origin]}, "bundle_secrets": allowed}
    private = "http:\n  allowPrivateAddresses: true\n"
    config.write_text(config.read_text("utf-8").replace("http:\n", private, 1), encoding="utf-8")
    secrets = tmp_path / ".onetool" / "secrets.yaml"
    secrets.touch(0o600)
    secrets.write_text(f"PETSTORE_KEY: {SECRET}\n", encoding="utf-8")
    echoed = run_cli(tmp_path, "call", "petstore.list-pets", "limit=3")
    assert json.loads(echoed.stdout)["query"] == {"limit": ["3"]}, echoed.stderr
    failed = run_cli(tmp_path, "run", "petstore.get_pet(id='a/b')")
    assert "returned 404 Not Found: page not found" in failed.stdout
    assert (site.last.path, site.last.header("x-key")) == ("/pets/a%2Fb", SECRET)
    assert "Add these secrets" not in import_successfully(tmp_path, "petstore.json")
    assert SECRET not in output + echoed.stdout + failed.stdout + failed.stderr


@pytest.mark.slow
def test_authentication_and_headers_can_be_added(tmp_path: Path) -> None:
    write_document(tmp_path, {**petstore(), "components": {}})
    options = [
        "--auth",
        "header:X-Key",
        "--header",
        "X-Version: 2",
        "--header",
        "X-Id: ${secret:ID}",
        "--json",
    ]
    report = json.loads(import_successfully(tmp_path, "petstore.yaml", *options))
    assert report["missingSecrets"] == ["PETSTORE_AUTH", "ID"]
    failed = run_cli(tmp_path, "import", "petstore.yaml", "--header", "X-Token: abc")
    assert failed.returncode == 1
    assert "write 'X-Token: ${secret:NAME}'" in failed.stderr
    assert "abc" not in failed.stderr
    misused = run_cli(tmp_path, "import", "cursor", "--auth", "bearer")
    assert misused.returncode == 2
    assert "--auth" in misused.stderr


@pytest.mark.slow
def test_a_newer_document_adds_versions_and_the_same_one_changes_nothing(tmp_path: Path) -> None:
    write_document(tmp_path, petstore())
    import_successfully(tmp_path, "petstore.yaml")
    assert "already imported (2 tools); nothing was changed." in import_successfully(
        tmp_path, "petstore.yaml"
    )
    write_document(tmp_path, petstore(version="1.1"))
    assert "imported 2 tools of version 1.1" in import_successfully(tmp_path, "petstore.yaml")
    tools = json.loads(import_successfully(tmp_path, "petstore.yaml", "--name", "other", "--json"))
    assert tools["tools"] == ["other.list-pets@1.1", "other.get-pet@1.1"]
    listed = json.loads(run_cli(tmp_path, "bundles", "--json").stdout)["bundles"]
    assert [(row["slug"], row["toolCount"]) for row in listed] == [("other", 2), ("petstore", 2)]


def test_a_changed_document_with_the_same_version_is_rejected(tmp_path: Path) -> None:
    write_document(tmp_path, petstore())
    import_successfully(tmp_path, "petstore.yaml")
    write_document(
        tmp_path,
        petstore(
            "https://elsewhere.example.com/v1", more={"/new": {"get": {"operationId": "extra"}}}
        ),
    )
    message = import_unsuccessfully(tmp_path, "petstore.yaml")
    assert "already has a different list-pets@1.0; a stored version never changes" in message
    assert "petstore.yaml --name petstore-2" in message
    assert "extra" not in run_cli(tmp_path, "tools", "petstore").stdout


def test_another_api_with_the_same_name_is_rejected(tmp_path: Path) -> None:
    write_document(tmp_path, petstore())
    import_successfully(tmp_path, "petstore.yaml")
    write_document(
        tmp_path,
        {**petstore(version="2"), "paths": {"/fish": {"get": {"operationId": "listFish"}}}},
    )
    assert "already exists, with other tools\nHint: choose another name" in import_unsuccessfully(
        tmp_path, "petstore.yaml"
    )


def test_a_missing_base_url_is_requested(tmp_path: Path) -> None:
    write_document(tmp_path, petstore("/v1"))
    message = import_unsuccessfully(tmp_path, "petstore.yaml")
    assert message.rstrip().endswith("petstore.yaml --server https://api.example.com/v1")
    assert "allowedHosts: [api.example.com]" in import_successfully(
        tmp_path, "petstore.yaml", "--server", "api.example.com"
    )


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    write_document(tmp_path, petstore())
    assert "would import 2 tools" in import_successfully(
        tmp_path, "petstore.yaml", "--dry-run", "--write"
    )
    assert not (tmp_path / ".onetool").exists()


def test_hosts_are_merged_and_the_rest_of_the_file_is_kept(tmp_path: Path) -> None:
    text = "# mine\nhttp:\n  allowedHosts:\n    - a.example.com  # the first\nlog_level: INFO\n"
    configure(tmp_path, text)
    write_document(tmp_path, petstore())
    done = json.loads(import_successfully(tmp_path, "petstore.yaml", "--write", "--json"))
    config = tmp_path / ".onetool" / "onetool.yaml"
    added = "    - a.example.com  # the first\n    - pets.example.com\n"
    with_hosts = text.replace("    - a.example.com  # the first\n", added)
    assert config.read_text("utf-8").startswith(with_hosts)
    allowed = {"petstore": {"PETSTORE_KEY": ["https://pets.example.com"]}}
    assert read_file(config).data["bundle_secrets"] == allowed
    assert done["secretUses"] == []
    assert config.with_name("onetool.yaml.bak").read_text("utf-8") == text
    assert (done["missingHosts"], done["missingSecrets"]) == ([], ["PETSTORE_KEY"])
    assert "+    - pets.example.com" in done["diff"]
    changes = json.loads(run_cli(tmp_path, "settings", "history", "--json").stdout)["changes"]
    assert [change["action"] for change in changes] == ["secrets.allow", "hosts.change"]
    undone = [run_cli(tmp_path, "settings", "undo", "--yes", change["id"]) for change in changes]
    assert "-  petstore:" in undone[0].stdout
    assert "-    - pets.example.com" in undone[1].stdout
    assert config.read_text("utf-8") == text


def test_a_secret_that_is_set_is_not_allowed_by_an_import(tmp_path: Path) -> None:
    configure(tmp_path, "log_level: INFO\n")
    secrets = tmp_path / ".onetool" / "secrets.yaml"
    secrets.touch(0o600)
    secrets.write_text("PETSTORE_KEY: meant-for-another-server\n", encoding="utf-8")
    write_document(tmp_path, petstore())
    output = import_successfully(tmp_path, "petstore.yaml", "--write")
    command = "onetool secret allow PETSTORE_KEY --bundle petstore --host https://pets.example.com"
    assert f"Allow the tools to send this secret:\n  {command}\n" in output
    assert "bundle_secrets" not in read_file(tmp_path / ".onetool" / "onetool.yaml").data
    assert run_cli(tmp_path, *command.split()[1:]).returncode == 0
    assert "secret allow" not in import_successfully(tmp_path, "petstore.yaml")


def test_an_allowed_host_is_not_requested_again(tmp_path: Path) -> None:
    configure(tmp_path, 'http: {allowedHosts: ["*.example.com"]}\n')
    write_document(tmp_path, petstore())
    output = import_successfully(tmp_path, "petstore.yaml", "--write")
    assert "allowedHosts" not in output
    assert "wrote" not in output


def test_many_problems_are_listed_as_ten_and_a_count(tmp_path: Path) -> None:
    broken = {
        f"/p{n}": {"get": {"parameters": [{"name": f"n{n}", "in": "nowhere"}]}} for n in range(15)
    }
    write_document(tmp_path, petstore(more=broken))
    output = import_successfully(tmp_path, "petstore.yaml").splitlines()
    start = output.index("Not imported, or imported with changes:")
    assert output[start + 11].startswith("  and ")
    assert output[start + 11].endswith(" more; use --json to see all")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (
            "a.yaml",
            (
                "openapi: 3.1.0\ninfo: {title: Things}\nservers: [{url: https://x.example}]\npaths:"
                " {/a: {get: {}}}\n"
            ),
        ),
        ("a.json", "\ufeff" + json.dumps(build_document({}))),
        ("a.conf", json.dumps(build_swagger({}), indent=1)),
        (
            "a.txt",
            (
                "# a comment\nswagger: '2.0'\nhost: x.example\ninfo: {title: Things}\npaths: {/a:"
                " {get: {}}}\n"
            ),
        ),
    ],
)
def test_a_document_is_detected_by_its_content(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert import_successfully(tmp_path, name, "--dry-run").startswith(
        "things: would import 1 tool of version"
    )


@pytest.mark.parametrize(
    ("content", "is_document"),
    [
        (b'{"mcpServers": {"openapi": {"command": "x", "args": ["openapi: 3"]}}}', False),
        (b'{"mcpServers": {"a": {"command": "x"}}}', False),
        (b'// "openapi"\n{"mcpServers": {}}', False),
        (b'{"info": {}, "openapi": "3.0.0"}', True),
        (b"{openapi: 3.0.0, info: {}}", True),
        (b"info: {}\nopenapi: 3.0.0\n", True),
        (b"x:\n  openapi: 3.0.0\n", False),
        (b"[mcp_servers.openapi]\ncommand = 'x'\n", False),
        (b"PK\x03\x04", True),
        (b"\xff\xfe", False),
        (b"", False),
    ],
)
def test_documents_are_distinguished_from_files_of_assistants(
    content: bytes, is_document: bool
) -> None:
    assert is_bundle(content) is is_document


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("openapi: 4.0.0\npaths: {}\n", "unsupported OpenAPI version '4.0.0'"),
        ("openapi: 3.0.0\npaths: {}\n", "the document has no operations"),
        ("openapi: 3.0.0\npaths: [", "x.yaml: "),
        ("openapi: &a [*a]\n", "x.yaml: "),
        ("just: yaml\n", "unknown format of"),
        ("", "is empty"),
    ],
)
def test_an_invalid_document_is_rejected_with_the_reason(
    tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "x.yaml").write_text(content, encoding="utf-8")
    assert message in import_unsuccessfully(tmp_path, "x.yaml")
    assert not (tmp_path / ".onetool").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["https://example.com/openapi.json"],
            "download it first: curl -fsSLo api.json https://example.com/openapi.json",
        ),
        (["missing.yaml"], "file not found: missing.yaml"),
        (["cursor", "--name", "x"], "not to servers"),
    ],
)
def test_an_import_error_names_the_command_to_run(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    assert message in import_unsuccessfully(tmp_path, *arguments)


def test_importing_into_a_project_trusts_it_after_a_question(tmp_path: Path) -> None:
    directory, user = tmp_path / "work", tmp_path / ".onetool"
    configure(directory, "servers: {evil: {command: theirs}}\n")
    write_document(directory, petstore())
    refused = run_import(tmp_path, "petstore.yaml", "--project", directory=directory, answer="no\n")
    assert refused.returncode == 1
    assert "  evil  theirs\n" in refused.stdout
    assert not is_trusted(directory / ".onetool", user, {})
    assert [file.name for file in (directory / ".onetool").iterdir()] == ["onetool.yaml"]
    done = run_import(
        tmp_path, "petstore.yaml", "--write", "--project", directory=directory, answer="yes\n"
    )
    assert done.returncode == 0, done.stderr
    assert "is now trusted" in done.stdout
    assert is_trusted(directory / ".onetool", user, {})
    assert (directory / ".onetool" / "bundles").is_dir()
    again = run_import(tmp_path, "petstore.yaml", "--user", directory=directory)
    assert f"into {user / 'bundles'}" in again.stdout, again.stderr


def test_an_untrusted_project_is_left_alone(tmp_path: Path) -> None:
    directory = tmp_path / "work"
    configure(directory, "store: postgresql://evil.example/x\n")
    before = [file.read_bytes() for file in (directory / ".onetool").iterdir()]
    write_document(directory, petstore())
    done = run_import(tmp_path, "petstore.yaml", "--write", directory=directory)
    assert done.returncode == 0, done.stderr
    assert f"{directory / '.onetool'} is not trusted and was not changed" in done.stdout
    assert [file.read_bytes() for file in (directory / ".onetool").iterdir()] == before
    assert (tmp_path / ".onetool" / "bundles").is_dir()


def test_a_trusted_project_stays_trusted_when_hosts_are_written(tmp_path: Path) -> None:
    directory, user = tmp_path / "work", tmp_path / ".onetool"
    configure(tmp_path, "http: {allowedHosts: [mine.example.com]}\n")
    configure(directory, "log_level: INFO\n")
    write_document(directory, petstore())
    trust(directory / ".onetool", user)
    done = run_import(tmp_path, "petstore.yaml", "--write", directory=directory)
    assert "is now trusted" not in done.stdout
    assert is_trusted(directory / ".onetool", user, {})
    hosts = read_file(directory / ".onetool" / "onetool.yaml").data["http"]["allowedHosts"]
    assert hosts == ["mine.example.com", "pets.example.com"]


def test_hosts_for_all_directories_are_not_added_to_the_list_of_a_project(tmp_path: Path) -> None:
    directory, user = tmp_path / "work", tmp_path / ".onetool"
    configure(tmp_path, "http: {allowedHosts: [mine.example.com]}\n")
    configure(directory, "http: {allowedHosts: [theirs.example.com]}\n")
    write_document(directory, petstore())
    trust(directory / ".onetool", user)
    done = run_import(tmp_path, "petstore.yaml", "--user", "--write", directory=directory)
    assert done.returncode == 0, done.stderr
    assert read_file(user / "onetool.yaml").data["http"]["allowedHosts"] == [
        "mine.example.com",
        "pets.example.com",
    ]
    project = read_file(directory / ".onetool" / "onetool.yaml")
    assert project.data["http"]["allowedHosts"] == ["theirs.example.com"]


def test_an_import_in_a_directory_without_settings_creates_them(tmp_path: Path) -> None:
    directory, user = tmp_path / "work", tmp_path / ".onetool"
    directory.mkdir()
    write_document(directory, petstore())
    dry_run = run_import(tmp_path, "petstore.yaml", "--dry-run", directory=directory)
    assert dry_run.returncode == 0, dry_run.stderr
    assert not (directory / ".onetool").exists()
    done = run_import(tmp_path, "petstore.yaml", directory=directory)
    assert done.returncode == 0, done.stderr
    assert f"{directory / '.onetool'} is now trusted" in done.stdout
    assert is_trusted(directory / ".onetool", user, {})
    assert list((directory / ".onetool" / "bundles").rglob("*.json"))
    assert not (user / "bundles").exists()
