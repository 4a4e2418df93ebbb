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
import threading
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from enum import Enum
from functools import cached_property, partial
from importlib import import_module
from operator import attrgetter, is_, itemgetter
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, TypeVar

import torch

import implementations
from harness.records.text import count
from harness.run.call import ContractViolationError
from harness.run.state import WATCHED, process_state, settings_restored
from implementations import torch_private

# --- what measures and judges -----------------------------------------------------------------

_OWN_PACKAGES = ("harness", "implementations")
_MODULES = (
    *("torch", "torch.nn.functional", "torch.autograd", "torch.cuda", "torch.linalg"),
    *("torch.special", "numpy", "builtins", "gc", "math", "random", "statistics", "threading"),
    *("time", "timeit", "copy", "ctypes", "dataclasses", "functools", "io", "itertools", "json"),
    *("multiprocessing.connection", "multiprocessing.reduction", "operator", "os", "pickle"),
    *("secrets", "sys", "weakref"),
)
_CLASSES: tuple[type, ...] = (
    *torch.Tensor.__mro__[:-1],
    torch.nn.Module,
    torch.nn.LayerNorm,
    torch.autograd.Function,
    torch.cuda.Event,
    torch.cuda.Stream,
    random.Random,
)
# what makes a verdict; of others, the functions that the harness names
_JUDGING = ("harness.numerics", "harness.run.attempt", "harness.run.call")
_JUDGING_OF_OTHERS = ("torch", "torch.nn.functional", "builtins", "math")
# names that libraries set or replace, and that neither time nor judge a target; __getattr__ gives
# only names that a module has not, and a name that was deleted is a change
_SET_BY_LIBRARIES = {"excepthook", "unraisablehook", "displayhook", "save", "load", "__getattr__"}
# operators of inputs, and those that torch calls for what the modules above name
_OTHER_OPERATORS = {
    *("_local_scalar_dense", "_to_copy", "add", "bitwise_and", "bitwise_not", "bitwise_or"),
    *("copy_", "div", "empty", "eq", "ge", "gt", "index", "index_put_", "layer_norm", "le", "lt"),
    *("mul", "native_layer_norm", "native_layer_norm_backward", "ne", "neg", "normal_", "pow"),
    *("rand", "randint", "randn", "roll", "rsub", "select", "slice", "sub", "uniform_"),
}
_TURNS = 10  # calls in which all operators are looked at
_NAMED = 3  # changes that a message names; the others are only counted
_MISSING = object()
Target = TypeVar("Target")
Found = TypeVar("Found")
Change = tuple[str, Callable[[], object]]
"""What was changed, in words, and what puts it back."""
# the code by which torch.compile replaces functions of torch when it is first used
_COMPILER = tuple(str(Path(torch.__file__).parent / name) for name in ("_dynamo", "_compile.py"))
_REPLACED_BY_COMPILER = (
    *("torch.manual_seed", "torch.nn.modules.module.Module.__init__"),
    "torch.nn.modules.module.Module.__setstate__",
)
_WRAPPERS = (FunctionType, staticmethod, classmethod, property, cached_property, partial)


class TamperingError(ContractViolationError):
    """The target changed something that measures or judges targets; the message names it."""


class _Namespace:
    """The names of a module or class with their values, when it was read."""

    def __init__(self, owner: ModuleType | type, used: Collection[str] | None = None) -> None:
        """Read all names of a class or an own module, or the functions and classes of another.

        Of these, ``used`` are read if it is given.
        """
        now, keys, name = vars(owner), [*vars(owner)], owner.__name__
        self._is_whole = isinstance(owner, type) or _is_own(name)
        if isinstance(owner, type):
            name = f"{owner.__module__}.{owner.__qualname__}"
        elif not self._is_whole:
            keys = [key for key in keys if callable(now[key]) and key not in _SET_BY_LIBRARIES]
            keys = [*(key for key in keys if used is None or key in used), "__name__", "__spec__"]
        self._get = itemgetter(*keys)  # returns a tuple for two keys or more
        self._owner, self._now = owner, now
        self.name, self.keys, self.values = name, keys, self._get(now)

    def is_same(self) -> bool:
        """Whether nothing was changed."""
        if self._is_whole and len(self._now) != len(self.keys):
            return False
        try:  # by identity, since an object may say that it equals everything
            return all(map(is_, self._get(self._now), self.values))
        except KeyError:  # a name was deleted
            return False

    def changes(self) -> Iterator[Change]:
        """Yield what was changed."""
        for key, value in zip(self.keys, self.values, strict=True):
            found = self._now.get(key, _MISSING)
            if found is not value and not self._compiles(key, found):
                yield f"replaces {self.name}.{key}", partial(setattr, self._owner, key, value)
        for key in self._now.keys() - {*self.keys} if self._is_whole else ():
            if self._hides(key):
                yield f"replaces {self.name}.{key}", partial(delattr, self._owner, key)

    def _hides(self, key: str) -> bool:
        """Whether a new name hides one of a base class or, in a module, may hide a built-in one."""
        if isinstance(self._owner, type):
            return any(key in vars(base) for base in self._owner.__mro__[1:])
        is_module = sys.modules.get(f"{self.name}.{key}") is self._now[key]
        return not is_module and not key.startswith("__")  # torch.compile adds such names

    def _compiles(self, key: str, found: object) -> bool:
        """Whether torch.compile has replaced a function of torch."""
        file = str(getattr(getattr(found, "__code__", None), "co_filename", ""))
        return f"{self.name}.{key}" in _REPLACED_BY_COMPILER and file.startswith(_COMPILER)


class _Attribute:
    """One attribute of many objects, with its values when they were added."""

    def __init__(self, attribute: str, what: str) -> None:
        self._read = attrgetter(attribute)
        self._attribute, self._what = attribute, what
        self._owners: list[Any] = []
        self._values: list[object] = []
        self._names: list[str] = []

    def add(self, owner: object, name: str) -> None:
        with suppress(ValueError):  # an empty cell of a closure
            self._values.append(self._read(owner))
            self._owners.append(owner)
            self._names.append(name)

    def is_same(self) -> bool:
        """Whether nothing was changed."""
        try:
            return all(map(is_, map(self._read, self._owners), self._values))
        except ValueError:  # a cell was emptied
            return False

    def changes(self) -> Iterator[Change]:
        """Yield what was changed."""
        for owner, value, name in zip(self._owners, self._values, self._names, strict=True):
            found: object = _MISSING
            with suppress(ValueError):  # a cell was emptied
                found = self._read(owner)
            if found is not value:
                put_back = partial(object.__setattr__, owner, self._attribute, value)
                yield f"replaces {self._what} of {name}", put_back


class _Watched:
    """Modules and classes, with what their functions do, as they were when they were added."""

    def __init__(self) -> None:
        self._code = _Attribute("__code__", "the code")
        self._defaults = _Attribute("__defaults__", "the defaults")
        self._keyword_defaults = _Attribute("__kwdefaults__", "the defaults")
        self._cells = _Attribute("cell_contents", "the closure")
        self._members = _Attribute("_value_", "the value")
        self._contents = _Contents()
        self._parts: list[_Namespace | _Attribute | _Contents] = [
            *(self._code, self._defaults, self._keyword_defaults),
            *(self._cells, self._members, self._contents),
        ]
        self._functions: set[FunctionType] = set()

    def add(self, owners: Iterable[ModuleType | type], used: Collection[str] | None = None) -> None:
        """Add modules and classes; of modules of others, the names in use, or all."""
        for space in (_Namespace(owner, used) for owner in owners):
            self._parts.append(space)
            for key, value in zip(space.keys, space.values, strict=True):
                name = f"{space.name}.{key}"
                self.add_function(value, name)
                is_container = isinstance(value, dict | list | set) and not key.startswith("__")
                if is_container and space.name.startswith("harness."):
                    self._contents.add(value, f"the contents of {name}")
                elif isinstance(value, Enum):
                    self._members.add(value, name)

    def add_function(self, value: object, name: str) -> None:
        """Add a function, or those that a method, a property or a decorated function calls."""
        if isinstance(value, _WRAPPERS):
            for inner in ("__func__", "fget", "func", "__wrapped__"):
                self.add_function(getattr(value, inner, None), name)
        if not isinstance(value, FunctionType) or value in self._functions:
            return
        self._functions.add(value)
        self._code.add(value, name)
        if value.__defaults__ is not None:  # without any, others are not used
            self._defaults.add(value, name)
        if value.__kwdefaults__ is not None:
            self._keyword_defaults.add(value, name)
            self._contents.add(value.__kwdefaults__, f"the defaults of {name}")
        for cell in value.__closure__ or ():
            self._cells.add(cell, name)

    def changes(self) -> Iterator[Change]:
        """Yield what was changed."""
        for part in self._parts:
            if not part.is_same():
                yield from part.changes()

    def names_in_code(self) -> set[str]:
        """Return the names that the functions use."""
        return {name for function in self._functions for name in _names_in(function.__code__)}


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


class _Contents:
    """Dictionaries, lists and sets, with what they held when they were added."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, str, Any, list[object]]] = []

    def add(self, owner: Any, name: str) -> None:
        self._rows.append((owner, name, owner.copy(), _flat(owner)))

    def is_same(self) -> bool:
        """Whether nothing was changed."""
        return next(self.changes(), None) is None

    def changes(self) -> Iterator[Change]:
        """Yield what was changed."""
        for owner, name, before, then in self._rows:
            now = _flat(owner)
            if len(now) != len(then) or not all(map(is_, now, then)):
                yield f"changes {name}", partial(_fill, owner, before)


def _flat(container: Any) -> list[object]:
    """Return what a container holds: of a dictionary its keys, then its values."""
    return [*container, *(container.values() if isinstance(container, dict) else ())]


def _fill(owner: Any, before: Any) -> None:
    """Let a container hold again what a copy of it holds."""
    owner.clear()
    owner.extend(before) if isinstance(owner, list) else owner.update(before)


class _Operators:
    """The kernels that torch's dispatcher calls for operators that the harness uses."""

    def __init__(self) -> None:
        self._kernels: dict[str, str] = {}
        self._by_python: set[str] = set()
        self._count = self._turn = 0

    def add(self, names: Collection[str]) -> None:
        """Add the operators of these names, which have no namespace and no overload."""
        self._by_python, self._count = _of_aten(), len(torch_private.PYTHON_KERNELS)
        for operator in torch_private.operator_names():
            name, _, overload = operator.removeprefix("aten::").partition(".")
            if name in names and "out" not in overload and operator not in self._kernels:
                self._kernels[operator] = torch_private.kernels_of(operator)

    def changes(self, some: Iterable[str] | None) -> Iterator[Change]:
        """Yield what was changed.

        Args:
            some: operators to look at where torch.library was not used; None for all.
        """
        if len(torch_private.PYTHON_KERNELS) != self._count:
            some, self._count = None, len(torch_private.PYTHON_KERNELS)
        names = self._kernels if some is None else some
        changed = [own for own in names if torch_private.kernels_of(own) != self._kernels[own]]
        for name in changed or (_of_aten() - self._by_python if some is None else ()):
            put_back = partial(torch_private.remove_kernels, self._by_python)
            yield f"replaces a kernel of {name}", put_back

    def in_turn(self) -> list[str]:
        """Return the operators of the reference, and a part of the others: another in each call."""
        self._turn = (self._turn + 1) % _TURNS
        others = [*self._kernels][self._turn :: _TURNS]
        return [name for name in self._kernels if "layer_norm" in name] + others


def _of_aten() -> set[str]:
    """Return the kernels that Python registered for torch's operators, or for all operators."""
    return {name for name in torch_private.PYTHON_KERNELS if name.startswith(("aten/", "_/"))}


class Trusted:
    """What measures and judges targets: functions and state, as they were before any import."""

    def __init__(self) -> None:
        self._of_others, self._own, self._judging = _Watched(), _Watched(), _Watched()
        self._of_others.add([*map(import_module, _MODULES), *_CLASSES])
        self._targets = _Attribute("function", "the function")
        for known in implementations.ALL:
            self._targets.add(known, f"implementations.{known.name}")
            self._own.add_function(known.function, f"implementations.{known.name}")
        torch.vmap(torch.neg)(torch.zeros(1))  # its first call registers kernels
        self._operators = _Operators()
        self._known: set[str] = set()
        self._by_import: dict[str, str] = {}
        self.mark_state()
        self.extend()

    def extend(self) -> None:
        """Add the harness's modules that were imported since; call before a target is imported."""
        added = [name for name in sorted(sys.modules.keys() - self._known) if _is_own(name)]
        self._known |= sys.modules.keys()
        if not added:
            return
        self._own.add(_owners_in(added))
        self._judging = _Watched()  # again, since more names may be used
        judging = [name for name in sorted(self._known) if name.startswith(_JUDGING)]
        self._judging.add(_owners_in(judging))
        used = self._judging.names_in_code() | _OTHER_OPERATORS
        self._operators.add(used)
        self._judging.add([torch.Tensor, *map(import_module, _JUDGING_OF_OTHERS)], used)

    def imported(self, target: Target, find: Callable[[Target], Found]) -> Found:
        """Return what ``find`` returns for a target, which it may import.

        Settings of the process that the import changes are put back.

        Raises:
            TamperingError: the target's import changed something, in this call or an earlier one.
        """
        self.extend()
        self.mark_state()
        with settings_restored():
            found = find(target)
        name = str(target)
        if name not in self._by_import:
            self._by_import[name] = ""
            try:
                self.check()
            except TamperingError as tampering:
                self._by_import[name] = f"its import {tampering}"
        if self._by_import[name]:
            raise TamperingError(self._by_import[name])
        return found

    def mark_state(self) -> None:
        """Record the state of the process; :meth:`check` finds and restores changes of it."""
        self._state = process_state(WATCHED)

    def check(self, *, quick: bool = False, kernels: bool = True) -> None:
        """Restore everything that a target has changed, and name it.

        Args:
            quick: check only what judges results and the state of the process; to check the rest
                takes twenty times as long.
            kernels: check the dispatcher's kernels of all operators, which takes longer than all
                else; otherwise of some in turn, and with ``quick`` of none. Where torch.library was
                used, all are checked in any case.

        Raises:
            TamperingError: something was changed, and is restored.
        """
        parts = (self._judging,) if quick else (self._of_others, self._own, self._targets)
        changes = [change for part in parts for change in part.changes()]
        some = () if quick else None if kernels else self._operators.in_turn()
        changes += self._operators.changes(some)
        state = process_state(WATCHED)
        for part in WATCHED:
            now, then = state[part.name], self._state[part.name]
            if now != then:
                left = f"leaves {part.name} at {now}, where it was {then}"
                changes.append((left, partial(part.restore, then)))
        if not changes:
            return
        for _, put_back in changes:
            put_back()
        texts = [*dict.fromkeys(text for text, _ in changes)]
        left_out = len(texts) - _NAMED
        more = f", and {count(left_out, 'more change')}" if left_out > 0 else ""
        raise TamperingError(
            f"{', '.join(texts[:_NAMED])}{more}: a target must not change what other code uses"
        )


def _is_own(name: str) -> bool:
    """Whether a module, or what has its name before a dot, is of this project."""
    return name.partition(".")[0] in _OWN_PACKAGES


def _owners_in(names: Iterable[str]) -> list[ModuleType | type]:
    """Return modules, each followed by the classes that it defines."""
    owners: list[ModuleType | type] = []
    for module in map(sys.modules.__getitem__, names):
        values = [*vars(module).values()]
        classes = [value for value in values if isinstance(value, type)]
        owners += [module, *(own for own in classes if own.__module__ == module.__name__)]
    return owners


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
    function that Python code calls, here and in new threads; autograd calls a backward here, which
    on a GPU has threads of its own. Calls that compiled code makes by itself are not seen.

    Raises:
        ContractViolationError: at its end, if the target did what no LayerNorm needs.
    """

    def __enter__(self) -> None:
        self._seen: dict[str, None] = {}
        self._in_this_thread = torch.autograd.set_multithreading_enabled(False)
        if sys.getprofile() is None:  # otherwise this process is being profiled
            threading.setprofile(self._see)
            sys.setprofile(self._see)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if sys.getprofile() == self._see:
            sys.setprofile(None)
            threading.setprofile(None)
        self._in_this_thread.__exit__(kind, *_)
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
