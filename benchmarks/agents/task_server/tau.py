"""The retail and airline tasks of tau-bench (github.com/sierra-research/tau-bench), read from a
directory.

A task is one instruction and its expected actions. The state is the database of the domain.
"""

import copy
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

RESPOND = "respond"  # an action that is a message to the user, not a call


class TauWorld:
    """The tasks of one domain, its tools, and the database of the current task."""

    def __init__(self, domain: str, directory: str) -> None:
        self._package = open_packages(Path(directory), domain)
        tools = importlib.import_module(f"{self._package}.tools").ALL_TOOLS
        infos = [(tool.get_info()["function"], tool) for tool in tools]
        self._tools = {info["name"]: tool for info, tool in infos}
        self._definitions = [
            {
                "name": info["name"],
                "description": info["description"],
                "inputSchema": info["parameters"],
            }
            for info, _ in infos
        ]
        module = importlib.import_module(f"{self._package}.tasks_test")
        tasks = getattr(module, "TASKS_TEST", None) or module.TASKS
        self._tasks = {f"{domain}_{number}": task for number, task in enumerate(tasks)}
        self._load_data = importlib.import_module(f"{self._package}.data").load_data
        self._task, self._state, self._received = "", {}, []  # type: str, dict[str, Any], list[Any]

    def definitions(self) -> list[dict[str, Any]]:
        return self._definitions

    def outline(self) -> dict[str, list[str]]:
        """Return the tools that each task calls."""
        return {
            name: list(
                dict.fromkeys(action.name for action in task.actions if action.name != RESPOND)
            )
            for name, task in self._tasks.items()
        }

    def describe(self, task: str) -> dict[str, Any]:
        """Return a task with its expected calls, and the answers of the tools to these calls."""
        calls = [
            {"tool": tool, "arguments": arguments, "answer": answer}
            for tool, arguments, answer in self._play(task, self._load_data())
        ]
        turns = [{"text": self._tasks[task].instruction, "calls": calls}]
        return {"id": task, "turns": turns, "siblings": list(self._tools)}

    def _play(self, task: str, state: dict[str, Any]) -> list[list[Any]]:
        actions = [action for action in self._tasks[task].actions if action.name != RESPOND]
        return [
            [each.name, each.kwargs, self._invoke(state, each.name, each.kwargs)]
            for each in actions
        ]

    def _invoke(self, state: dict[str, Any], name: str, arguments: dict[str, Any]) -> str:
        try:
            return str(
                self._tools[name].invoke(data=state, **copy.deepcopy(arguments))
            )  # tools may keep them
        except Exception as error:  # noqa: BLE001 - tau-bench also shows every error as text
            return f"Error: {error}"

    def load(self, task: str) -> None:
        self._task, self._state, self._received = task, self._load_data(), []

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        answer = self._invoke(self._state, name, arguments)
        self._received.append([name, arguments, answer])
        return answer

    def check(self) -> dict[str, Any]:
        expected = self._load_data()
        calls = self._play(self._task, expected)
        wrong = [name for name in expected if self._state[name] != expected[name]]
        return {
            "state": not wrong,
            "calls": self._received == json.loads(json.dumps(calls)),
            "wrong": wrong,
        }


def open_packages(directory: Path, domain: str) -> str:
    """Make the packages importable without their `__init__` modules, which import language model
    clients.
    """
    sys.path.insert(0, str(directory))
    name = ""
    for part in ("tau_bench", "envs", domain):
        name = f"{name}.{part}".lstrip(".")
        module = ModuleType(name)
        module.__path__ = [str(directory.joinpath(*name.split(".")))]
        sys.modules[name] = module
    return name
