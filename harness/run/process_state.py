"""The state of the process that a call could change: modes, defaults, generators."""

from __future__ import annotations

import gc
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

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


_DEBUG_MODES = {(False, False): 0, (False, True): 0, (True, True): 1, (True, False): 2}


def _determinism() -> tuple[bool, bool]:
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled(), warns


def _set_determinism(wanted: tuple[bool, bool]) -> None:
    """Set it by its debug mode: ``use_deterministic_algorithms`` imports torch's compiler."""
    if wanted != _determinism():
        torch.set_deterministic_debug_mode(_DEBUG_MODES[wanted])


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
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    os.environ.update(wanted)


def _set_default_device(wanted: torch.device) -> None:
    """Set it only if it differs: to have set one slows every call of torch."""
    if torch.get_default_device() != wanted:
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
    StatePart("the deterministic mode", _determinism, _set_determinism),
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
    """Set a state that differs from what a target is likely to set; an equal one would hide it."""
    set_usual_state()
    torch.set_num_threads(3)
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.benchmark = True
    np.seterr(all="call")


def set_caller_state() -> None:
    """Set modes that callers choose and that must change no result; leave the others."""
    torch.set_default_dtype(torch.float16)
    _set_determinism((True, True))
