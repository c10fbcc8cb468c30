"""Determinism of a run that may be replayed: random numbers and times depend only on its seed and
recorded answers.

Each thread, and each task of a thread pool, has its own `Source`, which is derived from that of its
creator. The time is that of the last answer to a call, and each reading advances it by one
microsecond, so that loops that wait for a time end. Modules are patched when they are imported, or
at the start if they already are. docs/security.md lists what is not covered.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from contextlib import contextmanager, suppress
from functools import wraps
from importlib.machinery import PathFinder

TYPE_CHECKING = False  # every zygote loads this module
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any

    Function = Callable[..., Any]
    Patch = Callable[[ModuleType], None]

NANOSECONDS = 1_000_000_000
READING_NANOSECONDS = 1000  # by which a reading advances the clock
BLOCK_BYTES = 64
MULTICAST_BIT = 1 << 40  # of the node of a UUID, if it is random
UUID_EPOCH = 0x01B21DD213814000  # 1582-10-15 to 1970-01-01, in units of 100 ns
START_THREAD = (
    "_start_new_thread",
    "_start_joinable_thread",
    "start_new_thread",
    "start_new",
    "start_joinable_thread",
)

_local = threading.local()
_sleep = time.sleep
_monotonic = time.monotonic
_monotonic_ns = time.monotonic_ns


class Source:
    """The random numbers and the clock of one thread or task."""

    def __init__(self, key: bytes, clock: int) -> None:
        # clock in nanoseconds
        self._key = key
        self.clock = clock
        self._blocks = self._children = 0
        self._random: Any = None
        self.is_over = False

    def create_child(self) -> Source:
        self._children += 1
        return Source(_derive(self._key, b"child", self._children), self.clock)

    def urandom(self, size: int) -> bytes:
        """Return random bytes, like `os.urandom`."""
        if size < 0:
            raise ValueError("negative argument not allowed")
        data = bytearray()
        while len(data) < size:
            self._blocks += 1
            data += _derive(self._key, b"block", self._blocks)
        return bytes(data[:size])

    def read_clock(self) -> int:
        self.clock += READING_NANOSECONDS
        return self.clock

    def advance_to(self, clock: int) -> None:
        self.clock = max(self.clock, clock)

    @property
    def random(self) -> Any:
        """The generator of the functions of the module `random`."""
        if self._random is None:
            self._random = sys.modules["random"].Random()
        return self._random


def _derive(key: bytes, purpose: bytes, number: int) -> bytes:
    from _blake2 import blake2b  # `hashlib` would load OpenSSL

    return blake2b(
        number.to_bytes(8, "big"), key=key, person=purpose, digest_size=BLOCK_BYTES
    ).digest()


def _current() -> Source:
    source: Source = _local.source
    return source


def _urandom(size: int, /) -> bytes:
    return _current().urandom(size)


@contextmanager
def _using(source: Source) -> Iterator[None]:
    before = getattr(_local, "source", None)
    _local.source = source
    try:
        yield
    finally:
        _local.source = before
        source.is_over = True


def start(seed: bytes, clock: float, until: int) -> Callable[[float, bool], None]:
    """Make this process deterministic.

    Return a function to call with the clock of every answer of a call.

    Until that many answers have been replayed, `time.sleep` returns at once.
    """
    started = round(clock * NANOSECONDS)
    _local.source = Source(seed, started)
    to_replay = until

    def handle_answer(clock: float, is_replayed: bool) -> None:
        nonlocal to_replay
        to_replay -= is_replayed
        _current().advance_to(round(clock * NANOSECONDS))

    vars(os).update(urandom=_urandom, getrandom=lambda size, flags=0: _urandom(size))  # noqa: ARG005 - as in `os`
    _patch_time(started, lambda: to_replay > 0)
    _patch_threads()
    for name, patch in PATCHES.items():
        if name in sys.modules:
            patch(sys.modules[name])
    sys.meta_path.insert(0, _Finder())
    return handle_answer


class _Finder:
    """An import hook that patches modules after they are loaded."""

    def find_spec(self, name: str, path: Any = None, _target: object = None) -> Any:
        if (patch := PATCHES.get(name)) is None or (
            spec := PathFinder.find_spec(name, path)
        ) is None:
            return None
        loader: Any = spec.loader
        load = loader.exec_module
        loader.exec_module = lambda module: (load(module), patch(module))
        return spec


# --- time -----------------------------------------------------------------------------------------


def _patch_time(started: int, is_replaying: Callable[[], bool]) -> None:
    def sleep(seconds: float, /) -> None:
        _sleep(min(seconds, 0) if is_replaying() else seconds)
        _advance(seconds)

    def read() -> int:
        return _current().read_clock()

    def read_elapsed() -> int:
        return read() - started

    # The standard library waits by the real clock: a logical one stands still meanwhile.
    def monotonic() -> float:
        return _monotonic() if _is_standard(sys._getframe(1)) else read_elapsed() / NANOSECONDS  # noqa: SLF001

    def monotonic_ns() -> int:
        return _monotonic_ns() if _is_standard(sys._getframe(1)) else read_elapsed()  # noqa: SLF001

    patched: dict[str, Function] = {
        "sleep": sleep,
        "monotonic": monotonic,
        "monotonic_ns": monotonic_ns,
    }
    patched["time_ns"], patched["time"] = read, lambda: read() / NANOSECONDS
    for name in ("perf_counter", "process_time", "thread_time"):
        patched[f"{name}_ns"], patched[name] = read_elapsed, lambda: read_elapsed() / NANOSECONDS
    patched["clock_gettime_ns"] = lambda clock, /: (
        read() if clock == time.CLOCK_REALTIME else read_elapsed()
    )
    patched["clock_gettime"] = lambda clock, /: patched["clock_gettime_ns"](clock) / NANOSECONDS
    for name in ("localtime", "gmtime", "ctime"):
        patched[name] = _with_default(getattr(time, name), patched["time"])
    patched["asctime"] = _with_default(time.asctime, patched["localtime"])
    strftime = time.strftime
    patched["strftime"] = lambda form, at=None, /: strftime(
        form, time.localtime() if at is None else at
    )
    vars(time).update((name, function) for name, function in patched.items() if hasattr(time, name))


def _with_default(function: Callable[[Any], Any], default: Callable[[], Any]) -> Function:
    return wraps(function)(lambda value=None, /: function(default() if value is None else value))


def _is_standard(frame: Any) -> bool:
    name = frame.f_globals.get("__name__", "")
    return isinstance(name, str) and name.partition(".")[0] in sys.stdlib_module_names


def _advance(seconds: float) -> None:
    _current().clock += round(seconds * NANOSECONDS)


def _patch_datetime(module: ModuleType) -> None:
    """Replace `datetime.datetime`, whose `now` reads the real clock.

    `date.today` calls `time.time`.
    """
    real = module.datetime

    class Type(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return (
                isinstance(instance, real)
                if cls is datetime
                else super().__instancecheck__(instance)
            )

        def __subclasscheck__(cls, subclass: type) -> bool:
            return (
                issubclass(subclass, real)
                if cls is datetime
                else super().__subclasscheck__(subclass)
            )

    class datetime(real, metaclass=Type):  # type: ignore[misc,valid-type]  # noqa: N801 - it replaces this class
        __doc__ = real.__doc__
        __module__ = real.__module__
        __qualname__ = real.__qualname__

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.fromtimestamp(time.time(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return cls.fromtimestamp(time.time(), module.timezone.utc).replace(tzinfo=None)

        def __repr__(self) -> str:
            text = super().__repr__()
            return f"datetime.{text}" if type(self) is datetime else text

    module.datetime = datetime  # type: ignore[attr-defined]


def _patch_asyncio_tasks(module: ModuleType) -> None:
    sleep = module.sleep

    @wraps(sleep)
    async def sleep_and_advance(delay: float, result: Any = None) -> Any:
        end = _current().clock + round(delay * NANOSECONDS)
        value = await sleep(delay, result)
        _current().advance_to(end)
        return value

    module.sleep = sleep_and_advance  # type: ignore[attr-defined]


# --- random numbers -------------------------------------------------------------------------------


def _patch_random(module: ModuleType) -> None:
    seed, shared = (
        module.Random.seed,
        module._inst,  # noqa: SLF001 - there is no public way
    )

    @wraps(seed)
    def seed_from_run(self: Any, a: Any = None, version: int = 2) -> None:
        seed(
            self,
            int.from_bytes(_current().urandom(BLOCK_BYTES), "big") if a is None else a,
            version,
        )

    def make_function(name: str) -> Function:
        @wraps(getattr(shared, name))
        def call(*args: Any, **kwargs: Any) -> Any:
            return getattr(_current().random, name)(*args, **kwargs)

        return call

    module.Random.seed = seed_from_run
    module._urandom = _urandom  # type: ignore[attr-defined]  # noqa: SLF001 - of SystemRandom, and so of `secrets`
    for name in module.__all__:
        if getattr(getattr(module, name), "__self__", None) is shared:
            setattr(module, name, make_function(name))


def _patch_tempfile(module: ModuleType) -> None:
    """Let names of temporary files not depend on the names that other threads get."""
    module._RandomNameSequence.rng = property(lambda _: sys.modules["random"].Random())  # noqa: SLF001
    with _using(Source(b"", 0)), suppress(OSError):
        module.gettempdir()  # otherwise the first thread that needs it draws names for a test


def _patch_uuid(module: ModuleType) -> None:
    """Replace `uuid1`, which depends on the system and on the calls of other threads."""

    @wraps(module.uuid1)
    def uuid1(node: int | None = None, clock_seq: int | None = None) -> Any:
        node = int.from_bytes(_urandom(6), "big") | MULTICAST_BIT if node is None else node
        clock_seq = int.from_bytes(_urandom(2), "big") if clock_seq is None else clock_seq
        at = time.time_ns() // 100 + UUID_EPOCH
        fields = (
            at & 0xFFFFFFFF,
            at >> 32 & 0xFFFF,
            at >> 48,
            clock_seq >> 8 & 0x3F,
            clock_seq & 0xFF,
            node,
        )
        return module.UUID(fields=fields, version=1)

    module.uuid1 = uuid1  # type: ignore[attr-defined]


# --- threads --------------------------------------------------------------------------------------


def _patch_threads() -> None:
    def make_start(start_thread: Function) -> Function:
        @wraps(start_thread)
        def start(function: Function, *args: Any, **kwargs: Any) -> Any:
            source = _current().create_child()
            if isinstance(thread := getattr(function, "__self__", None), threading.Thread):
                vars(thread)["_source"] = source
            return start_thread(_run_with(source, function), *args, **kwargs)

        return start

    for module in (sys.modules["_thread"], threading):
        for name in START_THREAD:
            if hasattr(module, name):
                setattr(module, name, make_start(getattr(module, name)))
    threading.Thread.join = _catch_up(threading.Thread.join)  # type: ignore[method-assign]
    wait = threading.Condition.wait

    @wraps(wait)
    def wait_and_advance(self: threading.Condition, timeout: float | None = None) -> bool:
        is_notified = wait(self, timeout)
        if (
            timeout is not None and not is_notified
        ):  # rounded up, because a queue waits for the rest of its timeout
            _advance(math.ceil(max(timeout, 0) * 1000) / 1000)
        return is_notified

    threading.Condition.wait = wait_and_advance  # type: ignore[method-assign]


def _run_with(source: Source, function: Function) -> Function:
    def run(*args: Any, **kwargs: Any) -> Any:
        with _using(source):
            return function(*args, **kwargs)

    return run


def _catch_up(wait: Function) -> Any:
    """Advance the clock to the end of the thread or task that `wait` has waited for."""

    @wraps(wait)
    def wait_and_catch_up(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return wait(self, *args, **kwargs)
        finally:
            source = vars(self).get("_source")
            if source is not None and source.is_over:
                _current().advance_to(source.clock)

    return wait_and_catch_up


def _patch_futures(module: ModuleType) -> None:
    module.Future.result = _catch_up(module.Future.result)


def _patch_thread_pools(module: ModuleType) -> None:
    submit = module.ThreadPoolExecutor.submit

    @wraps(submit)
    def submit_with_source(self: Any, function: Function, /, *args: Any, **kwargs: Any) -> Any:
        source = _current().create_child()
        # How many threads the pool starts depends on their speed.
        with _using(Source(source.urandom(BLOCK_BYTES), source.clock)):
            future = submit(self, _run_with(source, function), *args, **kwargs)
        vars(future)["_source"] = source
        return future

    module.ThreadPoolExecutor.submit = submit_with_source


PATCHES: dict[str, Patch] = {
    "random": _patch_random,
    "tempfile": _patch_tempfile,
    "uuid": _patch_uuid,
    "datetime": _patch_datetime,
    "asyncio.tasks": _patch_asyncio_tasks,
    "concurrent.futures._base": _patch_futures,
    "concurrent.futures.thread": _patch_thread_pools,
}
