"""Packs and tools for code in a cell: proxies, `help`, imports, and placeholders in plans.

Calls go over the pipe to the server, which resolves, validates and authorizes them. Proxies contain
only names, no schemas and no secrets. Imports find modules of the standard library first, so a pack
never replaces one. A placeholder stands for the result of a call that a plan does not make. It can
be passed on to tools; everything else needs the result, so it ends the plan.
"""

from __future__ import annotations

import _sitebuiltins
import builtins
import importlib
import json
import keyword
import sys
from collections.abc import Callable, ItemsView, Iterable, Iterator, MutableMapping, ValuesView
from importlib.machinery import ModuleSpec
from keyword import iskeyword
from math import isfinite
from typing import TYPE_CHECKING, Any

from onetool_child.data import Reference
from onetool_child.errors import ArgumentError, ToolError, ToolNotFound
from onetool_child.json_types import JsonObject
from onetool_child.names import FILENAME, IN_CODE
from onetool_child.project_path import ProjectsProxy

if TYPE_CHECKING:
    import inspect
    from types import FrameType

Call = Callable[..., Any]  # with the name of a tool, positional and named arguments, and an account
Request = Callable[[str, JsonObject], Any]
HELP = "ot.help"
MAX_LISTED_TOOLS = 20
MAX_PARALLEL_CALLS = 32
KINDS = ("positional", "variadic", "keyword", "keywords")  # in the order of a signature
PARALLEL_EXAMPLE = "ot.parallel([lambda: pack.tool(x=1), lambda: pack.tool(x=2)])"
UNARY = (
    "abs await bool bytes call ceil complex copy deepcopy dir enter exit float floor format fspath"
    " hash index int"
)
ACCESS = (
    "invert iter len neg next pos repr reversed round str trunc contains delattr delitem getitem"
    " setattr setitem"
)
COMPARISONS = "eq ge gt le lt ne"
OPERATORS = "add and divmod floordiv lshift matmul mod mul or pow rshift sub truediv xor"


def get_help(name: str, call: Call) -> str | None:
    """Return the help of a tool or pack, or None if it is not available to the agent."""
    try:
        return str(call(HELP, (), {"query": name}))
    except ToolError:
        return None


class ToolProxy:
    """A tool that is called like a function.

    Its documentation and signature are requested when they are read.
    """

    __slots__ = ("_call", "_name", "_request")

    def __init__(self, name: str, call: Call, request: Request) -> None:
        self._name = name
        self._call = call
        self._request = request

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._call(self._name, args, kwargs)

    def __getattr__(self, attribute: str) -> Any:
        """Return the attributes of a function that tools have too."""
        if attribute == "__name__":
            return self._name.rpartition(".")[2]
        if attribute == "__qualname__":
            return self._name
        if attribute == "__signature__":
            return build_signature(self._request("describe", {"name": self._name}))
        raise AttributeError(
            f"the tool {self._name} has no attribute {attribute!r}", name=attribute, obj=self
        )

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]  # of the tool, not of this class
        return get_help(self._name, self._call)

    def __repr__(self) -> str:
        return f"<tool {self._name}>"

    __str__ = __repr__


class PackProxy:
    """A pack with its tools as attributes.

    A standard module with the same name provides the other attributes.
    """

    def __init__(self, name: str, tools: Iterable[str], call: Call, request: Request) -> None:
        self.__dict__.update(_pack=name, _call=call, _request=request, __name__=name, __path__=[])
        for tool in tools:
            self.__dict__[tool] = ToolProxy(f"{name}.{tool}", call, request)

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]  # of the pack, not of this class
        return get_help(self._pack, self._call)

    def __getattr__(self, attribute: str) -> Any:
        """Return a tool that was not sent with the code, or an attribute of the standard module."""
        if attribute == "__all__":
            return dir(self)
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        value = self.__dict__[attribute] = self._find_attribute(attribute)
        return value

    def _find_attribute(self, attribute: str) -> Any:
        name = f"{self._pack}.{attribute}"
        try:
            tool_name = self._request("find", {"name": name})
        except ToolNotFound:
            module = (
                importlib.import_module(self._pack)
                if self._pack in sys.stdlib_module_names
                else None
            )
            if module is None or not hasattr(module, attribute):
                raise
            return getattr(module, attribute)
        return ToolProxy(tool_name, self._call, self._request)

    def __call__(self, /, *_args: Any, **_kwargs: Any) -> Any:
        tools = dir(self)
        listed = ", ".join(f"{self._pack}.{tool}()" for tool in tools[:MAX_LISTED_TOOLS])
        more = f" and {len(tools) - MAX_LISTED_TOOLS} more" if len(tools) > MAX_LISTED_TOOLS else ""
        raise ArgumentError(
            f"{self._pack} is a pack, not a tool", hint=f"call one of its tools: {listed}{more}"
        )

    def __dir__(self) -> list[str]:
        return list(self._request("list", {"pack": self._pack}))

    def __repr__(self) -> str:
        return f"<pack {self._pack}>"

    __str__ = __repr__


class OtProxy(PackProxy):
    """The pack `ot`, with the functions that run inside the cell."""

    def __init__(
        self, name: str, tools: Iterable[str], call: Call, request: Request, snippet: Request
    ) -> None:
        super().__init__(name, (tool for tool in tools if tool not in IN_CODE), call, request)
        self.__dict__["_snippet"] = snippet

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *IN_CODE})

    def call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call any tool by name, also if it is not a valid Python name."""
        return self._call(name, args, kwargs)

    def pack(self, name: str, /) -> PackProxy:
        """Return a pack by name, also if the name is hidden in code: `ot.pack("map").tool()`."""
        name = self._request("pack", {"name": name})
        return self if name == self._pack else PackProxy(name, (), self._call, self._request)

    def account(self, pack: str, account: str, /) -> PackProxy:
        """Return a pack whose calls use another account: `ot.account("gh", "work").list_issues()`."""
        name = self._request("pack", {"name": pack})
        if not account:
            raise ArgumentError(
                "the account must not be empty", hint='ot.account("gh", "work").list_issues()'
            )

        def call(tool: str, args: tuple[Any, ...], kwargs: JsonObject) -> Any:
            return self._call(tool, args, kwargs, account)

        return PackProxy(name, (), call, self._request)

    def parallel(self, functions: Iterable[Any], /, *more: Any) -> list[Any]:
        """Call functions concurrently and return their values in order.

        Errors are raised after all have ended.
        """
        if more or not isinstance(functions, Iterable):
            raise TypeError(f"ot.parallel takes one list of functions: {PARALLEL_EXAMPLE}")
        functions = list(functions)
        for wrong in (type(function).__name__ for function in functions if not callable(function)):
            raise TypeError(f"ot.parallel takes functions, not {wrong}: {PARALLEL_EXAMPLE}")
        from concurrent.futures import ThreadPoolExecutor
        from contextvars import copy_context

        with ThreadPoolExecutor(MAX_PARALLEL_CALLS) as threads:
            # Each runs in a copy of this context, which has the snippet depth.
            return [
                function.result()
                for function in [
                    threads.submit(copy_context().run, function) for function in functions
                ]
            ]

    def snippet(self, name: str, /, **values: Any) -> Any:
        """Run a configured snippet with these values and return its value."""
        return self._snippet(name, values)

    def session(self, handle: object = "", *args: Any, **kwargs: Any) -> Any:
        """Create a session, or open the one with this handle."""
        if args or kwargs:  # the tool itself, for example to read several keys at once
            return self._call("ot.session", (handle, *args), kwargs)
        return SessionProxy(handle.id if isinstance(handle, SessionProxy) else handle, self._call)

    def load(self, /, *args: Any, **kwargs: Any) -> Any:
        """Load a stored result as data. Large results are transferred in parts."""
        if len(args) + len(kwargs) != 1:  # a part, or an invalid call: let the server handle it
            return self._call("ot.load", args, kwargs)
        texts: list[str] = []
        part: JsonObject = {"next": 0}
        while part["next"] is not None:
            params = {"name": "ot.load", "args": args, "kwargs": {**kwargs, "part": part["next"]}}
            part = self._request("call", params)  # not `_call`, which would remember the value
            texts.append(part["text"])
        text = "".join(texts)
        try:
            return json.loads(text) if part["is_json"] else text
        except ValueError:  # for example, a redacted secret broke the JSON
            raise ToolError("cannot load the result as data; use ot.result()") from None


class SessionProxy(MutableMapping[str, Any], Reference):
    """The values of a session as a dictionary.

    Each operation is one call; as data it is the handle.
    """

    def __init__(self, handle: object, call: Call) -> None:
        self._call = call
        self._unknown: object = None  # a placeholder, if a plan would have changed the session
        opened = call("ot.session", (), {"handle": handle})
        self.id: str = opened["session"]

    def to_data(self) -> str:
        return self.id

    def _read(self, keys: list[str] | None = None) -> Any:
        if self._unknown is not None:
            bool(self._unknown)  # ends the plan
        answer = self._call("ot.session", (), {"handle": self.id, "keys": keys})
        return answer["keys" if keys is None else "values"]

    def _update(self, **changes: Any) -> Any:
        for key, value in changes.get("values", {}).items():
            _check_json(value, key)
        previous = self._call("ot.session_update", (), {"handle": self.id, **changes})
        if isinstance(previous, UnknownResult):
            self._unknown = previous
        return previous

    def __getitem__(self, key: str) -> Any:
        return self._read([key])[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._update(values={key: value})

    def __delitem__(self, key: str) -> None:
        self.pop(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __contains__(self, key: object) -> bool:
        return key in self._read()

    def items(self) -> ItemsView[str, Any]:
        values: JsonObject = self._read(self._read())
        return values.items()

    def values(self) -> ValuesView[Any]:
        return dict(self.items()).values()

    def pop(self, key: str, /, *default: Any) -> Any:
        """Remove a key and return its value, atomically."""
        removed = self._update(remove=[key])
        return removed.get(key, *default) if default else removed[key]

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Store the default if the key is missing, atomically. Return the value."""
        return self._update(values={key: default}, replace=False).get(key, default)

    def update(self, other: Any = (), /, **values: Any) -> None:
        """Store several values at once."""
        self._update(values={**dict(other), **values})

    def clear(self) -> None:
        self._update(remove=self._read())

    def __repr__(self) -> str:
        return f"<session {self.id}>"

    __str__ = __repr__


def _check_json(value: Any, key: object) -> None:
    """Raise ArgumentError if JSON would change the value or its key."""
    if not isinstance(key, str):
        raise _json_error(f"a key has type {type(key).__name__}")
    if isinstance(value, UnknownResult) or value is None or isinstance(value, str | int):
        return
    if isinstance(value, dict | list):
        for name, item in (
            value.items() if isinstance(value, dict) else ((key, item) for item in value)
        ):
            _check_json(item, name)
    elif not isinstance(value, float):
        raise _json_error(f"the value of {key!r} has type {type(value).__name__}")
    elif not isfinite(value):
        raise _json_error(f"the value of {key!r} has {value}")


def _json_error(problem: str) -> ArgumentError:
    hint = "use str, int, float, bool, None, lists, and dictionaries with string keys"
    return ArgumentError(f"a session keeps JSON values only: {problem}", hint=hint)


# --- signatures -----------------------------------------------------------------------------------


class TypeText:
    """The text of a type, which is never evaluated, because upstream servers choose it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def build_signature(described: JsonObject) -> inspect.Signature:
    """Return the signature, with names that Python does not accept in `**other`."""
    from inspect import Signature  # loaded late, because few runs inspect tools

    listed = described["parameters"]
    parameters = [
        parameter
        for parameter in listed
        if parameter["name"].isidentifier() and not iskeyword(parameter["name"])
    ]
    kinds = {parameter["kind"] for parameter in parameters}
    if len(parameters) < len(listed) and "keywords" not in kinds:
        names = {parameter["name"] for parameter in parameters}
        name = "other_arguments" if "other" in names else "other"
        parameters.append({"name": name, "kind": "keywords", "type": "Any"})
    parameters.sort(key=lambda parameter: (KINDS.index(parameter["kind"]), "default" in parameter))
    returns = TypeText(described["returns"]) if described["returns"] else Signature.empty
    return Signature(
        [_make_parameter(parameter) for parameter in parameters], return_annotation=returns
    )


def _make_parameter(about: JsonObject) -> inspect.Parameter:
    from inspect import Parameter

    kinds = (
        *(Parameter.POSITIONAL_OR_KEYWORD, Parameter.VAR_POSITIONAL),
        *(Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD),
    )
    default = about.get("default", Parameter.empty)
    annotation = TypeText(about["type"])
    return Parameter(
        about["name"], kinds[KINDS.index(about["kind"])], default=default, annotation=annotation
    )


# --- help -----------------------------------------------------------------------------------------


class HelpFunction(_sitebuiltins._Helper):  # noqa: SLF001 - `site` makes `help` of it
    """Print the help of a tool or pack, given as an object or by name, or Python's help."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if not args and not kwargs:
            sys.stdout.write(f"{self._call(HELP, (), {})}\n")
        elif len(args) == 1 and isinstance(args[0], ToolProxy | PackProxy | ProjectsProxy):
            sys.stdout.write(f"{self._call(HELP, (), {'query': repr(args[0])})}\n")
        elif len(args) == 1 and isinstance(args[0], str) and not _is_python(args[0]):
            sys.stdout.write(f"{self._call(HELP, (), {'query': args[0]})}\n")
        else:
            super().__call__(*args, **kwargs)


def _is_python(name: str) -> bool:
    first = name.partition(".")[0]
    return (
        first in sys.stdlib_module_names
        or hasattr(builtins, first)
        or first in keyword.kwlist
        or name.isupper()
    )


# --- imports --------------------------------------------------------------------------------------


class PackFinder:
    """A finder and loader of packs, for `sys.meta_path`. `find` returns a pack by name, or None."""

    def __init__(self, find: Callable[[str], Any]) -> None:
        self._find = find

    def find_spec(
        self, name: str, _path: object = None, _target: object = None
    ) -> ModuleSpec | None:
        pack, *rest = name.split(".")
        if pack in sys.stdlib_module_names:
            return None
        imported = (
            self._find(pack)
            if not rest
            else getattr(sys.modules[pack], rest[0], None)
            if len(rest) == 1
            else None
        )
        return None if imported is None else ModuleSpec(name, self, loader_state=imported)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> Any:
        return spec.loader_state

    def exec_module(self, _module: Any) -> None:
        """Do nothing: a pack has no code of its own."""


# --- placeholders ---------------------------------------------------------------------------------


class UnknownResult(Reference):
    """The unknown result of a call.

    `inspect` is called with the line of code that uses it, and does not return.
    """

    __slots__ = ("_data", "_inspect")

    def __init__(self, data: JsonObject, inspect: Callable[[int | None], None]) -> None:
        object.__setattr__(self, "_data", data)
        object.__setattr__(self, "_inspect", inspect)

    def __getattribute__(self, name: str) -> Any:
        _use(self)

    def to_data(self) -> JsonObject:
        """Return the marker that the server sent for it."""
        data: JsonObject = object.__getattribute__(self, "_data")
        return data


def _use(self: UnknownResult, *_args: Any, **_kwargs: Any) -> None:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None and frame.f_code.co_filename != FILENAME:
        frame = frame.f_back
    object.__getattribute__(self, "_inspect")(frame.f_lineno if frame else None)


for _name in f"{UNARY} {ACCESS} {COMPARISONS}".split():
    setattr(UnknownResult, f"__{_name}__", _use)
for _name in OPERATORS.split():
    for _prefix in ("", "r", "i"):
        setattr(UnknownResult, f"__{_prefix}{_name}__", _use)
