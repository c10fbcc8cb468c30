"""The multi-turn tasks of BFCL v4 (package `bfcl-eval`): stateful Python classes, and the expected
calls of each task.

Only `multi_turn_base` and `multi_turn_long_context` are used: in the other two variants the model
has to notice that an argument or a tool is missing, which a player without a model cannot do.
"""

import ast
import copy
import importlib
import json
import re
from pathlib import Path
from typing import Any

VARIANTS = ("base", "long_context")
LIVE_SETS = (
    "live_simple",
    "live_multiple",
    "live_parallel",
    "live_parallel_multiple",
)  # definitions sent by users
JSON_TYPES = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
}
TYPES = {
    "dict": "object",
    "float": "number",
    "tuple": "array",
}  # names of Python in the place of names of JSON Schema


class BfclWorld:
    """The tasks, the instances of the classes of the current task, and the calls they received."""

    def __init__(self) -> None:
        settings = importlib.import_module("bfcl_eval.constants.executable_backend_config")
        package = importlib.import_module("bfcl_eval")
        self._data = Path(str(package.__file__)).parent / "data"
        self._modules, self._stateless = (
            settings.CLASS_FILE_PATH_MAPPING,
            settings.STATELESS_CLASSES,
        )
        self._documents = settings.MULTI_TURN_FUNC_DOC_FILE_MAPPING
        entries = [
            entry
            for variant in VARIANTS
            for entry in self._read(f"BFCL_v4_multi_turn_{variant}.json")
        ]
        answers = [
            each
            for v in VARIANTS
            for each in self._read(f"possible_answer/BFCL_v4_multi_turn_{v}.json")
        ]
        self._entries = {entry["id"]: entry for entry in entries}
        self._calls = {answer["id"]: answer["ground_truth"] for answer in answers}
        classes = sorted({name for entry in entries for name in entry["involved_classes"]})
        self._functions = {
            name: self._read(f"multi_turn_func_doc/{self._documents[name]}") for name in classes
        }
        self._parameters = {
            function["name"]: list(function["parameters"]["properties"])
            for functions in self._functions.values()
            for function in functions
        }
        self._task, self._instances, self._received = (
            "",
            {},
            [],
        )  # type: str, dict[str, Any], list[Any]

    def _read(self, name: str) -> list[dict[str, Any]]:
        text = (self._data / name).read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines() if line.strip()]

    def definitions(self) -> list[dict[str, Any]]:
        """Return the tools of all classes, then other public definitions, which no task calls."""
        known = {f["name"]: f for functions in self._functions.values() for f in functions}
        for name in LIVE_SETS:
            for entry in self._read(f"BFCL_v4_{name}.json"):
                for function in entry["function"]:
                    known.setdefault(re.sub(r"\W", "_", function["name"]), function)
        schemas = {name: convert_schema(function["parameters"]) for name, function in known.items()}
        for text in (text for turns in self._calls.values() for turn in turns for text in turn):
            name, arguments = self._parse(text)
            allow_values(schemas[name]["properties"], arguments)
        return [
            {"name": name, "description": known[name]["description"], "inputSchema": schema}
            for name, schema in schemas.items()
        ]

    def outline(self) -> dict[str, list[str]]:
        """Return the tools that each task calls."""
        return {
            task: list(dict.fromkeys(self._parse(text)[0] for turn in turns for text in turn))
            for task, turns in self._calls.items()
        }

    def describe(self, task: str) -> dict[str, Any]:
        """Return a task with its expected calls, and the answers of the classes to these calls."""
        entry, instances = self._entries[task], self._create(task)
        turns = []
        for messages, texts in zip(entry["question"], self._calls[task], strict=True):
            calls = [self._parse(text) for text in texts]
            answers = [call_method(instances, name, arguments) for name, arguments in calls]
            turns.append({
                "text": "\n".join(message["content"] for message in messages),
                "calls": [{"tool": n, "arguments": a, "answer": r} for (n, a), r in zip(calls, answers, strict=True)],
            })  # fmt: skip
        siblings = [f["name"] for name in entry["involved_classes"] for f in self._functions[name]]
        return {"id": task, "turns": turns, "siblings": siblings}

    def _parse(self, text: str) -> tuple[str, dict[str, Any]]:
        call: Any = ast.parse(text.strip(), mode="eval").body
        positional = zip(self._parameters[call.func.id], call.args, strict=False)
        pairs = [*positional, *((keyword.arg, keyword.value) for keyword in call.keywords)]
        return call.func.id, {name: ast.literal_eval(value) for name, value in pairs}

    def _create(self, task: str) -> dict[str, Any]:
        entry, instances = self._entries[task], {}
        for name in entry["involved_classes"]:
            instances[name] = getattr(importlib.import_module(self._modules[name]), name)()
            if name not in self._stateless:
                scenario = copy.deepcopy(entry["initial_config"].get(name, {}))
                load: Any = getattr(instances[name], "_load_scenario")  # noqa: B009 - the only way to set the state
                load(scenario, long_context="long_context" in task)
        return instances

    def load(self, task: str) -> None:
        self._task, self._instances, self._received = task, self._create(task), []

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        answer = call_method(self._instances, name, arguments)
        self._received.append([name, arguments, answer])
        return answer

    def check(self) -> dict[str, Any]:
        """Compare the state with the state after the expected calls, and the calls received with
        the expected ones.
        """
        expected, calls = self._create(self._task), []
        for text in (text for turn in self._calls[self._task] for text in turn):
            name, arguments = self._parse(text)
            calls.append([name, arguments, call_method(expected, name, arguments)])
        wrong = [
            f"{name}.{field}"
            for name, instance in expected.items()
            for field, value in vars(instance).items()
            if not field.startswith("_") and getattr(self._instances[name], field) != value
        ]
        return {
            "state": not wrong,
            "calls": self._received == json.loads(json.dumps(calls)),
            "wrong": wrong,
        }


def call_method(instances: dict[str, Any], name: str, arguments: dict[str, Any]) -> str:
    """Call the method and return its answer as BFCL shows it to models."""
    methods = [getattr(each, name) for each in instances.values() if hasattr(each, name)]
    if name.startswith("_") or not methods:
        raise LookupError(f"the tool {name} is not part of this task")
    answer = methods[-1](
        **copy.deepcopy(arguments)
    )  # some methods keep their arguments, and change them later
    if isinstance(answer, dict):
        try:
            return json.dumps(answer)
        except TypeError:
            return str(answer)
    return str(answer)


def allow_values(properties: dict[str, Any], arguments: dict[str, Any]) -> None:
    """Add the types of expected arguments to a schema.

    One expected call contradicts its own definition.
    """
    for name, value in arguments.items():
        found, declared = JSON_TYPES[type(value)], properties[name].get("type")
        if (
            isinstance(declared, str)
            and found != declared
            and (found, declared) != ("integer", "number")
        ):
            properties[name]["type"] = [declared, found]


def convert_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with the types of JSON Schema."""
    converted = {name: value for name, value in schema.items() if name != "type" or value != "any"}
    if isinstance(schema.get("type"), str) and "type" in converted:
        converted["type"] = TYPES.get(schema["type"], schema["type"])
    if isinstance(schema.get("properties"), dict):
        converted["properties"] = {
            name: convert_schema(each) for name, each in schema["properties"].items()
        }
    if isinstance(schema.get("items"), dict):
        converted["items"] = convert_schema(schema["items"])
    return converted
