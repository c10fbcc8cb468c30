"""Evaluate a JMESPath expression in a limited number of steps.

A few characters can multiply a response: `[@,@][]` doubles it, and thirty of them fill the memory.
"""

from typing import Any

import jmespath
from jmespath.visitor import TreeInterpreter

from onetool.errors import ToolError

MAX_STEPS = 2_000_000
CHARS_PER_STEP = 8
STEPS_PER_SORTED_ITEM = 10  # sorting holds the interpreter lock
SORTING = frozenset({"sort", "sort_by"})


def select(selector: str, data: Any) -> Any:
    """Return what the selector selects. Raise if it fails or takes too long."""
    try:
        return _LimitedInterpreter(selector).visit(jmespath.compile(selector).parsed, data)
    except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise ToolError(f"the selector {selector} failed on the response: {error}") from None


class _LimitedInterpreter(TreeInterpreter):  # type: ignore[misc]  # JMESPath has no types
    def __init__(self, selector: str) -> None:
        super().__init__()
        self._selector = selector
        self._steps_left = MAX_STEPS

    def visit(self, node: Any, *args: Any, **kwargs: Any) -> Any:
        self._take(1)
        return super().visit(node, *args, **kwargs)

    def visit_flatten(self, node: Any, value: Any) -> Any:
        evaluated = self._evaluate_children(node, value)
        base = evaluated["children"][0]["value"]
        if isinstance(base, list):
            self._take(sum(len(item) if isinstance(item, list) else 1 for item in base))
        return super().visit_flatten(evaluated, value)

    def visit_slice(self, node: Any, value: Any) -> Any:
        self._take(len(value) if isinstance(value, list) else 1)
        return super().visit_slice(node, value)

    def visit_comparator(self, node: Any, value: Any) -> Any:
        evaluated = self._evaluate_children(node, value)
        self._measure(evaluated)
        return super().visit_comparator(evaluated, value)

    def visit_function_expression(self, node: Any, value: Any) -> Any:
        evaluated = self._evaluate_children(node, value)
        self._measure(evaluated)
        items = evaluated["children"][0]["value"] if node["value"] in SORTING else None
        if isinstance(items, list):
            self._take(STEPS_PER_SORTED_ITEM * len(items))
        return super().visit_function_expression(evaluated, value)

    def _evaluate_children(self, node: Any, value: Any) -> Any:
        """Return the node with the values of its children as literals."""
        literals = [
            {"type": "literal", "children": [], "value": self.visit(child, value)}
            for child in node["children"]
        ]
        return {**node, "children": literals}

    def _measure(self, node: Any) -> None:
        """Count all parts of the values: the same part may be in a value many times."""
        parts = [child["value"] for child in node["children"]]
        while parts:
            part = parts.pop()
            self._take(1 + len(part) // CHARS_PER_STEP if isinstance(part, str) else 1)
            if isinstance(part, dict | list):
                self._take(len(part))
                parts += part.values() if isinstance(part, dict) else part

    def _take(self, steps: int) -> None:
        self._steps_left -= steps
        if self._steps_left < 0:
            raise ToolError(
                f"the selector {self._selector[:200]} takes more than {MAX_STEPS:,} steps on the"
                " response",
                hint="select less, and process the rest in the code of a run",
            )
