"""Find whether a target changed a function or a state that measures or judges targets.

:class:`Trusted` records functions of torch, Python and the harness, and the state of the process,
before any target is imported. It names what a target changed and restores it, so that the original
functions judge the result and time the next target.

Code in the same process can also write to memory directly, or replace the functions of this module.
Such changes are not found; docs/cheats.md lists them.
"""

from __future__ import annotations

import gc
import inspect
import os
import random
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from operator import itemgetter
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, TypeVar

import numpy as np
import torch

import implementations
from harness.records.text import count
from harness.run.call import ContractViolationError
from implementations.torch_private import count_modes, leave_modes

_SUBNORMAL = 1e-40  # in float32


@dataclass(frozen=True, slots=True)
class StatePart:
    """One part of the state of the process."""

    name: str
    read: Callable[[], Any]
    """Returns a value that can be compared."""
    write: Callable[[Any], object]
    """Sets a value that was read."""


def _generator_state() -> bytes:
    return torch.get_rng_state().numpy().tobytes()


def _set_generator_state(state: bytes) -> None:
    torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def _numpy_generator_state() -> tuple[Any, ...]:
    name, keys, *rest = np.random.get_state(legacy=True)
    return name, tuple(keys), *rest


def _flushes_subnormals() -> bool:
    """Whether the CPU treats a subnormal number as 0."""
    return not float(torch.tensor(_SUBNORMAL, dtype=torch.float32, device="cpu").mul(1.0))


def _precision() -> tuple[str | None, bool]:
    """Return the precision of float32 matrix products, None if torch cannot name it, and TF32."""
    try:
        precision = torch.get_float32_matmul_precision()
    except RuntimeError:  # it was set for CUDA alone
        precision = None
    return precision, torch.backends.cuda.matmul.allow_tf32


def _set_precision(wanted: tuple[str | None, bool]) -> None:
    torch.set_float32_matmul_precision(wanted[0] or "highest")
    if _precision() != wanted:
        torch.backends.cuda.matmul.allow_tf32 = wanted[1]


def _set_environment(wanted: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(wanted)


def _set_default_device(wanted: torch.device) -> None:
    torch.set_default_device(None if wanted.type == "cpu" else wanted)


def _autocast(device: str) -> tuple[bool, torch.dtype]:
    return torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)


def _set_autocast(device: str, wanted: tuple[bool, torch.dtype]) -> None:
    torch.set_autocast_enabled(device, wanted[0])
    torch.set_autocast_dtype(device, wanted[1])


def _set_filters(wanted: list[Any]) -> None:
    warnings.resetwarnings()  # so that warnings shown once by other filters are forgotten
    warnings.filters = wanted


def _set_search_path(wanted: list[str]) -> None:
    sys.path[:] = wanted


def _set_collector(is_on: bool) -> None:
    gc.enable() if is_on else gc.disable()


def _attribute(name: str, owner: Any, attribute: str) -> StatePart:
    read, write = partial(getattr, owner, attribute), partial(setattr, owner, attribute)
    return StatePart(name, read, write)


_WATCHED_AND_RESET = (
    StatePart("the number of threads", torch.get_num_threads, torch.set_num_threads),
    StatePart("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
    StatePart("Python's garbage collector", gc.isenabled, _set_collector),
)
_WATCHED_AND_KEPT = (
    StatePart("torch's function and dispatch modes", count_modes, leave_modes),
    StatePart("Python's profile function", sys.getprofile, sys.setprofile),
    StatePart("Python's trace function", sys.gettrace, sys.settrace),
)
# set back only at the end of a block of process_state_restored
_KEPT = (
    StatePart("torch's random generator", _generator_state, _set_generator_state),
    StatePart("Python's random generator", random.getstate, random.setstate),
    StatePart("NumPy's random generator", _numpy_generator_state, np.random.set_state),
    StatePart("the gradient recording", torch.is_grad_enabled, torch.set_grad_enabled),
    StatePart("Python's search path", lambda: sys.path, _set_search_path),
)
_RESET = (
    *_WATCHED_AND_RESET,
    StatePart("the default device", torch.get_default_device, _set_default_device),
    StatePart("the flushing of subnormal numbers", _flushes_subnormals, torch.set_flush_denormal),
    StatePart(
        # use_deterministic_algorithms, the other way to set it, imports torch's compiler
        "the deterministic mode",
        torch.get_deterministic_debug_mode,
        torch.set_deterministic_debug_mode,
    ),
    StatePart("the precision of float32 matrix products", _precision, _set_precision),
    _attribute("TF32 in convolutions", torch.backends.cudnn, "allow_tf32"),
    _attribute("cuDNN's benchmark mode", torch.backends.cudnn, "benchmark"),
    _attribute("cuDNN's deterministic mode", torch.backends.cudnn, "deterministic"),
    StatePart("autocast on the CPU", partial(_autocast, "cpu"), partial(_set_autocast, "cpu")),
    StatePart("autocast on CUDA", partial(_autocast, "cuda"), partial(_set_autocast, "cuda")),
    StatePart("the anomaly mode", torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    StatePart("the filters of warnings", lambda: list(warnings.filters), _set_filters),
    StatePart("NumPy's error state", np.geterr, lambda wanted: np.seterr(**wanted)),
    StatePart("the environment variables", lambda: dict(os.environ), _set_environment),
    StatePart("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
)
"""What :func:`set_usual_state` sets to the value that it had at import, because an earlier call of
the target may have changed it."""
WATCHED = (*_WATCHED_AND_RESET, *_WATCHED_AND_KEPT)
"""What is read after each call of a target; to read all of the state would take long."""
STATE = (*_RESET, *_WATCHED_AND_KEPT, *_KEPT)


@contextmanager
def process_state_restored() -> Iterator[None]:
    """Restore the state of the process at the end of the block."""
    before = process_state()
    try:
        yield
    finally:
        _restore(before, STATE)


def _restore(wanted: dict[str, Any], parts: Iterable[StatePart]) -> None:
    now = process_state()
    for part in parts:
        if now[part.name] != wanted[part.name]:
            part.write(wanted[part.name])


def process_state() -> dict[str, Any]:
    """Return each part of the state by its name, as values that later changes leave alone."""
    values = {part.name: part.read() for part in STATE}
    return {name: [*value] if isinstance(value, list) else value for name, value in values.items()}


_AT_IMPORT = process_state()


def set_usual_state() -> None:
    """Set what the process began with, and advance the random generators."""
    _restore(_AT_IMPORT, _RESET)
    torch.rand(1)
    random.random()
    np.random.rand()


def set_other_state() -> None:
    """Set a state that a target is unlikely to set, so that what it sets shows as a change."""
    set_usual_state()
    torch.set_num_threads(3)
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.benchmark = True
    np.seterr(all="call")


def set_caller_state() -> None:
    """Set modes that callers choose and that must change no result; leave the others."""
    torch.set_default_dtype(torch.float16)
    torch.set_deterministic_debug_mode(1)


# --- what measures and judges -----------------------------------------------------------------

_OWN_PACKAGES = ("harness", "implementations")
_MODULES = (
    *("torch", "torch.nn.functional", "torch.autograd", "torch.cuda", "torch.linalg"),
    *("torch.special", "numpy", "builtins", "gc", "math", "random", "statistics"),
    *("threading", "time", "timeit"),
)
_CLASSES: tuple[type, ...] = (
    torch.Tensor,
    torch.nn.Module,
    torch.nn.LayerNorm,
    torch.autograd.Function,
    torch.cuda.Event,
    torch.cuda.Stream,
)
_NAMED = 3  # changes that a message names; the others are only counted
_MISSING = object()
Target = TypeVar("Target")
Found = TypeVar("Found")
# code of torch.compile, which replaces torch.manual_seed and two methods of torch.nn.Module when it
# is first used: these changes are not the target's
_COMPILER = tuple(str(Path(torch.__file__).parent / name) for name in ("_dynamo", "_compile.py"))


class TamperingError(ContractViolationError):
    """The target changed something that measures or judges targets; the message names it."""


@dataclass(frozen=True, slots=True)
class _Namespace:
    """The functions and classes of a module, or the attributes of a class, when it was read."""

    owner: ModuleType | type
    name: str
    keys: tuple[str, ...]
    values: tuple[object, ...]
    get: Callable[[Mapping[str, object]], tuple[object, ...]]

    @classmethod
    def of(cls, owner: ModuleType | type) -> _Namespace:
        # all attributes of a class, because properties and slots are not callable
        attributes = vars(owner)
        if isinstance(owner, type):
            keys = tuple(attributes)
            name = f"{owner.__module__}.{owner.__qualname__}"
        else:  # itemgetter returns a tuple only for two keys or more
            keys = tuple(key for key, value in attributes.items() if callable(value))
            keys, name = (*keys, "__name__", "__spec__"), owner.__name__
        get = itemgetter(*keys)
        return cls(owner, name, keys, get(attributes), get)

    def changed(self) -> Iterator[tuple[str, object]]:
        """Yield the names whose value has changed, each with its earlier value."""
        now = vars(self.owner)
        if self._is_same(now):
            return
        for key, value in zip(self.keys, self.values, strict=True):
            if now.get(key, _MISSING) is not value and not _is_of_compiler(now.get(key)):
                yield key, value
        if isinstance(self.owner, type):
            for key in now.keys() - set(self.keys):  # an attribute may hide an inherited one
                if any(key in vars(base) for base in self.owner.__mro__[1:]):
                    yield key, _MISSING

    def _is_same(self, now: Mapping[str, object]) -> bool:
        if isinstance(self.owner, type) and len(now) != len(self.keys):
            return False
        try:
            return self.get(now) == self.values
        except KeyError:  # a name was deleted
            return False


class Trusted:
    """What measures and judges targets: functions and state, as they were before any import."""

    def __init__(self) -> None:
        owners: tuple[ModuleType | type, ...] = (*map(import_module, _MODULES), *_CLASSES)
        self._namespaces = [*map(_Namespace.of, owners)]
        self._rest: list[_Namespace] = []
        self._code: list[tuple[str, FunctionType, CodeType]] = []
        self._functions = [(known, known.function) for known in implementations.ALL]
        self._known: set[str] = set()
        self._by_import: dict[str, str] = {}
        self._state = _state()
        self.extend()

    def extend(self) -> None:
        """Add the harness's modules that were imported since; call before a target is imported."""
        new = sys.modules.keys() - self._known
        self._known |= new
        for name in sorted(name for name in new if name.partition(".")[0] in _OWN_PACKAGES):
            module = sys.modules[name]
            judges = name.startswith("harness.numerics")
            (self._namespaces if judges else self._rest).append(_Namespace.of(module))
            for value in vars(module).values():
                if getattr(value, "__module__", None) != name:
                    continue
                if isinstance(value, FunctionType):
                    self._code.append((f"{name}.{value.__qualname__}", value, value.__code__))
                elif isinstance(value, type):
                    self._rest.append(_Namespace.of(value))

    def imported(self, target: Target, find: Callable[[Target], Found]) -> Found:
        """Return what ``find`` returns for a target, which it may import.

        Raises:
            TamperingError: the target's import changed something, in this call or an earlier one.
        """
        self.extend()
        self.mark_state()
        found = find(target)
        name = str(target)
        if name not in self._by_import:
            try:
                self.check()
            except TamperingError as tampering:
                self._by_import[name] = f"its import {tampering}"
        if name in self._by_import:
            raise TamperingError(self._by_import[name])
        return found

    def mark_state(self) -> None:
        """Record the state of the process; :meth:`check` finds and restores changes of it."""
        self._state = _state()

    def check(self, *, quick: bool = False) -> None:
        """Restore everything that a target has changed, and name it.

        Args:
            quick: check only torch, Python, the functions that judge results and the state of the
                process; to check the rest of the harness takes ten times as long.

        Raises:
            TamperingError: something was changed, and is restored.
        """
        changes = [*self._put_back(self._namespaces), *self._put_back_state()]
        if not quick:
            changes += [*self._put_back(self._rest), *self._put_back_functions()]
        if not changes:
            return
        left = len(changes) - _NAMED
        more = f", and {count(left, 'more change')}" if left > 0 else ""
        raise TamperingError(
            f"{', '.join(changes[:_NAMED])}{more}: a target must not change what other code uses"
        )

    def _put_back(self, spaces: Sequence[_Namespace]) -> Iterator[str]:
        for space in spaces:
            for key, value in list(space.changed()):
                yield f"replaces {space.name}.{key}"
                if value is _MISSING:
                    delattr(space.owner, key)
                else:
                    setattr(space.owner, key, value)

    def _put_back_functions(self) -> Iterator[str]:
        for name, function, code in self._code:
            if function.__code__ is not code:
                yield f"replaces the code of {name}"
                function.__code__ = code
        for known, original in self._functions:
            if known.function is not original:
                yield f"replaces the function of implementations.{known.name}"
                object.__setattr__(known, "function", original)

    def _put_back_state(self) -> Iterator[str]:
        for part, now, value in zip(WATCHED, _state(), self._state, strict=True):
            if now != value:
                yield f"leaves {part.name} at {now}, where it was {value}"
                part.write(value)


def _state() -> tuple[Any, ...]:
    return tuple(part.read() for part in WATCHED)


def _is_of_compiler(value: object) -> bool:
    """Whether a value is the function by which torch.compile replaces one of torch."""
    code = getattr(value, "__code__", None)
    return code is not None and code.co_filename.startswith(_COMPILER)


_LIBRARIES = (sysconfig.get_path("stdlib"), "<frozen ")
_TORCH = os.path.dirname(torch.__file__)
_INSPECTORS = (inspect.__file__, traceback.__file__)
# mutants are part of the harness, but here they are targets, and their conditions are those of axes
_OWN_TARGETS = ("harness.mutants", "harness.cases.axes")
_FRAMES = "reads the frames of its callers"
_OF_PROCESSES = ("fork", "forkpty", "posix_spawn", "posix_spawnp")  # not all on every system
_C_FUNCTIONS: dict[object, str] = {
    open: "opens a file",
    os.open: "opens a file",
    torch.set_num_threads: "sets the number of threads",
    gc.get_objects: "searches the objects of the process",
    gc.get_referrers: "searches the objects of the process",
    sys._getframe: _FRAMES,
    sys._current_frames: _FRAMES,
    **{getattr(os, name): "starts a process" for name in _OF_PROCESSES if hasattr(os, name)},
}


class observed:  # noqa: N801 - used as a function
    """A context around one call of a target, which finds what it does besides computing.

    Nothing else of the harness may run in it. A profile function (``sys.setprofile``) sees each
    function that Python code calls. Calls that compiled code makes by itself are not seen.

    Raises:
        ContractViolationError: at its end, if the target did what no LayerNorm needs.
    """

    def __enter__(self) -> None:
        self._seen: dict[str, None] = {}
        if sys.getprofile() is None:  # otherwise this process is being profiled
            sys.setprofile(self._see)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if sys.getprofile() == self._see:
            sys.setprofile(None)
        if self._seen and kind is None:
            raise ContractViolationError(
                f"in a call it {' and '.join(self._seen)}, which no LayerNorm needs"
            )

    def _see(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "c_call":
            what = _C_FUNCTIONS.get(argument)
            if what is not None and (what is not _FRAMES or _reads_frames(frame)):
                self._seen[f"{what} ({getattr(argument, '__qualname__', argument)})"] = None
        elif event == "call" and _is_harness(frame) and not _may_call(frame.f_back):
            self._seen[f"calls {frame.f_globals['__name__']}.{frame.f_code.co_qualname}"] = None


def _is_harness(frame: FrameType) -> bool:
    """Whether a frame is of the harness, but not of one of its own mutants or their conditions."""
    name = str(frame.f_globals.get("__name__", ""))
    return name.startswith("harness.") and not name.startswith(_OWN_TARGETS)


def _may_call(caller: FrameType | None) -> bool:
    """Whether a frame may call the harness: one of the harness, or of Python's library."""
    return caller is None or _is_harness(caller) or _is_library(caller)


def _reads_frames(frame: FrameType | None) -> bool:
    """Whether a target reads frames, by itself or through an inspector; torch does by itself."""
    while frame is not None and frame.f_code.co_filename in _INSPECTORS:
        frame = frame.f_back
    is_torch = frame is not None and frame.f_code.co_filename.startswith(_TORCH)
    return frame is not None and not is_torch and not _is_library(frame)


def _is_library(frame: FrameType) -> bool:
    """Whether a frame is of Python's own library."""
    file = frame.f_code.co_filename
    # without a virtual environment, site-packages lies in the folder of the standard library
    return file.startswith(_LIBRARIES) and "-packages" not in file
