# ruff: noqa: INP001 - a script beside what it makes, and no package
"""The pages of the reference, made of the code: commands, settings, tools, errors, REST and Python names.

`uv run python docs/reference/make.py` writes them, `--check` only compares and says what to type. Nothing of the
machine gets into them. Words that the code does not have are not here either: a setting or an error without a
description stops the work.
"""

import argparse
import ast
import asyncio
import importlib
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent, wrap
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

FOLDER = Path(__file__).parent
COMMAND = "uv run python docs/reference/make.py"
MADE = f"<!-- Made by `{COMMAND}`: change the code, not this file. -->"
WIDTH = 120
Lines = Iterator[str]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the reference, or check that it is as the code is.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a page differs from the code")
    options = parser.parse_args(arguments)
    stale = [name for name, make in PAGES.items() if _differs(FOLDER / name, _page(make), write=not options.check)]
    if options.check and stale:
        sys.stderr.write(f"docs/reference is not as the code is ({', '.join(stale)}). Type: {COMMAND}\n")
        return 1
    sys.stdout.write(f"{'wrote ' + ', '.join(stale) if stale else 'everything is as the code is'}\n")
    return 0


def _page(make: Callable[[], Lines]) -> str:
    title, *rest = make()
    return "\n".join([f"# {title}", "", MADE, "", *rest]).rstrip() + "\n"


def _differs(file: Path, text: str, *, write: bool) -> bool:
    if file.exists() and file.read_text(encoding="utf-8") == text:
        return False
    if write:
        file.write_text(text, encoding="utf-8")
    return True


def _paragraph(text: str) -> Lines:
    yield from wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Lines:
    """Nothing where there is no row."""
    titles, filled = list(head), [list(map(_cell, row)) for row in rows]
    if filled:
        yield f"| {' | '.join(titles)} |"
        yield f"|{'---|' * len(titles)}"
        yield from (f"| {' | '.join(row)} |" for row in filled)
        yield ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].removesuffix('.')}." if text else ""


def _first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").partition("\n\n")[0].replace("\n", " ")


# --- commands ------------------------------------------------------------------------------------------------------


def commands() -> Lines:
    from onetool.cli import main as command_line

    yield "Commands"
    yield from _paragraph(
        "A bare `onetool` is `onetool serve`, and `onetool --version` tells the version. Every command takes "
        "`--help` and `--config FILE`, the configuration file to use."
    )
    yield ""
    for part in command_line.ENDING.split("\n\n"):
        yield from _paragraph(" ".join(part.split()))
        yield ""
    for name, summary in command_line.COMMANDS.items():
        yield from _command(name, summary, command_line.command(name)[0])


def _command(name: str, summary: str, parser: argparse.ArgumentParser) -> Lines:
    yield f"## onetool {name}"
    yield ""
    yield from (parser.description or summary).strip().splitlines()
    yield ""
    yield from _options(parser)
    for action in _subparsers(parser):
        for word, inner in action.choices.items():
            yield from _subcommand(name, word, inner, action)


def _subcommand(name: str, word: str, parser: argparse.ArgumentParser, within: Any) -> Lines:
    words = {choice.dest: choice.help or "" for choice in within._choices_actions}  # noqa: SLF001 - see _subparsers
    yield f"### onetool {name} {word}"
    yield ""
    yield _sentence(words.get(word, ""))
    yield ""
    yield from _options(parser)


def _subparsers(parser: argparse.ArgumentParser) -> list[Any]:
    """Parts of a parser: argparse shows them in help texts only, whose form changes with terminal and Python."""
    return [action for action in parser._actions if action.nargs == argparse.PARSER]  # noqa: SLF001 - see above


def _options(parser: argparse.ArgumentParser) -> Lines:
    actions = parser._actions  # noqa: SLF001 - see _subparsers
    shown = [one for one in actions if one.nargs != argparse.PARSER and one.help != argparse.SUPPRESS]
    rows = [(_spelling(one), _meaning(one)) for one in shown if not {"--help", "--config"} & set(one.option_strings)]
    yield from _table(("argument", "meaning"), rows)


def _spelling(action: argparse.Action) -> str:
    value = _placeholder(action)
    if not action.option_strings:
        return f"`{value}`" if action.required and action.nargs != "*" else f"`[{value}]`"
    return ", ".join(f"`{word} {value}`" if value else f"`{word}`" for word in action.option_strings)


def _placeholder(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    chosen = "|".join(map(str, action.choices)) if action.choices else action.dest.upper()
    value = action.metavar if isinstance(action.metavar, str) else chosen
    return f"{value}..." if action.nargs in {"+", "*"} else value


def _meaning(action: argparse.Action) -> str:
    text = (action.help or "").replace("%%", "%")
    default = action.default
    is_told = (
        isinstance(default, str | int) and not isinstance(default, bool) and default not in {"", argparse.SUPPRESS}
    )
    return f"{text} (`{default}` if left out)" if is_told and str(default) not in text else text


# --- settings ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Key:
    path: str
    kind: Any
    default: str
    words: str


def settings() -> Lines:
    from onetool.config.model import Settings

    yield "Settings"
    yield from _paragraph(
        "The keys of `onetool.yaml`. The file in `~/.onetool` counts first, then that in the project's `.onetool`: "
        "mappings merge key by key, lists replace. `ONETOOL_<SECTION>__<KEY>` overrides one value, such as "
        "`ONETOOL_EXECUTION__TIMEOUT=60`. `NAME` stands for a name of your own."
    )
    yield ""
    for section, keys in _sections(Settings):
        yield f"## {section or 'Top level'}"
        yield ""
        rows = ((f"`{key.path}`", _kind(key.kind), key.default, key.words) for key in keys)
        yield from _table(("key", "kind", "default", "meaning"), rows)


def _sections(model: Any, path: str = "") -> Iterator[tuple[str, list[Key]]]:
    """A section's own keys, then the sections below it, each once in every place it stands in."""
    fields = model.model_fields.items()
    yield path, [_key(model, name, field) for name, field in fields]
    for name, field in fields:
        inner, suffix = _section_in(field.annotation)
        if inner is not None:
            yield from _sections(inner, f"{path}{'.' if path else ''}{field.alias or name}{suffix}")


def _key(model: Any, name: str, field: Any) -> Key:
    if not field.description:
        raise SystemExit(f"{model.__name__}.{name} in src/onetool/config/model.py has no description: give it one")
    return Key(field.alias or name, field.annotation, _default(field), field.description)


def _section_in(kind: Any) -> tuple[Any, str]:
    """The section that stands under a key, and what comes between: `.NAME` in a mapping, `[]` in a list."""
    if isinstance(kind, type) and hasattr(kind, "model_fields"):
        return kind, ""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Mapping:
        found, more = _section_in(inner[1])
        return found, f".NAME{more}"
    if origin is tuple:
        found, more = _section_in(inner[0])
        return found, f"[]{more}"
    if origin in {Union, UnionType, Annotated}:
        return next((found for one in inner if (found := _section_in(one))[0] is not None), (None, ""))
    return None, ""


def _default(field: Any) -> str:
    if field.is_required():
        return "must be given"
    value = field.get_default(call_default_factory=True)
    if value in (None, "", (), {}, frozenset()) or hasattr(value, "model_fields_set"):
        return ""
    return f"`{value if isinstance(value, str) else json.dumps(value, default=list)}`"


def _kind(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _kind(inner[0])
    if origin is Literal:
        return ", ".join(f"`{one}`" for one in inner)
    if origin in {Union, UnionType}:
        return " or ".join(_kind(one) for one in inner if one is not NoneType)
    if origin in {tuple, frozenset}:
        return f"list of {_kind(inner[0])}"
    if origin is Mapping:
        return f"mapping to {_kind(inner[1])}"
    return KINDS.get(getattr(kind, "__name__", ""), "section")


KINDS = {
    "Any": "anything",
    "Permission": "permissions",
    "bool": "yes or no",
    "float": "number",
    "int": "whole number",
    "str": "text",
}


# --- tools ---------------------------------------------------------------------------------------------------------


def tools() -> Lines:
    from onetool.runner.tool_loader import shipped_tools

    yield "Tools that ship"
    yield from _paragraph(
        "Call them in a run as they are written here. *Needs* is the permission that an agent must have; *limits* are "
        "arguments for which `tool_config` of the agent sets the most that a call may ask for."
    )
    yield ""
    found = sorted(shipped_tools(), key=attrgetter("name"))
    for pack, members in groupby(found, key=lambda tool: tool.pack or tool.name):
        yield f"## {pack}"
        yield ""
        yield _about_pack(pack)
        yield ""
        for tool in members:
            yield from _tool(tool)
        yield from _in_the_cell() if pack == "ot" else ()
    yield from _builtin_bundles()


def _about_pack(pack: str) -> str:
    return _sentence(_first_line(importlib.import_module(f"onetool.tools.{pack}_tools")).partition(": ")[2])


def _tool(tool: Any) -> Lines:
    from onetool.signature import arguments, signature

    yield f"### {tool.name}"
    yield ""
    yield f"`{signature(tool)}`"
    yield ""
    yield " ".join(tool.description.split())
    yield ""
    lines = [f"- `{name}`: {words}" for name, _, words in (line.partition(": ") for line in arguments(tool))]
    yield from lines
    yield from [""] if lines else []
    yield f"{_needs(tool)}{_limits(tool)} Example: `{' '.join(tool.example.split())}`"
    yield ""


def _needs(tool: Any) -> str:
    from onetool.bus.authorise import in_order

    words = ", ".join(f"`{one}`" for one in in_order(tool.permissions))
    extra = [
        f"{', '.join(f'`{one}`' for one in in_order(needed))} where `{name}` is given"
        for name, needed in tool.argument_permissions.items()
    ]
    return f"Needs {'; '.join([words or 'nothing', *extra])}."


def _limits(tool: Any) -> str:
    return f" Limits: {', '.join(f'`{name}`' for name in tool.limits)}." if tool.limits else ""


def _in_the_cell() -> Lines:
    """What works on the code's side of the pipe, and so is no tool."""
    from onetool_child import pack_proxy

    (pack,) = (one for one in vars(pack_proxy).values() if inspect.isclass(one) and "parallel" in vars(one))
    for definition in _methods(pack):
        if definition.name in {"call", "pack", "parallel", "snippet"}:
            yield f"### ot.{definition.name}"
            yield ""
            yield f"`ot.{_definition(definition)}`"
            yield ""
            yield ast.get_docstring(definition) or ""
            yield ""


def _builtin_bundles() -> Lines:
    from onetool import bundles

    files = sorted((Path(inspect.getfile(bundles)).parent / "builtin").glob("*/*.json"))
    read = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    for bundle in (one for one in read if "version" not in one):
        yield f"## {bundle['slug']}"
        yield ""
        yield f"A bundle. {bundle['description']} `onetool bundles enable {bundle['slug']}` does."
        yield ""
    names = ((f"`{one['slug']}`", one["description"]) for one in read if "version" in one)
    yield from _table(("tool", "does"), names)


# --- errors --------------------------------------------------------------------------------------------------------

WHEN = {
    "ToolError": "The tool failed, is switched off, or anything else that has no kind of its own below.",
    "ToolNotFound": "No pack or tool has this name; the message has the nearest names.",
    "ArgumentError": "An argument is missing, unknown, given twice, or not what the schema says.",
    "PermissionDenied": "The agent lacks a permission, or its list of tools lacks the tool.",
    "SandboxDenied": "The file is outside of the agent's sandbox, or a pattern denies it.",
    "BudgetExceeded": "A budget of the agent, or a limit of the run, is used up.",
    "ToolTimeout": "The call took longer than it may.",
    "NetworkError": "A host is not allowed, its address is a private one, or it cannot be reached.",
    "HttpStatusError": "A stored HTTP tool got a status that says no; the fields have status and body.",
    "OutputInvalid": "The value is not what the tool says that it returns.",
    "Cancelled": "The client took the call back, or the server ends.",
    "AuditUnavailable": "The audit log cannot be written, so the call was not made; the field `file` names it.",
    "StorageError": "A result could not be stored: the disk is full or read-only, or a quota is too small for it.",
    "BundleError": "The store of bundles refuses; its field `code` says which rule.",
    "ConfigError": "The configuration is wrong; the message has file and line.",
}


def errors() -> Lines:
    from onetool_child.errors import TREE

    yield "Errors"
    yield from _paragraph(
        "Every call that is refused or fails raises one of these, in code of a run as well as in a program. All of "
        "them are `ToolError`, have `type`, `message` and `fields` (each field is an attribute too), and are there in "
        "a run without an import; a program imports them from `onetool.errors`. `type` is the word in REST bodies, "
        "logs and statistics."
    )
    yield ""
    if missing := TREE.keys() ^ WHEN.keys():
        raise SystemExit(f"docs/reference/make.py: say in WHEN when these are raised: {', '.join(sorted(missing))}")
    rows = ((f"`{name}`", f"`{cls.type}`", _also(cls), WHEN[name]) for name, cls in TREE.items())
    yield from _table(("class", "type", "is also", "when"), rows)


def _also(cls: type) -> str:
    return ", ".join(f"`{base.__name__}`" for base in cls.__bases__ if base.__module__ == "builtins")


# --- REST ----------------------------------------------------------------------------------------------------------


def rest() -> Lines:
    from onetool.faces.http.errors import STATUS

    document = asyncio.run(_openapi())
    operations = [said for methods in document["paths"].values() for said in methods.values()]
    common = sorted(set.intersection(*(set(said["responses"]) for said in operations)) - {"200"})
    yield "REST"
    yield from _paragraph(
        "Everything that `onetool serve --http` answers to, beside MCP at `/mcp` and the page at `/`. `/openapi.json` "
        'has all shapes. A refusal is `{"error": {"code": "...", "message": "...", "details": {}}}`. Beside the '
        f"answers in the table, every route may answer with {', '.join(common)}."
    )
    yield ""
    yield "## Routes"
    yield ""
    paths = sorted(document["paths"].items(), key=lambda item: (item[0].split("/")[1], item[0]))
    rows = [
        (f"`{method.upper()} {path}`", said.get("summary", ""), _query(said), _statuses(said, common))
        for path, methods in paths
        for method, said in methods.items()
    ]
    yield from _table(("route", "does", "query", "answers"), rows)
    yield "## Codes of refusals"
    yield ""
    yield from _table(("code", "status"), ((f"`{code}`", str(status)) for code, status in STATUS.items()))


def _query(operation: Mapping[str, Any]) -> str:
    named = (one["name"] for one in operation.get("parameters", ()) if one.get("in") == "query")
    return ", ".join(f"`{name}`" for name in named)


def _statuses(operation: Mapping[str, Any], common: list[str]) -> str:
    return ", ".join(sorted(operation["responses"].keys() - common))


async def _openapi() -> dict[str, Any]:
    """Asked of the application as a client asks it, so that it is what clients see."""
    from onetool import OneTool
    from onetool.config.model import Settings
    from onetool.faces.http.gate import Bind
    from onetool.faces.http.server import build
    from onetool.logging import Log

    with TemporaryDirectory() as folder:
        async with OneTool(Settings(), folder=Path(folder), log=Log()) as app:
            body = await _got(build(app, Bind("127.0.0.1", 8765)), "/openapi.json")
    document: dict[str, Any] = json.loads(body)
    return document


async def _got(application: Any, path: str) -> bytes:
    parts: list[bytes] = []

    async def send(message: Any) -> None:
        parts.append(message.get("body", b""))

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
    }
    await application(scope, receive, send)
    return b"".join(parts)


# --- Python --------------------------------------------------------------------------------------------------------


def python_names() -> Lines:
    import onetool

    yield "Python"
    yield from _paragraph(
        "What `import onetool` offers. All errors are in [errors.md](errors.md), how to use the bus alone in "
        "[../toolbus.md](../toolbus.md)."
    )
    yield ""
    for name in onetool.__all__:
        thing = getattr(onetool, name)
        yield f"## {name}"
        yield ""
        yield from _class(name, thing) if inspect.isclass(thing) else _function(thing)


def _class(name: str, cls: type) -> Lines:
    methods = [one for one in _methods(cls) if not one.name.startswith("_") and not _is_overload(one)]
    methods = [
        one for one in methods if ast.get_docstring(one) or not _is_property(one)
    ]  # the others are for the inside
    made = [one for one in _methods(cls) if one.name == "__init__"]
    yield f"`{name}{_definition(made[0]).removeprefix('__init__').partition(' -> ')[0] if made else ''}`"
    yield ""
    about = "" if (cls.__doc__ or "").startswith(f"{name}(") else _first_line(cls)
    yield from [about, ""] if about and cls.__doc__ else []
    yield from _table(("field", "kind", "default"), _fields(cls))
    rows = ((f"`{_definition(one)}`", (ast.get_docstring(one) or "").replace("\n", " ")) for one in methods)
    yield from _table(("method or property", "what it is"), rows)


def _function(function: Callable[..., Any]) -> Lines:
    definition = _tree(function).body[0]
    assert isinstance(definition, ast.FunctionDef)
    yield f"`{_definition(definition)}`"
    yield ""
    yield _first_line(function)
    yield ""


def _tree(thing: Any) -> ast.Module:
    return ast.parse(dedent(inspect.getsource(thing)))


def _methods(cls: type) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    body = _tree(cls).body[0]
    assert isinstance(body, ast.ClassDef)
    return [one for one in body.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]


def _fields(cls: type) -> Lines | Iterator[tuple[str, str, str]]:
    """Of a dataclass or an enumeration, as they are written."""
    body = _tree(cls).body[0]
    assert isinstance(body, ast.ClassDef)
    for one in body.body:
        if isinstance(one, ast.AnnAssign):
            is_made = isinstance(one.value, ast.Call) and ast.unparse(one.value.func) == "field"
            default = f"`{ast.unparse(one.value)}`" if one.value and not is_made else ""
            yield f"`{ast.unparse(one.target)}`", f"`{ast.unparse(one.annotation)}`", default
        elif isinstance(one, ast.Assign):
            yield f"`{ast.unparse(one.targets[0])}`", "", f"`{ast.unparse(one.value)}`"


def _definition(one: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """As it is written, without `self`: what `inspect` makes of annotations differs between versions of Python."""
    returns = f" -> {ast.unparse(one.returns)}" if one.returns else ""
    if _is_property(one):
        return f"{one.name}{returns.replace(' -> ', ': ')}"
    arguments = ast.unparse(one.args).removeprefix("self").removeprefix(", ").removeprefix("/, ")
    return f"{'await ' if isinstance(one, ast.AsyncFunctionDef) else ''}{one.name}({arguments}){returns}"


def _is_property(one: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(decorator) == "property" for decorator in one.decorator_list)


def _is_overload(one: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(decorator) == "overload" for decorator in one.decorator_list)


PAGES: dict[str, Callable[[], Lines]] = {
    "commands.md": commands,
    "settings.md": settings,
    "tools.md": tools,
    "errors.md": errors,
    "rest.md": rest,
    "python.md": python_names,
}

if __name__ == "__main__":
    raise SystemExit(main())
