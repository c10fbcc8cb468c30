"""What the documents show works as they show it: every block in them, in the order in which a reader meets them.

A document is a story in a home folder of its own. A block that begins with a comment that is a path is that file; code
runs with the settings that were written before it; commands are typed; `text` is what the block before it said, with …
for whatever may stand there. A block of a kind that is not known here is a mistake in the document.
"""

import configparser
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from tests.proxy_support import python_server
from tests.support import PATIENCE, App, environment

from onetool.app import OneTool, read_settings
from onetool.cli.serve import PORT
from onetool.clients import files, reading
from onetool.config.load import load
from onetool.extensions import source
from onetool.logging import Log
from onetool.paths import find_folders

ROOT = Path(__file__).parents[2]
NAMES = ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "llms.txt")
DOCUMENTS = [*(ROOT / name for name in NAMES), *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s:#]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
OURS = re.compile(r"(?<![\w./-])((?:src|benchmarks|tests/(?:unit|spec|contract|e2e))/[\w./-]*\w\.(?:py|md|json|js))\b")
PATH_IN_COMMENT = re.compile(r"# ([\w./-]+\.(?:py|ya?ml|service))\n")
IN_QUOTES = re.compile("'[^']*'|#.*")
FOR_A_SHELL = re.compile(r"[^\w\s./:=,@+\"-]")
PROGRAM_OF_ITS_OWN = re.compile(r"^(?:from|import) ot\b", re.MULTILINE)
# Texts that nothing prints, by how they begin.
FREE = {"context_saved = ": "a formula", "   MCP client ": "a drawing", "Python 3": "figures of one machine"}
# What programs print whose document does not say it.
PRINTED = {"greet.hello": 'Hello Ada\n["Hello Ada","Hello Alan"]\n'}
PETSTORE = """\
openapi: 3.0.0
info: {title: Petstore, version: "1.0"}
servers: [{url: https://petstore.example.com/v1}]
paths:
  /pets:
    get:
      operationId: list-pets
      parameters: [{name: limit, in: query, schema: {type: integer}}]
      responses: {"200": {description: ok}}
"""


# --- blocks --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    place: str
    kind: str
    text: str

    @property
    def file(self) -> str | None:
        """The path in the comment that it begins with."""
        found = PATH_IN_COMMENT.match(self.text)
        return found[1] if found else None


def blocks(document: Path) -> list[Block]:
    text = document.read_text(encoding="utf-8")
    return [
        Block(f"{document.relative_to(ROOT)}:{text.count(chr(10), 0, found.start()) + 1}", found[1], found[2])
        for found in FENCED.finditer(text)
    ]


STORIES = [document for document in DOCUMENTS if document.exists() and blocks(document)]


def told(document: Path) -> str:
    return str(document.relative_to(ROOT))


# --- a document, from its beginning to its end -----------------------------------------------------------------------


class Story:
    """What has been written, started and said so far."""

    def __init__(self, home: Path, stack: ExitStack) -> None:
        self.home, self.folder, self._stack = home, home / "project", stack
        (home / "notes").mkdir()
        self.folder.mkdir()
        (self.folder / "petstore.yaml").write_text(PETSTORE, encoding="utf-8")
        self.said, self._port = "", 0
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        uv = {"UV_TOOL_DIR": str(home / "uv"), "UV_TOOL_BIN_DIR": str(home / "bin")}
        self.variables = {**environment(home), **uv, "PATH": programs, "NO_COLOR": "1"}

    def go_on(self, block: Block) -> None:
        KINDS[block.kind](self, block)

    # --- code ----------------------------------------------------------------------------------------------------

    def python(self, block: Block) -> None:
        if PROGRAM_OF_ITS_OWN.search(block.text):
            self.said = self._run([sys.executable, "-c", block.text])
            expected = [printed for word, printed in PRINTED.items() if word in block.text]
            assert not expected or self.said == expected[0]
            return
        self._app.portal.call(self._app.onetool.reload)
        answer = self._app.run(block.text)
        assert not answer.is_error, answer.text
        self.said = answer.text

    @cached_property
    def _app(self) -> App:
        return self._stack.enter_context(opened_in(self.folder, self.home, self.variables))

    def py(self, block: Block) -> None:
        file = self._written(block)
        assert file is not None, "a file of Python begins with a comment that is its path"
        compile(block.text, str(file), "exec")
        if file.name.endswith("_tools.py"):
            read = source.read(file)
            assert not read.problems
            assert read.functions, read.problem

    # --- data ----------------------------------------------------------------------------------------------------

    def yaml(self, block: Block) -> None:
        """Settings: in force from here on where the block is a file, else only right."""
        written = self._written(block)
        if written is not None:
            assert written in self._loaded(self.folder), f"{written} is no file that anybody reads"
            return
        with TemporaryDirectory() as elsewhere:
            self._write(Path(elsewhere), ".onetool/onetool.yaml", block.text)
            assert self._loaded(Path(elsewhere))

    def _loaded(self, folder: Path) -> tuple[Path, ...]:
        return load(find_folders({}, folder, None, self.home), {}, trust=True).files

    def json(self, block: Block) -> None:
        """Where it is a client's configuration, it is understood, and the next command may take it over."""
        data = json.loads(block.text)
        if "mcpServers" in data:
            servers = {name: at_hand(server) for name, server in data["mcpServers"].items()}
            file = self._write(self.folder, "servers.json", json.dumps({"mcpServers": servers}))
            found = reading.find(files.read(file), self.folder).servers
            assert all("command" in server or "url" in server for server in found.values())
            assert found.keys() == servers.keys()

    def ini(self, block: Block) -> None:
        """A unit of systemd. What it starts is a command of ours, with options that there are."""
        unit = configparser.ConfigParser(interpolation=None, strict=False)
        unit.read_string(block.text)
        program, *arguments = unit["Service"]["ExecStart"].split()
        assert Path(program).name == "onetool"
        options_exist(self._run, arguments)

    def nginx(self, block: Block) -> None:
        lines = [line.strip() for line in block.text.splitlines() if line.strip()]
        assert all(line.endswith((";", "{", "}")) for line in lines)
        assert block.text.count("{") == block.text.count("}")
        assert f"proxy_pass http://127.0.0.1:{PORT};" in lines

    def text(self, block: Block) -> None:
        """What the block before it said."""
        if block.text.startswith(tuple(FREE)):
            return
        pattern = ".*".join(re.escape(part) for part in block.text.strip().split("…"))
        assert self.said.strip(), "nothing was said before it"
        assert re.fullmatch(pattern, self.said.strip(), re.DOTALL), f"it is\n{self.said}"

    # --- commands ------------------------------------------------------------------------------------------------

    def sh(self, block: Block) -> None:
        for line in commands(block.text):
            for part in line.split(" && "):
                self._type(part)

    def _type(self, command: str) -> None:
        words = shlex.split(command, comments=True)
        known = next((check for start, check in ONLY_CHECKED.items() if command.startswith(start)), None)
        if known is not None:
            known(words)
        elif words[:2] == ["onetool", "serve"] and "--http" in words:
            self._serve(words[2:])
        elif words[:3] == ["uv", "tool", "install"]:
            self._run(words, folder=ROOT)
        else:
            typed = command.replace("uv run onetool", "onetool").replace(f"localhost:{PORT}", f"localhost:{self._port}")
            program, *arguments = shlex.split(typed, comments=True)
            needs_shell = program != "onetool" or FOR_A_SHELL.search(IN_QUOTES.sub("", typed))
            self.said = self._run(["/bin/sh", "-c", typed] if needs_shell else [self._program, *arguments])

    def _serve(self, options: list[str]) -> None:
        """In the background, on a port of its own, until the document ends."""
        started = [self._program, "serve", *options, "--port", "0", "--json"]
        # Its error stream may fill a pipe that nobody reads.
        errors = self._stack.enter_context((self.home / "stderr").open("ab"))
        server = subprocess.Popen(
            started, cwd=self.folder, env=self.variables, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        self._stack.callback(ended, server)
        assert server.stdout is not None
        address = server.stdout.readline()
        assert address, (self.home / "stderr").read_text(encoding="utf-8")
        self._port = json.loads(address)["port"]

    @property
    def _program(self) -> str:
        return str(Path(sys.executable).with_name("onetool"))

    def _run(self, arguments: list[str], folder: Path | None = None) -> str:
        done = subprocess.run(
            arguments,
            cwd=folder or self.folder,
            env=self.variables,
            input="yes\n" if arguments[:2] == [self._program, "trust"] else "",
            capture_output=True,
            encoding="utf-8",
            timeout=6 * PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    # --- files ---------------------------------------------------------------------------------------------------

    def _written(self, block: Block) -> Path | None:
        return self._write(self.folder, block.file, block.text) if block.file else None

    @staticmethod
    def _write(folder: Path, name: str, text: str) -> Path:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file


def at_hand(server: dict[str, Any]) -> dict[str, Any]:
    """The same program, from the environment that tests share: what uvx brings, it brings anew for every home."""
    return python_server(*server["args"]) if server.get("command") == "uvx" else server


KINDS: dict[str, Callable[[Story, Block], None]] = {
    "python": Story.python,
    "py": Story.py,
    "yaml": Story.yaml,
    "json": Story.json,
    "sh": Story.sh,
    "text": Story.text,
    "": Story.text,
    "ini": Story.ini,
    "nginx": Story.nginx,
}


@contextmanager
def opened_in(folder: Path, home: Path, variables: dict[str, str]) -> Iterator[App]:
    """OneTool in this process, with the settings of that folder."""
    read = partial(read_settings, variables, folder, None, home)
    with start_blocking_portal("asyncio") as portal:
        onetool = OneTool(read=read, log=Log(), environment=variables)
        with portal.wrap_async_context_manager(onetool) as app:
            yield App(portal, app)


def ended(server: subprocess.Popen[str]) -> None:
    server.terminate()
    server.communicate(timeout=2 * PATIENCE)


def commands(text: str) -> Iterator[str]:
    """What is typed, one command after the other; a quotation or a backslash goes on to the next line."""
    command = ""
    for line in text.splitlines():
        command += f"{line}\n"
        if not line.endswith("\\") and is_whole(command):
            if shlex.split(command, comments=True):
                yield command.strip()
            command = ""
    assert not command, f"it never ends: {command}"


def is_whole(command: str) -> bool:
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return False
    return True


# --- commands that are looked at and not run -------------------------------------------------------------------------


def is_a_target(words: list[str]) -> None:
    rules = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(f"\n{word}:" in rules for word in words[1:] if "=" not in word)


def is_a_script(words: list[str]) -> None:
    script, *options = words[3:]
    assert all(word in help_of(script) for word in options if word.startswith("--"))


@cache
def help_of(script: str) -> str:
    asked = [sys.executable, script, "--help"]
    return subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True, timeout=6 * PATIENCE).stdout


def options_exist(run: Callable[[list[str]], str], arguments: list[str]) -> None:
    command, *options = arguments
    shown = run([str(Path(sys.executable).with_name("onetool")), command, "--help"])
    assert all(word in shown for word in options if word.startswith("--"))


def is_ours_or_uv(words: list[str]) -> None:
    """The index has a package of our name that is somebody else's, so that only this folder is ours."""
    extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(words[2:]) <= {"uv", ".", *(f".[{extra}]" for extra in extras)}


def names_tests(words: list[str]) -> None:
    assert all((ROOT / word).exists() for word in words[3:] if not word.startswith("-"))


ONLY_CHECKED: dict[str, Callable[[list[str]], Any]] = {
    "pip install": is_ours_or_uv,  # it would change the environment that the tests run in
    "uv run pytest": names_tests,  # it would run itself
    "make": is_a_target,  # it runs all of the above
    "uv run python": is_a_script,  # benchmarks take minutes; the reference has a test of its own
}


# --- the tests -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("document", STORIES, ids=told)
def test_every_block_of_a_document_works(document: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        story = Story(tmp_path, stack)
        for block in blocks(document):
            try:
                story.go_on(block)
            except Exception as error:
                raise AssertionError(f"{block.place}: {error}") from error


@pytest.mark.parametrize("document", DOCUMENTS, ids=told)
def test_blocks_are_of_known_kinds_and_end(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    unknown = [f"{block.place}: {block.kind!r}" for block in blocks(document) if block.kind not in KINDS]
    assert not unknown
    assert sum(line.lstrip().startswith("```") for line in text.splitlines()) == 2 * len(blocks(document))
    free = [block for block in blocks(document) if not block.kind]
    assert all(block.text.startswith(tuple(FREE)) for block in free), "a block without a kind is a drawing named above"


@pytest.mark.parametrize("document", [*DOCUMENTS, ROOT / "CHANGELOG.md"], ids=told)
def test_documents_link_to_what_exists(document: Path) -> None:
    text = FENCED.sub("", document.read_text(encoding="utf-8"))
    for name, anchor in LINK.findall(text):
        target = document.parent / name if name else document
        assert target.exists(), f"there is no {name}"
        if anchor:
            assert anchor in anchors(target), f"{name} has no heading #{anchor}; it has {sorted(anchors(target))}"


def anchors(document: Path) -> set[str]:
    """The headings as a browser of documents names them."""
    text = FENCED.sub("", document.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in HEADING.findall(text)}


@pytest.mark.parametrize("document", [document for document in DOCUMENTS if document.suffix == ".md"], ids=told)
def test_files_that_documents_name_exist(document: Path) -> None:
    named = OURS.findall(document.read_text(encoding="utf-8"))
    assert not [name for name in named if not (ROOT / name).exists()]


def test_every_document_is_reached_from_the_list_for_models() -> None:
    listed = (ROOT / "llms.txt").read_text(encoding="utf-8")
    missing = [told(document) for document in DOCUMENTS if f"({told(document)})" not in listed]
    assert missing == ["llms.txt"]


@pytest.mark.slow
def test_the_reference_is_as_the_code_is() -> None:
    """Where this fails, its message has the command that makes it right."""
    made = [sys.executable, str(ROOT / "docs" / "reference" / "make.py"), "--check"]
    done = subprocess.run(made, capture_output=True, text=True, check=False, timeout=6 * PATIENCE)
    assert done.returncode == 0, done.stderr


def test_the_reference_tells_nothing_of_this_machine() -> None:
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").glob("*.md")]
    told_of = {str(ROOT), str(Path.home()), sys.prefix, sys.version.split()[0]}
    assert pages
    assert not [fact for fact in told_of for page in pages if f"{fact}/" in page or f" {fact}" in page]
