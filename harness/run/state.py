"""The state of the process: its parts, how each is read, and how it is put back.

A call of a target may change none of it. Some parts are only put back, because libraries set them.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import random
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from implementations.torch_private import count_modes, leave_modes

_SUBNORMAL = 1e-40  # in float32
# listed once: to list them takes longer than to read the handlers, which each case does four times
_SIGNALS = signal.valid_signals()


@dataclass(frozen=True, slots=True)
class StatePart:
    """One part of the state of the process."""

    name: str
    read: Callable[[], Any]
    """Returns a value that can be compared."""
    write: Callable[[Any], object]
    """Sets a value that was read."""

    def restore(self, value: Any) -> None:
        """Set a value that was read, where the system still allows it."""
        with suppress(OSError, TypeError, ValueError):  # such as a folder that is gone
            self.write(value)


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


def _level_of_logging() -> tuple[int, int]:
    return logging.root.manager.disable, logging.root.level


def _set_level_of_logging(wanted: tuple[int, int]) -> None:
    logging.disable(wanted[0])
    logging.root.setLevel(wanted[1])


def _error_state() -> tuple[Any, ...]:
    return np.geterr(), np.geterrcall()


def _set_error_state(wanted: tuple[Any, ...]) -> None:
    np.seterr(**wanted[0])
    np.seterrcall(wanted[1])


def _signal_handlers() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in _SIGNALS}


def _set_signal_handlers(wanted: dict[int, Any]) -> None:
    for number, handler in wanted.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def _working_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was deleted
        return None


def _attribute(name: str, owner: Any, attribute: str) -> StatePart:
    read, write = partial(getattr, owner, attribute), partial(setattr, owner, attribute)
    return StatePart(name, read, write)


def _of_system() -> Iterator[StatePart]:
    """Yield the parts that not every system has."""
    if hasattr(os, "sched_getaffinity"):
        read, write = partial(os.sched_getaffinity, 0), partial(os.sched_setaffinity, 0)
        yield StatePart("the cores that may run it", read, write)
    library: Any = ctypes.CDLL(None) if os.name == "posix" else None
    if hasattr(library, "fegetround"):
        yield StatePart("the rounding mode", library.fegetround, library.fesetround)


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
# imports of libraries set these, too: what an import has set is put back without a word
_WATCHED_IN_CALLS = (
    *_of_system(),
    StatePart("the interval of thread switches", sys.getswitchinterval, sys.setswitchinterval),
    StatePart(
        "the thresholds of the garbage collector",
        gc.get_threshold,
        lambda wanted: gc.set_threshold(*wanted),
    ),
    _attribute("oneDNN", torch.backends.mkldnn, "enabled"),
    _attribute("oneDNN's deterministic mode", torch.backends.mkldnn, "deterministic"),
)
_RESTORED = (
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
    _attribute("cuDNN", torch.backends.cudnn, "enabled"),
    _attribute("cuDNN's benchmark mode", torch.backends.cudnn, "benchmark"),
    _attribute("cuDNN's deterministic mode", torch.backends.cudnn, "deterministic"),
    StatePart("autocast on the CPU", partial(_autocast, "cpu"), partial(_set_autocast, "cpu")),
    StatePart("autocast on CUDA", partial(_autocast, "cuda"), partial(_set_autocast, "cuda")),
    StatePart("the anomaly mode", torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    StatePart(
        "the threads of autograd",
        torch.autograd.is_multithreading_enabled,
        torch.autograd.set_multithreading_enabled,
    ),
    StatePart("the level of logging", _level_of_logging, _set_level_of_logging),
    StatePart("NumPy's error state", _error_state, _set_error_state),
    StatePart("the working directory", _working_directory, os.chdir),
    StatePart("the handlers of signals", _signal_handlers, _set_signal_handlers),
)
# imports may set these for good
_SET_BY_IMPORTS = (
    StatePart("the filters of warnings", lambda: list(warnings.filters), _set_filters),
    StatePart("the environment variables", lambda: dict(os.environ), _set_environment),
    StatePart("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
)
_KEPT = (
    StatePart("torch's random generator", _generator_state, _set_generator_state),
    StatePart("Python's random generator", random.getstate, random.setstate),
    StatePart("NumPy's random generator", _numpy_generator_state, np.random.set_state),
    StatePart("the gradient recording", torch.is_grad_enabled, torch.set_grad_enabled),
    StatePart("Python's search path", lambda: sys.path, _set_search_path),
)
WATCHED = (*_WATCHED_AND_RESET, *_WATCHED_AND_KEPT, *_WATCHED_IN_CALLS)
"""What is read after each call of a target; to read all of the state would take long."""
_PUT_BACK = (*_WATCHED_IN_CALLS, *_RESTORED)
"""What is put back after an import, and after what was done with a target."""
_USUAL = (*_WATCHED_AND_RESET, *_PUT_BACK, *_SET_BY_IMPORTS)
"""What :func:`set_usual_state` sets to the value that it had at import, because an earlier call of
the target may have changed it."""
STATE = (*_USUAL, *_WATCHED_AND_KEPT, *_KEPT)
"""All of it."""


@contextmanager
def process_state_restored(parts: Sequence[StatePart] = STATE) -> Iterator[None]:
    """Restore the state of the process, or parts of it, at the end of the block."""
    before = process_state(parts)
    try:
        yield
    finally:
        _restore(before, parts)


def settings_restored() -> AbstractContextManager[None]:
    """Restore what neither an import nor a call of a target may set for others."""
    return process_state_restored(_PUT_BACK)


def _restore(wanted: dict[str, Any], parts: Sequence[StatePart]) -> None:
    now = process_state(parts)
    for part in parts:
        if now[part.name] != wanted[part.name]:
            part.restore(wanted[part.name])


def process_state(parts: Sequence[StatePart] = STATE) -> dict[str, Any]:
    """Return each part of the state by its name, as values that later changes leave alone."""
    values = {part.name: part.read() for part in parts}
    return {name: [*value] if isinstance(value, list) else value for name, value in values.items()}


_AT_IMPORT = process_state()


def set_usual_state() -> None:
    """Set what the process began with, and advance the random generators."""
    _restore(_AT_IMPORT, _USUAL)
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


def set_caller_state(default: torch.dtype) -> None:
    """Set modes that callers choose and that must change no result; leave the others."""
    torch.set_default_dtype(default)
    torch.set_deterministic_debug_mode(1)
    torch.autograd.set_detect_anomaly(True)
