"""Private names of torch: the purpose of each, its versions, and what happens without it.

PyTorch gives no guarantee for names that begin with an underscore; no other module here uses one.
:data:`NAMES` is the table. Each name is looked up once, on import. If the installed torch lacks a
name, the feature that needs it is switched off or slower.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "NAMES",
    "OPERATOR_LIBRARIES",
    "PrivateName",
    "can_count_instructions",
    "count_modes",
    "end_allocation_to_pool",
    "function_of",
    "keep_backward_buffers",
    "lacks",
    "leave_modes",
    "negated_view",
    "profiling_of_all_threads",
    "release_pool",
    "spin",
    "toggle_counting",
    "toggle_counting_and_dump",
]


@dataclass(frozen=True, slots=True)
class PrivateName:
    """One private name of torch."""

    path: str
    """``module:attribute``, as ``pkgutil.resolve_name`` takes it."""
    since: str = "2.6"
    """First version that has it, or 2.6, the oldest version that this project supports."""
    until: str | None = None
    """First version that no longer has it."""
    of_cuda: bool = False
    """Whether a torch built without CUDA may lack it."""


# each comment says what the names below it are for, and what happens if torch lacks them
NAMES = (
    # count and leave the function and dispatch modes that are on;
    # a mode that a target leaves on stays on, unnoticed
    PrivateName("torch._C:_len_torch_function_stack"),
    PrivateName("torch._C:_len_torch_dispatch_stack"),
    PrivateName("torch._C:_pop_torch_function_stack"),
    PrivateName("torch._C:_pop_torch_dispatch_stack"),
    # finds the function of an operator, which is called without a Python frame;
    # cpu_recentred is called through torch.ops, which takes 0.3 us longer
    PrivateName("torch._C:_get_operation_overload"),
    # a view with the negative bit: the layout 'negated', and the memory behind such a view;
    # a contiguous negated copy is used instead of the view
    PrivateName("torch:_neg_view"),
    # makes a compiled backward keep its buffers, so that it can be timed repeatedly;
    # a compiled backward that frees its buffers cannot be timed alone: torch raises an error
    PrivateName("torch._functorch.config:donated_buffer"),
    # finds an operator of the head revision that the base revision registers again;
    # such an operator is not refused
    PrivateName("torch._library.custom_ops:OPDEF_TO_LIB"),
    # has the profiler record the operators of all threads (from 2.7 on);
    # operators on other Python threads are not detected when memory is counted
    PrivateName("torch.profiler:_ExperimentalConfig"),
    # keeps a GPU busy while calls are issued;
    # nothing is timed on CUDA, and the device reports the reason
    PrivateName("torch.cuda:_sleep"),
    # leave the memory pool of a failed capture, by its name from 2.8 on and the name before that;
    # without both, the pool is not left
    PrivateName("torch._C:_cuda_endAllocateToPool", since="2.8", of_cuda=True),
    PrivateName("torch._C:_cuda_endAllocateCurrentStreamToPool", until="2.8", of_cuda=True),
    # frees the memory pool of a failed capture; the pool is not freed
    PrivateName("torch._C:_cuda_releasePool", of_cuda=True),
    # whether torch can control callgrind, and its switch: on, and off with a dump;
    # no instructions are counted, and the reason is reported
    PrivateName("torch._C:_valgrind_supported_platform"),
    PrivateName("torch._C:_valgrind_toggle"),
    PrivateName("torch._C:_valgrind_toggle_and_dump_stats"),
)


def _find(path: str, otherwise: Any) -> Any:
    """Return the object at ``path`` in the installed torch, or ``otherwise``."""
    try:
        return resolve_name(path)
    except (AttributeError, ImportError):
        return otherwise


_ABSENT = object()


def lacks(*paths: str) -> str | None:
    """Return a message that lists the names missing in the installed torch; None if it has all."""
    absent = [path.replace(":", ".") for path in paths if _find(path, _ABSENT) is _ABSENT]
    return f"torch {torch.__version__} has no {', '.join(absent)}" if absent else None


# --- modes that a target leaves on ---------------------------------------------------------------


def _no_modes() -> int:
    return 0


_function_modes: Callable[[], int] = _find("torch._C:_len_torch_function_stack", _no_modes)
_dispatch_modes: Callable[[], int] = _find("torch._C:_len_torch_dispatch_stack", _no_modes)
_pop_function_mode: Callable[[], object] = _find("torch._C:_pop_torch_function_stack", _no_modes)
_pop_dispatch_mode: Callable[[object], object] = _find("torch._C:_pop_torch_dispatch_stack", id)


def count_modes() -> int:
    """Return how many modes intercept calls of torch, such as that of torch.set_default_device."""
    return _function_modes() + _dispatch_modes()


def leave_modes(count: int) -> None:
    """Leave the modes that were entered last, until ``count`` are left."""
    for _ in range(count_modes() - count):
        if _function_modes():
            _pop_function_mode()
        else:
            _pop_dispatch_mode(None)


# --- tensors -------------------------------------------------------------------------------------

negated_view: Callable[[Tensor], Tensor] = _find("torch:_neg_view", torch.neg)
"""Return ``-x`` over the memory of ``x``, under the negative bit."""


# --- torch.compile and operators -----------------------------------------------------------------


def keep_backward_buffers() -> None:
    """Make backwards that are compiled from now on keep their buffers for another run."""
    if lacks("torch._functorch.config:donated_buffer") is None:
        torch._functorch.config.donated_buffer = False


_operation: Callable[[str, str], tuple[Any, ...] | None] = _find(
    "torch._C:_get_operation_overload", lambda *_: None
)


def function_of(operator: torch._ops.OpOverload) -> Callable[..., Any]:
    """Return what an operator calls; torch.compile cannot trace it. Without the name: itself."""
    found = _operation(operator.name().partition(".")[0], "")
    return found[0] if found else operator


OPERATOR_LIBRARIES: Mapping[str, object] = _find("torch._library.custom_ops:OPDEF_TO_LIB", {})
"""From operators registered by ``torch.library.custom_op`` to the library that registered them."""


# --- CUDA ----------------------------------------------------------------------------------------


def _do_nothing(*_: object) -> None: ...


spin: Callable[[int], object] = _find("torch.cuda:_sleep", _do_nothing)
"""Keep the current stream busy for this many cycles; does nothing if torch lacks it."""

end_allocation_to_pool: Callable[[int, tuple[int, int]], object] = _find(
    "torch._C:_cuda_endAllocateToPool",
    _find("torch._C:_cuda_endAllocateCurrentStreamToPool", _do_nothing),
)
release_pool: Callable[[int, tuple[int, int]], object] = _find(
    "torch._C:_cuda_releasePool", _do_nothing
)


# --- profilers -----------------------------------------------------------------------------------


def _cannot() -> bool:
    return False


_profiler_config: Callable[..., object] | None = _find("torch.profiler:_ExperimentalConfig", None)


def profiling_of_all_threads() -> dict[str, Any]:
    """Return the arguments of a profiler that records all threads; none if torch cannot."""
    if _profiler_config is None:
        return {}
    try:
        return {"experimental_config": _profiler_config(profile_all_threads=True)}
    except TypeError:  # up to torch 2.6
        return {}


can_count_instructions: Callable[[], bool] = (
    _cannot
    if lacks("torch._C:_valgrind_toggle", "torch._C:_valgrind_toggle_and_dump_stats")
    else _find("torch._C:_valgrind_supported_platform", _cannot)
)
"""Whether this torch can switch the counting of callgrind on and off."""

toggle_counting: Callable[[], object] = _find("torch._C:_valgrind_toggle", _do_nothing)
toggle_counting_and_dump: Callable[[], object] = _find(
    "torch._C:_valgrind_toggle_and_dump_stats", _do_nothing
)
