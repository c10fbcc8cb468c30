"""Proxies of packs and tools for code in a cell.

Calls go over the pipe to the server, which resolves, validates and authorizes them. Proxies contain only names, no
schemas and no secrets.
"""

import importlib
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

from onetool_child.errors import ArgumentError, ToolError, ToolNotFound

Call = Callable[[str, tuple[Any, ...], dict[str, Any]], Any]
Request = Callable[[str, dict[str, Any]], Any]
Snippet = Callable[[str, dict[str, Any]], Any]
IN_CODE = frozenset({"call", "pack", "parallel", "snippet", "load"})  # run completely or partly in the cell
MAX_PARALLEL_CALLS = 32
PARALLEL_EXAMPLE = "ot.parallel([lambda: pack.tool(x=1), lambda: pack.tool(x=2)])"


class ToolProxy:
    """A tool that is called like a function."""

    __slots__ = ("_call", "_name")

    def __init__(self, name: str, call: Call) -> None:
        self._name, self._call = name, call

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._call(self._name, args, kwargs)

    def __repr__(self) -> str:
        return f"<tool {self._name}>"


class PackProxy:
    """A pack with its tools as attributes. A standard module with the same name provides the other attributes."""

    def __init__(self, name: str, tools: Iterable[str], call: Call, request: Request) -> None:
        self.__dict__.update(_pack=name, _call=call, _request=request)
        for tool in tools:
            self.__dict__[tool] = ToolProxy(f"{name}.{tool}", call)

    def __getattr__(self, attribute: str) -> Any:
        """Return a tool that was not sent with the code, or an attribute of the standard module."""
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        value = self.__dict__[attribute] = self._find_attribute(attribute)
        return value

    def _find_attribute(self, attribute: str) -> Any:
        name = f"{self._pack}.{attribute}"
        try:
            self._request("find", {"name": name})
        except ToolNotFound:
            module = importlib.import_module(self._pack) if self._pack in sys.stdlib_module_names else None
            if module is None or not hasattr(module, attribute):
                raise
            return getattr(module, attribute)
        return ToolProxy(name, self._call)

    def __call__(self, /, *_args: Any, **_kwargs: Any) -> Any:
        hint = "call one of its tools, pack.tool(argument=value): ot.search(query='what it is for') finds one"
        raise ArgumentError(f"{self._pack} is a pack, not a tool", hint=hint)

    def __dir__(self) -> list[str]:
        return list(self._request("list", {"pack": self._pack}))

    def __repr__(self) -> str:
        return f"<pack {self._pack}>"


class OtProxy(PackProxy):
    """The pack `ot`, with the functions that run inside the cell."""

    def __init__(self, name: str, tools: Iterable[str], call: Call, request: Request, snippet: Snippet) -> None:
        super().__init__(name, (tool for tool in tools if tool not in IN_CODE), call, request)
        self.__dict__["_snippet"] = snippet

    def call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call any tool by name, also if it is not a valid Python name."""
        return self._call(name, args, kwargs)

    def pack(self, name: str, /) -> PackProxy:
        """Return a pack by name, also if the name is hidden in code: `ot.pack("map").tool()`."""
        name = self._request("pack", {"name": name})
        return self if name == self._pack else PackProxy(name, (), self._call, self._request)

    def parallel(self, functions: Iterable[Any], /, *more: Any) -> list[Any]:
        """Call functions concurrently and return their values in order. Errors are raised after all have ended."""
        if more or not isinstance(functions, Iterable):
            raise TypeError(f"ot.parallel takes one list of functions: {PARALLEL_EXAMPLE}")
        functions = list(functions)
        for wrong in (type(each).__name__ for each in functions if not callable(each)):
            raise TypeError(f"ot.parallel takes functions, not {wrong}: {PARALLEL_EXAMPLE}")
        from concurrent.futures import ThreadPoolExecutor
        from contextvars import copy_context

        with ThreadPoolExecutor(MAX_PARALLEL_CALLS) as threads:
            # Each runs in a copy of this context, which has the snippet depth.
            return [each.result() for each in [threads.submit(copy_context().run, each) for each in functions]]

    def snippet(self, name: str, /, **values: Any) -> Any:
        """Run a configured snippet with these values and return its value."""
        return self._snippet(name, values)

    def load(self, /, *args: Any, **kwargs: Any) -> Any:
        """Load a stored result as data. Large results are transferred in parts."""
        if len(args) + len(kwargs) != 1:  # a part, or an invalid call: let the server handle it
            return self._call("ot.load", args, kwargs)
        texts: list[str] = []
        part: dict[str, Any] = {"next": 0}
        while part["next"] is not None:
            params = {"name": "ot.load", "args": args, "kwargs": {**kwargs, "part": part["next"]}}
            part = self._request("call", params)  # not `_call`, which would remember the value
            texts.append(part["text"])
        text = "".join(texts)
        try:
            return json.loads(text) if part["is_json"] else text
        except ValueError:  # for example, a redacted secret broke the JSON
            raise ToolError("cannot load the result as data; use ot.result()") from None
