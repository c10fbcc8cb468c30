"""Execute every block of the documents, in order.

Each document has its own home directory. A block that begins with a comment that is a path is
written to that file. Code runs with the settings written before it, and commands are executed. A
`text` block is the expected output of the block before it, with … for any text. A block of an
unknown kind is an error in the document.
"""

import configparser
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from tests.llm_support import FakeProvider, serve_fake_provider
from tests.postgres_support import PostgresServer, run_postgres
from tests.proxy_support import python_server
from tests.runs_support import answer_in_terminal
from tests.support import TIMEOUT_SECONDS, App, environment, eventually

from onetool.app import OneTool
from onetool.cli.main import make_parser
from onetool.cli.serve import PORT
from onetool.runs.tool_loader import load_builtin_tools
from onetool.settings.clients import client_servers, text_files
from onetool.settings.load import load
from onetool.settings.paths import find_directories
from onetool.settings.settings_reader import read_settings
from onetool.sources.builtin.help_text import DOC_SLUGS
from onetool.sources.extensions import static_analysis
from onetool.sources.extensions.installed import GROUP
from onetool.sources.http.definition import HttpImpl
from onetool.util.logging import Log

ROOT = Path(__file__).parents[2]
API_PORT = 8000
NAMES = ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "llms.txt")
DOCUMENTS = [*(ROOT / name for name in NAMES), *sorted((ROOT / "docs").rglob("*.md"))]
GUIDE = [*sorted((ROOT / "docs" / "guide").glob("*.md")), ROOT / "docs" / "toolbus.md"]
MAX_EXAMPLE_LINES = 15
LONG_DOCUMENTS = (
    *("toolbus.md", "performance.md"),
    *("2-write-a-tool.md", "7-ask-before-it-writes.md", "9-replicas-on-postgresql.md"),
)
SERVER_OF_EXAMPLES = "shop.py"  # the API that examples call
FENCED = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s:#]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
REPOSITORY_PATH = re.compile(
    r"(?<![\w./-])((?:src|benchmarks|tests/(?:unit|spec|contract|e2e))/[\w./-]*\w\.(?:py|md|json|js))\b"
)
# Files and directories in backticks, by the end of their path: `bus.py`, `children/channel.py`,
# `onetool/sources/http/`.
NAMED_FILE = re.compile(r"`([\w./-]*\w(?:\.(?:py|js|j2|md|toml|txt)|/))`")
PATH_IN_COMMENT = re.compile(r"# ((?:~/)?[\w./-]+\.(?:py|toml|ya?ml|service))\n")
IN_QUOTES = re.compile("'[^']*'|#.*")
SHELL_SYNTAX = re.compile(r"[^\w\s./:=,@+\"-]")
DATABASE_HOST = "db.example.com"  # replaced by the server that a block of SQL starts
EXPORT = re.compile(r"export ([A-Z_]+)=(.+)")
ASSIGNMENT = re.compile(r"([A-Z]+)=(\S+)")
PROGRAM = re.compile(r"^(?:from|import) onetool\b", re.MULTILINE)
DISTRIBUTION = "onetool-run"  # installed from this directory
# Text blocks that no command prints, by their first characters.
FREE = {
    "context_saved = ": "a formula",
    "   MCP client ": "a drawing",
    "Python 3": "figures of one machine",
    "bfcl: ": "figures too",
}
RUN_ID = re.compile(r"r_[0-9a-f]{32}")
EXAMPLE_RUN_ID = re.compile(
    r"r_8f14e45f[0-9a-f]*"
)  # replaced by the ID in the last output that has one
OLLAMA = "http://localhost:11434/v1"  # replaced by a fake provider, which gives these answers
ANSWERS = {"Rate each review": "[4, 1]", "What kind of mail": '"invoice"'}


# --- blocks ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    location: str
    kind: str
    text: str

    @property
    def file(self) -> str | None:
        """The path in the first comment of the block."""
        found = PATH_IN_COMMENT.match(self.text)
        return found[1] if found else None


def parse_blocks(document: Path) -> list[Block]:
    text = document.read_text(encoding="utf-8")
    return [
        Block(
            f"{document.relative_to(ROOT)}:{text.count(chr(10), 0, found.start()) + 1}",
            found[1],
            found[2],
        )
        for found in FENCED.finditer(text)
    ]


DOCUMENTS_WITH_BLOCKS = [
    document for document in DOCUMENTS if document.exists() and parse_blocks(document)
]


def to_label(document: Path) -> str:
    return str(document.relative_to(ROOT))


ASKING = frozenset({"import", "trust"})  # commands that ask for confirmation


# --- a document, from its beginning to its end ----------------------------------------------------


class DocumentRunner:
    """The files, processes and output of one document."""

    def __init__(self, home: Path, stack: ExitStack) -> None:
        self.home, self.directory, self._stack = home, home / "project", stack
        (home / "notes").mkdir()
        self.directory.mkdir()
        self.output, self._port, self._run_id = "", 0, ""
        self._program = str(Path(sys.executable).with_name("onetool"))
        self._database: PostgresServer | None = None
        self._api_port = ""  # of the API that a document starts on port 8000
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        uv = {"UV_TOOL_DIR": str(home / "uv"), "UV_TOOL_BIN_DIR": str(home / "bin")}
        self.variables = {**environment(home), **uv, "PATH": programs, "NO_COLOR": "1"}
        self.variables["ONETOOL_APPROVALS__WAIT"] = (
            "0"  # a run that waits for a person is paused at once
        )

    def execute(self, block: Block) -> None:
        KINDS[block.kind](self, block)
        if found := RUN_ID.search(self.output):
            self._run_id = found[0]

    # --- code -------------------------------------------------------------------------------------

    def python(self, block: Block) -> None:
        if PROGRAM.search(block.text):
            self.output = self._run([sys.executable, "-c", block.text])
            return
        self._app.portal.call(self._app.onetool.live_settings.reload)
        answer = self._app.run(self._use_actual(block.text))
        assert not answer.is_error, answer.text
        self.output = answer.text

    @cached_property
    def _app(self) -> App:
        return self._stack.enter_context(open_app(self.directory, self.home, self.variables))

    def py(self, block: Block) -> None:
        file = self._write_block(block)
        assert file is not None, "a block of a Python file begins with a comment that is its path"
        compile(block.text, str(file), "exec")
        if file.name.endswith("_tools.py"):
            read = static_analysis.read(file)
            assert not read.problems
            assert read.functions, read.problem

    # --- data -------------------------------------------------------------------------------------

    def yaml(self, block: Block) -> None:
        """Write settings that name a file; only validate others. OpenAPI documents are written."""
        written = self._write_block(block)
        if written is not None and "\nopenapi:" in block.text:
            return
        if written is not None:
            assert written in self._load_files(self.directory), f"{written} is not a settings file"
            return
        with TemporaryDirectory() as elsewhere:
            self._write(Path(elsewhere), ".onetool/onetool.yaml", block.text)
            assert load(find_directories({}, Path(elsewhere), None, Path(elsewhere)), {}).files

    def _load_files(self, directory: Path) -> tuple[Path, ...]:
        return load(find_directories({}, directory, None, self.home), {}, trust=True).files

    def json(self, block: Block) -> None:
        """Parse JSON. The configuration of a client is written to `servers.json` for the next
        command.
        """
        data = json.loads(block.text)
        if "urlTemplate" in data:
            HttpImpl.model_validate(data)
        if "mcpServers" in data:
            servers = {
                name: use_shared_environment(server) for name, server in data["mcpServers"].items()
            }
            file = self._write(self.directory, "servers.json", json.dumps({"mcpServers": servers}))
            found = client_servers.read_servers(text_files.read(file), self.directory).servers
            assert all("command" in server or "url" in server for server in found.values())
            assert found.keys() == servers.keys()

    def toml(self, block: Block) -> None:
        """Write the definition of a package, and check that it declares packs under the group that
        OneTool reads.
        """
        self._write_block(block)
        (group,) = tomllib.loads(block.text)["project"]["entry-points"]
        assert group == GROUP

    def ini(self, block: Block) -> None:
        """Check that a systemd unit starts `onetool` with options that exist."""
        unit = configparser.ConfigParser(interpolation=None, strict=False)
        unit.read_string(block.text)
        program, *arguments = unit["Service"]["ExecStart"].split()
        assert Path(program).name == "onetool"
        check_options(self._run, arguments)

    def nginx(self, block: Block) -> None:
        lines = [line.strip() for line in block.text.splitlines() if line.strip()]
        assert all(line.endswith((";", "{", "}")) for line in lines)
        assert block.text.count("{") == block.text.count("}")
        assert f"proxy_pass http://127.0.0.1:{PORT};" in lines

    def sql(self, block: Block) -> None:
        """Execute the statements on a database server that later blocks use."""
        self._database = self._stack.enter_context(run_postgres())
        for statement in filter(None, map(str.strip, block.text.split(";"))):
            self._database.execute(statement)

    def text(self, block: Block) -> None:
        """Compare with the output of the previous block."""
        if block.text.startswith(tuple(FREE)):
            return
        pattern = ".*".join(re.escape(part) for part in block.text.strip().split("…"))
        assert self.output.strip(), "the previous block has no output"
        assert re.fullmatch(pattern, self.output.strip(), re.DOTALL), (
            f"the output is\n{self.output}"
        )

    # --- commands ---------------------------------------------------------------------------------

    def sh(self, block: Block) -> None:
        for line in split_commands(block.text):
            for part in line.split(" && "):
                self._type(part)

    def _type(self, command: str) -> None:
        words = shlex.split(command, comments=True)
        known = next(
            (check for start, check in ONLY_CHECKED.items() if command.startswith(start)), None
        )
        if known is not None:
            known(words)
        elif words[:2] == ["onetool", "serve"] and "--http" in words:
            self._port = json.loads(self._start(*words[1:], "--port", "0"))["port"]
        elif words[:2] == ["onetool", "worker"]:
            self._start(*words[1:])
        elif words[-1:] == ["&"]:
            self._start_api(words[:-2])
        elif words[:3] == ["uv", "tool", "install"]:
            self._install(words[3:])
        elif exported := EXPORT.fullmatch(command):
            self.variables[exported[1]] = self._run(
                ["/bin/sh", "-c", f"printf %s {self._use_actual(exported[2])}"]
            )
        elif assignment := ASSIGNMENT.fullmatch(command):
            self.variables[assignment[1]] = self._use_actual(assignment[2])
        else:
            adjusted = self._use_actual(command.replace("uv run --no-dev onetool", "onetool"))
            program, *arguments = shlex.split(adjusted, comments=True)
            if program == "onetool" and arguments[0] in {"approve", "reject"}:
                self.output = self._confirm(arguments)
                return
            needs_shell = program != "onetool" or SHELL_SYNTAX.search(IN_QUOTES.sub("", adjusted))
            self.output = self._run(
                ["/bin/sh", "-c", adjusted] if needs_shell else [self._program, *arguments]
            )

    def _confirm(self, arguments: list[str]) -> str:
        """Run a command in a terminal, and confirm it."""
        status, shown = answer_in_terminal(
            self.directory, "y", *arguments, variables=self.variables
        )
        assert status == 0, shown
        return shown

    def _install(self, words: list[str]) -> None:
        """Install OneTool from this repository.

        With another package, later commands use what was installed.
        """
        assert words[0] in {DISTRIBUTION, "."}
        others = [f"--with={self.directory / word}" for word in words[1:] if word != "--with"]
        self._run(["uv", "tool", "install", ".", *others], directory=ROOT)
        if others:
            self._program = f"{self.variables['UV_TOOL_BIN_DIR']}/onetool"

    def _use_actual(self, text: str) -> str:
        """Replace the ports and the run ID of the document with those in use."""
        text = EXAMPLE_RUN_ID.sub(self._run_id, text)
        if self._database is not None:
            text = text.replace(DATABASE_HOST, f"127.0.0.1:{self._database.port}")
        text = text.replace(f"localhost:{PORT}", f"localhost:{self._port}")
        return (
            text.replace(f"localhost:{API_PORT}", f"localhost:{self._api_port}")
            if self._api_port
            else text
        )

    def _start_api(self, command: list[str]) -> None:
        """Start a server of the document in the background, on a free port, until the document
        ends.
        """
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self._api_port = str(port)
        server = subprocess.Popen(
            [*command, str(port)], cwd=self.directory, env=self.variables, stderr=subprocess.DEVNULL
        )
        self._stack.callback(server.wait)
        self._stack.callback(server.kill)
        assert eventually(partial(is_listening, port))

    def _start(self, *arguments: str) -> str:
        """Start a server or a worker in the background, until the document ends.

        Return the line that it prints.
        """
        started = [self._program, *arguments, "--json"]
        # A pipe that is not read could fill up.
        errors = self._stack.enter_context((self.home / "stderr").open("ab"))
        server = subprocess.Popen(
            started,
            cwd=self.directory,
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        self._stack.callback(stop_server, server)
        assert server.stdout is not None
        line = server.stdout.readline()
        assert line, (self.home / "stderr").read_text(encoding="utf-8")
        return line

    def _run(self, arguments: list[str], directory: Path | None = None) -> str:
        done = subprocess.run(
            arguments,
            cwd=directory or self.directory,
            env=self.variables,
            input="yes\n" if arguments[0] == self._program and arguments[1] in ASKING else "",
            capture_output=True,
            encoding="utf-8",
            timeout=6 * TIMEOUT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    # --- files ------------------------------------------------------------------------------------

    def _write_block(self, block: Block) -> Path | None:
        if not block.file:
            return None
        text = self._use_actual(block.text)
        text = text.replace(OLLAMA, self._provider.url) if OLLAMA in text else text
        directory = self.home if block.file.startswith("~/") else self.directory
        return self._write(directory, block.file.removeprefix("~/"), text)

    @cached_property
    def _provider(self) -> FakeProvider:
        provider = self._stack.enter_context(serve_fake_provider())
        provider.replies = ANSWERS
        return provider

    @staticmethod
    def _write(directory: Path, name: str, text: str) -> Path:
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file


def use_shared_environment(server: dict[str, Any]) -> dict[str, Any]:
    """Use the environment that tests share, because uvx would install the program for every home
    directory.
    """
    return python_server(*server["args"]) if server.get("command") == "uvx" else server


KINDS: dict[str, Callable[[DocumentRunner, Block], None]] = {
    "python": DocumentRunner.python,
    "py": DocumentRunner.py,
    "yaml": DocumentRunner.yaml,
    "json": DocumentRunner.json,
    "sh": DocumentRunner.sh,
    "sql": DocumentRunner.sql,
    "text": DocumentRunner.text,
    "": DocumentRunner.text,
    "ini": DocumentRunner.ini,
    "toml": DocumentRunner.toml,
    "nginx": DocumentRunner.nginx,
}


@contextmanager
def open_app(directory: Path, home: Path, variables: dict[str, str]) -> Iterator[App]:
    """Open OneTool in this process, with the settings of that directory."""
    read = partial(read_settings, variables, directory, None, home)
    with start_blocking_portal("asyncio") as portal:
        onetool = OneTool(read=read, log=Log(), environment=variables)
        with portal.wrap_async_context_manager(onetool) as app:
            yield App(portal, app)


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def stop_server(server: subprocess.Popen[str]) -> None:
    server.terminate()
    server.communicate(timeout=2 * TIMEOUT_SECONDS)


def split_commands(text: str) -> Iterator[str]:
    """Yield the commands. Quotes and backslashes continue a command on the next line."""
    command = ""
    for line in text.splitlines():
        command += f"{line}\n"
        if not line.endswith("\\") and is_complete(command):
            if shlex.split(command, comments=True):
                yield command.strip()
            command = ""
    assert not command, f"incomplete command: {command}"


def is_complete(command: str) -> bool:
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return False
    return True


# --- commands that are checked but not executed ---------------------------------------------------


def check_target(words: list[str]) -> None:
    rules = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(f"\n{word}:" in rules for word in words[1:] if "=" not in word)


def check_script(words: list[str]) -> None:
    script, *options = words[3:]
    assert all(word in read_help(script) for word in options if word.startswith("--"))


@cache
def read_help(script: str) -> str:
    command = [sys.executable, script, "--help"]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=6 * TIMEOUT_SECONDS
    ).stdout


def check_options(run: Callable[[list[str]], str], arguments: list[str]) -> None:
    command, *options = arguments
    help_text = run([str(Path(sys.executable).with_name("onetool")), command, "--help"])
    assert all(word in help_text for word in options if word.startswith("--"))


def check_packages(words: list[str]) -> None:
    """Allow only uv and this directory, because `onetool` on PyPI is a different project."""
    extras = re.findall(
        r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert set(words[2:]) <= {"uv", ".", *(f".[{extra}]" for extra in extras)}


def check_test_paths(words: list[str]) -> None:
    assert all((ROOT / word).exists() for word in words[3:] if not word.startswith("-"))


def check_login(words: list[str]) -> None:
    """Parse the options. It would wait for a person."""
    make_parser(words[1]).parse_args(words[2:])


ONLY_CHECKED: dict[str, Callable[[list[str]], Any]] = {
    "onetool login": check_login,
    "pip install": check_packages,  # it would change the environment that the tests run in
    "uv run pytest": check_test_paths,  # it would run itself
    "make": check_target,  # it runs all of the above
    "uv run python": check_script,  # benchmarks take minutes; the reference has a test of its own
}


# --- the tests ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "document",
    [
        pytest.param(
            document,
            id=to_label(document),
            marks=[pytest.mark.nightly] * (document.name in LONG_DOCUMENTS),
        )
        for document in DOCUMENTS_WITH_BLOCKS
    ],
)
def test_every_block_of_a_document_works(document: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        runner = DocumentRunner(tmp_path, stack)
        for block in parse_blocks(document):
            try:
                runner.execute(block)
            except Exception as error:
                raise AssertionError(f"{block.location}: {error}") from error


@pytest.mark.parametrize("document", DOCUMENTS, ids=to_label)
def test_blocks_have_known_kinds_and_are_closed(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    unknown = [
        f"{block.location}: {block.kind!r}"
        for block in parse_blocks(document)
        if block.kind not in KINDS
    ]
    assert not unknown
    assert sum(line.lstrip().startswith("```") for line in text.splitlines()) == 2 * len(
        parse_blocks(document)
    )
    free = [block for block in parse_blocks(document) if not block.kind]
    assert all(block.text.startswith(tuple(FREE)) for block in free), (
        "a block without a kind must be listed in FREE"
    )


@pytest.mark.parametrize("document", GUIDE, ids=to_label)
def test_examples_of_the_guide_are_short(document: Path) -> None:
    examples = [block for block in parse_blocks(document) if block.kind in {"py", "python", "sh"}]
    lengths = {
        block.location: count_lines(block) for block in examples if block.file != SERVER_OF_EXAMPLES
    }
    assert {place: length for place, length in lengths.items() if length > MAX_EXAMPLE_LINES} == {}


def count_lines(block: Block) -> int:
    """Count the lines that are not empty, without the comment that is the path of the file."""
    return sum(bool(line.strip()) for line in block.text.splitlines()) - bool(block.file)


@pytest.mark.parametrize("document", [*DOCUMENTS, ROOT / "CHANGELOG.md"], ids=to_label)
def test_links_of_documents_have_targets(document: Path) -> None:
    text = FENCED.sub("", document.read_text(encoding="utf-8"))
    for name, anchor in LINK.findall(text):
        target = document.parent / name if name else document
        assert target.exists(), f"{name} does not exist"
        if document.is_relative_to(ROOT / "docs"):
            assert target.resolve().is_relative_to(ROOT / "docs"), (
                f"{name} is not part of the documentation site"
            )
        if anchor:
            assert anchor in list_anchors(target), (
                f"{name} has no heading #{anchor}; it has {sorted(list_anchors(target))}"
            )


def list_anchors(document: Path) -> set[str]:
    """Return the anchors of the headings, as GitHub names them."""
    text = FENCED.sub("", document.read_text(encoding="utf-8"))
    return {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in HEADING.findall(text)
    }


@pytest.mark.parametrize(
    "document", [document for document in DOCUMENTS if document.suffix == ".md"], ids=to_label
)
def test_files_named_in_documents_exist(document: Path) -> None:
    paths = REPOSITORY_PATH.findall(document.read_text(encoding="utf-8"))
    assert not [name for name in paths if not (ROOT / name).exists()]


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_modules_named_in_contributor_documents_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert not [missing for line in text.splitlines() for missing in find_missing(line)]


def find_missing(line: str) -> Iterator[str]:
    """Yield named files that do not exist.

    In a table, a bare name is in a directory named before it in its row.
    """
    directories: set[Path] = set()
    for name in NAMED_FILE.findall(line):
        found = find_paths().get(name, [])
        if "/" not in name and directories and line.startswith("|"):
            found = [path for path in found if path.parent in directories]
        directories |= {path if name.endswith("/") else path.parent for path in found}
        if not found:
            yield name


@cache
def find_paths() -> dict[str, list[Path]]:
    """Return all paths by the ways to name them: `a/b/c.py`, `b/c.py`, `c.py`.

    Directories end with a slash.
    """
    paths = defaultdict(list)
    for top in ("*", "src/**/*", "tests/**/*", "docs/**/*", "benchmarks/**/*", "deploy/**/*"):
        for path in ROOT.glob(top):
            parts = path.relative_to(ROOT).parts
            for start in range(len(parts)):
                paths["/".join(parts[start:]) + ("/" if path.is_dir() else "")].append(path)
    return paths


def test_llms_txt_links_to_every_document() -> None:
    listed = (ROOT / "llms.txt").read_text(encoding="utf-8")
    missing = [
        to_label(document) for document in DOCUMENTS if f"({to_label(document)})" not in listed
    ]
    decisions = ROOT / "docs/decisions"
    index = (decisions / "index.md").read_text(encoding="utf-8")
    pages = [page.name for page in decisions.glob("[0-9]*.md")]
    assert not [page for page in pages if f"({page})" not in index]
    assert set(missing) == {"llms.txt", *(f"docs/decisions/{page}" for page in pages)}


@pytest.mark.slow
def test_the_reference_is_up_to_date() -> None:
    """Check that the reference is up to date. The failure message has the command that updates it."""
    command = [sys.executable, str(ROOT / "docs" / "reference" / "make.py"), "--check"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=6 * TIMEOUT_SECONDS
    )
    assert done.returncode == 0, done.stderr


def test_every_link_of_help_to_a_built_in_pack_is_a_page() -> None:
    pages = ROOT / "docs" / "reference" / "tools"
    slugs = {DOC_SLUGS.get(tool.pack, tool.pack) for tool in load_builtin_tools() if tool.pack}
    assert slugs <= {page.stem for page in pages.glob("*.md")}


def test_the_reference_does_not_depend_on_the_machine() -> None:
    pages = [
        page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").rglob("*.md")
    ]
    machine_facts = {str(ROOT), str(Path.home()), sys.prefix, sys.version.split()[0]}
    assert pages
    assert not [
        fact for fact in machine_facts for page in pages if f"{fact}/" in page or f" {fact}" in page
    ]
