"""The state of the process that a call could change: modes, defaults, generators."""

from __future__ import annotations

import gc
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

__all__ = [
    "process_state",
    "process_state_restored",
    "set_caller_state",
    "set_other_state",
    "set_usual_state",
]

_SUBNORMAL = 1e-40  # in float32


@dataclass(frozen=True, slots=True)
class _State:
    """One part of the process's state."""

    name: str
    read: Callable[[], Any]
    """Returns a value that can be compared."""
    write: Callable[[Any], object]
    """Sets a value that was read."""
    is_kept: bool = False
    """Whether :func:`set_usual_state` leaves it. Other parts get the value that they had at import,
    because an earlier call of the target may have changed them."""


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


def _determinism() -> tuple[bool, bool]:
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled(), warns


def _set_determinism(wanted: tuple[bool, bool]) -> None:
    """Set it only if it differs: the call imports torch's compiler, which takes two seconds."""
    if _determinism() != wanted:
        torch.use_deterministic_algorithms(wanted[0], warn_only=wanted[1])


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


def _attribute(name: str, owner: Any, attribute: str) -> _State:
    return _State(name, partial(getattr, owner, attribute), partial(setattr, owner, attribute))


_STATES = (
    _State("torch's random generator", _generator_state, _set_generator_state, is_kept=True),
    _State("Python's random generator", random.getstate, random.setstate, is_kept=True),
    _State("NumPy's random generator", _numpy_generator_state, np.random.set_state, is_kept=True),
    _State("the gradient recording", torch.is_grad_enabled, torch.set_grad_enabled, is_kept=True),
    _State("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
    _State("the default device", torch.get_default_device, _set_default_device),
    _State("the number of threads", torch.get_num_threads, torch.set_num_threads),
    _State("the flushing of subnormal numbers", _flushes_subnormals, torch.set_flush_denormal),
    _State("the deterministic mode", _determinism, _set_determinism),
    _State("the precision of float32 matrix products", _precision, _set_precision),
    _attribute("TF32 in convolutions", torch.backends.cudnn, "allow_tf32"),
    _attribute("cuDNN's benchmark mode", torch.backends.cudnn, "benchmark"),
    _attribute("cuDNN's deterministic mode", torch.backends.cudnn, "deterministic"),
    _State("autocast on the CPU", partial(_autocast, "cpu"), partial(_set_autocast, "cpu")),
    _State("autocast on CUDA", partial(_autocast, "cuda"), partial(_set_autocast, "cuda")),
    _State("the anomaly mode", torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    _State("the filters of warnings", lambda: list(warnings.filters), _set_filters),
    _State("NumPy's error state", np.geterr, lambda wanted: np.seterr(**wanted)),
    _State("the environment variables", lambda: dict(os.environ), _set_environment),
    _State("Python's search path", lambda: sys.path, _set_search_path, is_kept=True),
    _State("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    _State(
        "Python's cyclic collector",
        gc.isenabled,
        lambda wanted: gc.enable() if wanted else gc.disable(),
    ),
)


@contextmanager
def process_state_restored() -> Iterator[None]:
    """Restore the state of the process at the end of the block."""
    before = process_state()
    try:
        yield
    finally:
        _restore(before, all_of_it=True)


def _restore(wanted: dict[str, Any], *, all_of_it: bool = False) -> None:
    now = process_state()
    for state in _STATES:
        if (all_of_it or not state.is_kept) and now[state.name] != wanted[state.name]:
            state.write(wanted[state.name])


def process_state() -> dict[str, Any]:
    """Return each part of the state by its name, as values that later changes leave alone."""
    values = {state.name: state.read() for state in _STATES}
    return {name: [*value] if isinstance(value, list) else value for name, value in values.items()}


_AT_IMPORT = process_state()


def set_usual_state() -> None:
    """Set what the process began with, and advance the random generators."""
    _restore(_AT_IMPORT)
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
