"""Real upstream servers of npm and PyPI over all transports, called by a program and by a client."""

import base64
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp_types import AudioContent, EmbeddedResource, ImageContent
from tests.conftest import find_program
from tests.proxy_support import hostile_server, node_server, python_server
from tests.support import App, Connection, configure, connect, eventually, open_app

pytestmark = pytest.mark.slow
PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository with one file."""
    repository = tmp_path_factory.mktemp("folder")
    subprocess.run([find_program("git"), "init", "-q", "-b", "main", str(repository)], check=True)
    (repository / "a.txt").write_text("hello", encoding="utf-8")
    return repository


@pytest.fixture(scope="module")
def servers(repository: Path) -> dict[str, Any]:
    return {
        "every": node_server("everything", tools={"exclude": ["get-env", "toggle-*"]}),
        "files": node_server("filesystem", ".", cwd=str(repository)),
        "memory": node_server("memory", env={"MEMORY_FILE_PATH": str(repository / "memory.json")}),
        "clock": python_server("mcp-server-time", tools={"include": ["get_*"]}),
        "git": python_server("mcp-server-git", "--repository", str(repository)),
        "word": python_server("word_mcp_server", cwd=str(repository)),
    }


@pytest.fixture(scope="module")
def app(servers: dict[str, Any]) -> Iterator[App]:
    agents = {
        "default": {"permissions": ["read", "write", "network"]}
    }  # hints of some tools tell that they write
    with open_app({"servers": servers, "agents": agents}) as app:
        yield app


@pytest.fixture(scope="module")
def client(
    servers: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Connection]:
    home = tmp_path_factory.mktemp("home")
    configure(home, json.dumps({"servers": {"every": servers["every"]}}))
    with connect(home) as client:
        yield client


# --- results in code ------------------------------------------------------------------------------


def test_a_tool_name_with_a_dash_is_callable_in_both_forms(app: App) -> None:
    assert app.value("every.get_sum(a=1, b=2)") == "The sum of 1 and 2 is 3."
    assert app.value("ot.call('every.get-sum', a=1, b=2)") == "The sum of 1 and 2 is 3."
    assert "every.get_sum(a: float, b: float)" in app.value("ot.help(query='every.get-sum')")


def test_structured_content_is_data(app: App) -> None:
    weather = app.data("every.get_structured_content(location='New York')")
    assert weather.keys() == {"temperature", "conditions", "humidity"}
    assert (
        app.value("type(every.get_structured_content(location='New York')['humidity']).__name__")
        == "int"
    )


def test_json_text_is_parsed(app: App) -> None:
    assert (
        app.value("clock.get_current_time(timezone='Europe/Zurich')['timezone']") == "Europe/Zurich"
    )


def test_arguments_are_checked_by_the_schema_of_the_server(app: App) -> None:
    assert "requires 'b'. Signature: every.get_sum(a: float, b: float)" in app.failure(
        "every.get_sum(a=1)"
    )
    assert "is not of type" in app.failure("every.get_sum(a=1, b='two')")


def test_an_upstream_error_contains_the_message_of_the_server(app: App) -> None:
    assert "/nowhere" in app.failure("files.read_text_file(path='/nowhere')")


def test_images_are_handles_with_type_and_size(app: App) -> None:
    parts = app.data("every.get_tiny_image()")
    (image,) = [part for part in parts if isinstance(part, dict)]
    assert (image["type"], image["mimeType"]) == ("image", "image/png")
    media = app.onetool.media.get(image["media"], "default")
    assert media.data.startswith(PNG)
    assert len(media.data) == image["size"]


def test_resources_in_results_are_data(app: App) -> None:
    parts = app.data("every.get_resource_reference(resourceType='Text', resourceId=1)")
    (text,) = [part for part in parts if isinstance(part, dict)]
    assert text["uri"] == "demo://resource/dynamic/text/1"
    assert "plaintext resource" in text["text"]
    links = app.data("every.get_resource_links(count=2)")
    assert [part["type"] for part in links if isinstance(part, dict)] == ["resource_link"] * 2


def test_several_servers_are_called_in_one_run(app: App, repository: Path) -> None:
    listing, status, graph = app.data(
        f"(files.list_directory(path={str(repository)!r}),"
        f" git.git_status(repo_path={str(repository)!r}), memory.read_graph())"
    )
    assert "[FILE] a.txt" in json.dumps(listing)
    assert "a.txt" in json.dumps(status)
    assert graph == {"entities": [], "relations": []}


def test_a_server_that_prints_text_between_messages_works(app: App, repository: Path) -> None:
    assert "created" in app.value("word.create_document(filename='letter.docx', title='Letter')")
    assert (repository / "letter.docx").exists()


def test_a_server_that_fails_at_import_is_reported_with_its_output(tmp_path: Path) -> None:
    server = {**python_server("mcp-server-sqlite"), "cwd": str(tmp_path)}
    with open_app({"servers": {"sqlite": server}}) as app:
        text = app.failure("sqlite.list_tables()")
        assert "cannot connect to sqlite" in text
        assert "Error" in text.partition("It last printed")[2]


def test_only_included_tools_are_listed(app: App) -> None:
    # Listing does not wait for servers that are still starting.
    assert eventually(
        lambda: app.data("ot.tools(pattern='clock.', info='list')") == ["clock.get_current_time"]
    )
    assert eventually(lambda: app.data("ot.tools(pattern='every.', info='list')"))
    names = app.data("ot.tools(pattern='every.', info='list')")
    assert "every.echo" in names
    assert not [name for name in names if "get-env" in name or "toggle" in name]


def test_resources_of_a_server_are_listed_and_read(app: App) -> None:
    listed = app.data("ot.resources(server='every')")
    assert {"uri", "name"} <= listed[0].keys()
    assert [each for each in listed if "uriTemplate" in each]
    text = app.data("ot.resources(server='every', uri='demo://resource/dynamic/text/1')")
    assert "plaintext resource" in text["text"]
    assert app.data("ot.resources(server='every', uri='demo://resource/dynamic/blob/1')")["media"]
    assert app.data("ot.resources(server='clock')") == []


def test_prompts_of_a_server_are_listed_and_rendered(app: App) -> None:
    assert "args-prompt" in [each["name"] for each in app.data("ot.prompt(server='every')")]
    filled = app.data("ot.prompt(server='every', name='args-prompt', arguments={'city': 'Bern'})")
    assert filled["messages"] == [{"role": "user", "content": "What's weather in Bern?"}]
    assert "nothing" in app.failure("ot.prompt(server='every', name='nothing')")
    assert "no server named 'x'" in app.failure("ot.prompt(server='x')")


def test_results_of_concurrent_calls_are_in_order(app: App) -> None:
    code = "ot.parallel([lambda n=n: every.echo(message=str(n)) for n in range(20)])"
    assert app.data(code) == [f"Echo: {number}" for number in range(20)]


# --- results for clients --------------------------------------------------------------------------


def test_an_image_returned_by_a_run_is_sent_to_the_client(client: Connection) -> None:
    content = client.run("every.get_tiny_image()").content
    (image,) = [block for block in content if isinstance(block, ImageContent)]
    assert image.mime_type == "image/png"
    assert base64.b64decode(image.data).startswith(PNG)


def test_an_image_that_is_not_returned_is_not_sent(client: Connection) -> None:
    assert len(client.run("len(every.get_tiny_image())").content) == 1


def test_a_blob_is_sent_to_the_client_as_an_embedded_resource(client: Connection) -> None:
    content = client.run(
        "ot.resources(server='every', uri='demo://resource/dynamic/blob/1')"
    ).content
    assert [block for block in content if isinstance(block, EmbeddedResource)]
    assert not [block for block in content if isinstance(block, AudioContent)]


def test_an_invented_handle_sends_no_image(client: Connection) -> None:
    assert len(client.run("{'type': 'image', 'media': 'f' * 32}").content) == 1


# --- other transports -----------------------------------------------------------------------------


@contextmanager
def serve_everything(mode: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Start the everything server on a free port; yield the port and its process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    server = node_server("everything", mode)
    process = subprocess.Popen(
        [server["command"], *server["args"]],
        env={**os.environ, "PORT": str(port)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert eventually(lambda: _accepts_connections(port), 30)
        yield port, process
    finally:
        process.kill()
        process.wait()


def _accepts_connections(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize(
    ("mode", "path", "transport"), [("streamableHttp", "mcp", "http"), ("sse", "sse", "sse")]
)
def test_an_http_server_works_and_its_end_is_detected(mode: str, path: str, transport: str) -> None:
    with serve_everything(mode) as (port, process):
        url = f"http://127.0.0.1:{port}/{path}"
        settings = {"servers": {"every": {"url": url, "transport": transport, "timeout": 10}}}
        with open_app(settings) as app:
            assert app.value("every.get_sum(a=1, b=2)") == "The sum of 1 and 2 is 3."
            assert app.data("every.get_tiny_image()")[1]["mimeType"] == "image/png"
            assert app.data("ot.health()")["proxy"]["servers"] == {"every": "connected"}
            process.kill()
            assert eventually(
                lambda: app.data("ot.health()")["proxy"]["servers"] == {"every": "disconnected"}
            )
            assert "every" in app.failure("every.get_sum(a=1, b=2)")


def test_headers_are_sent_and_rejections_are_reported(tmp_path: Path) -> None:
    script = Path(__file__).parent / "servers" / "guarded_http.py"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    process = subprocess.Popen(
        [sys.executable, str(script), str(port)], cwd=tmp_path, stderr=subprocess.DEVNULL
    )
    url = f"http://127.0.0.1:{port}/mcp"
    servers = {
        "right": {"url": url, "headers": {"X-Key": "open"}},
        "wrong": {"url": url, "timeout": 5},
    }
    servers["other"] = {"url": url, "headers": {"X-Key": "x"}, "timeout": 5}
    try:
        assert eventually(lambda: _accepts_connections(port), 30)
        with open_app({"servers": {**servers, "good": hostile_server("good")}}) as app:
            assert app.value("right.whoami()") == "open"
            assert "wrong requires a sign-in" in (failure := app.failure("wrong.whoami()"))
            assert "onetool login wrong" in failure
            assert "servers.wrong.headers" in failure
            assert "cannot connect to other" in app.failure(
                "other.whoami()"
            )  # its header has the wrong value
            assert "right.whoami" in app.value("ot.tools(pattern='whoami')")
    finally:
        process.kill()
        process.wait()
