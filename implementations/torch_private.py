"""Private names of torch: what each is for, since when it exists, and what happens without it.

PyTorch promises nothing about a name that begins with an underscore. No other module here uses one.
:data:`NAMES` is the table. Each name is looked up once, on import, so that a call pays for no
lookup. If the installed torch lacks a name, the feature that needs it is off or takes a slower way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

__all__ = [
    "EXTENSION_FILE",
    "NAMES",
    "OPERATOR_LIBRARIES",
    "PrivateName",
    "can_count_instructions",
    "end_allocation_to_pool",
    "is_seen",
    "is_zero_tensor",
    "keep_backward_buffers",
    "lacks",
    "negated_view",
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
    purpose: str
    without: str
    """What happens if the installed torch lacks it."""
    since: str = "2.6"
    """First version that has it; 2.6, the oldest that this project supports, stands for earlier
    versions too."""
    until: str | None = None
    """First version that no longer has it."""
    of_cuda: bool = False
    """Whether a torch that is built without CUDA may lack it."""


_SEEN = "see is_seen"
_UNSEEN = "every call of the C and C++ kernels goes through the dispatcher, which is slower"

NAMES = (
    PrivateName("torch._C:_len_torch_dispatch_stack", f"active modes; {_SEEN}", _UNSEEN),
    PrivateName(
        "torch._C:_functorch.peek_interpreter_stack", f"torch.func transforms; {_SEEN}", _UNSEEN
    ),
    PrivateName("torch._C:_get_tracing_state", f"torch.jit.trace; {_SEEN}", _UNSEEN),
    PrivateName("torch._C:_autograd._profiler_enabled", f"the profiler; {_SEEN}", _UNSEEN),
    PrivateName(
        "torch.autograd.forward_ad:_current_level", f"forward-mode autograd; {_SEEN}", _UNSEEN
    ),
    PrivateName(
        "torch:Tensor._is_zerotensor",
        "finds a gradient of zeros that has no memory",
        "c_recentred copies every gradient of y before it reads it",
    ),
    PrivateName(
        "torch._C:__file__",
        "the library whose OpenMP threads the C kernels share",
        "the C kernels run in one thread",
    ),
    PrivateName(
        "torch:_neg_view",
        "a view with the negative bit: the layout 'negated', and the memory behind such a view",
        "a negated copy stands for the view: the values stay the same, the layout is contiguous",
    ),
    PrivateName(
        "torch._functorch.config:donated_buffer",
        "has a compiled backward keep its buffers, so that it can be timed repeatedly",
        "a compiled backward is left as it is; if it gives its buffers away, timing it alone ends "
        "in torch's own message",
    ),
    PrivateName(
        "torch._library.custom_ops:OPDEF_TO_LIB",
        "finds an operator that a base revision registers over one of the head revision",
        "such an operator is not refused",
    ),
    PrivateName(
        "torch.cuda:_sleep",
        "keeps a GPU at work while calls are issued",
        "nothing is timed on CUDA; the device says why",
    ),
    PrivateName(
        "torch._C:_cuda_endAllocateToPool",
        "leaves the memory pool of a capture that failed",
        "older versions have another name for it, below; without either the pool is not left",
        since="2.8",
        of_cuda=True,
    ),
    PrivateName(
        "torch._C:_cuda_endAllocateCurrentStreamToPool",
        "the name of _cuda_endAllocateToPool before 2.8",
        "not used where the new name exists",
        until="2.8",
        of_cuda=True,
    ),
    PrivateName(
        "torch._C:_cuda_releasePool",
        "frees the memory pool of a capture that failed",
        "the pool is not freed",
        of_cuda=True,
    ),
    PrivateName(
        "torch._C:_valgrind_supported_platform",
        "whether this torch can drive callgrind",
        "no instructions are counted; the reason says so",
    ),
    PrivateName(
        "torch._C:_valgrind_toggle",
        "switches the counting of callgrind on",
        "no instructions are counted; the reason says so",
    ),
    PrivateName(
        "torch._C:_valgrind_toggle_and_dump_stats",
        "switches the counting of callgrind off and has it write a dump",
        "no instructions are counted; the reason says so",
    ),
)


def _find(path: str, otherwise: Any) -> Any:
    """Return what ``path`` names in the installed torch, or ``otherwise``."""
    try:
        return resolve_name(path)
    except (AttributeError, ImportError):
        return otherwise


_ABSENT = object()


def lacks(*paths: str) -> str | None:
    """Return a sentence about the names that the installed torch lacks, or None if it has all."""
    absent = [path.replace(":", ".") for path in paths if _find(path, _ABSENT) is _ABSENT]
    return f"torch {torch.__version__} has no {', '.join(absent)}" if absent else None


# --- is a call of a kernel seen by anything else -------------------------------------------------
# A call finds neither Python's code nor torch's in the nearest cache, which the one before has
# filled with rows: each function more that it goes through takes as long as a row.

_is_compiling = torch.compiler.is_dynamo_compiling
_modes: Callable[[], int] = _find("torch._C:_len_torch_dispatch_stack", None)
_transform: Callable[[], object] = _find("torch._C:_functorch.peek_interpreter_stack", None)
_tracing: Callable[[], object] = _find("torch._C:_get_tracing_state", None)
_is_profiled: Callable[[], bool] = _find("torch._C:_autograd._profiler_enabled", None)
_PLAIN = frozenset({Tensor, torch.nn.Parameter})


def _is_seen(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether something other than a kernel is to see a call with these tensors.

    That may be torch.compile, a mode (of fake tensors, of tracing), a transform of torch.func, a
    tracer, a profiler, forward-mode differentiation, a subclass of tensor, or a view that negates.
    """
    return (
        _is_compiling()
        or _modes() > 0
        or _transform() is not None
        or _tracing() is not None
        or _is_profiled()
        or forward_ad._current_level >= 0
        # written out: three calls of a function would take as long as all of this
        or not (type(x) in _PLAIN and x.is_cpu and not x.is_neg())
        or not (
            weight is None or (type(weight) in _PLAIN and weight.is_cpu and not weight.is_neg())
        )
        or not (bias is None or (type(bias) in _PLAIN and bias.is_cpu and not bias.is_neg()))
    )


def _may_be_seen(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether a call is seen, where this torch does not tell: assume that it is."""
    return True


is_seen = (
    _is_seen
    if lacks(*(name.path for name in NAMES if name.without is _UNSEEN)) is None
    else _may_be_seen
)


# --- tensors -------------------------------------------------------------------------------------

is_zero_tensor: Callable[[Tensor], bool] = _find("torch:Tensor._is_zerotensor", lambda _: True)
"""Whether a tensor is all zeros and has no memory; True where this torch does not tell."""

negated_view: Callable[[Tensor], Tensor] = _find("torch:_neg_view", torch.neg)
"""Return ``-x`` over the memory of ``x``, under the negative bit."""

EXTENSION_FILE: str | None = _find("torch._C:__file__", None)
"""The library of torch that Python loads."""


# --- torch.compile and operators -----------------------------------------------------------------


def keep_backward_buffers() -> None:
    """Have what is compiled from now on keep the buffers of its backward for another one."""
    if lacks("torch._functorch.config:donated_buffer") is None:
        torch._functorch.config.donated_buffer = False


OPERATOR_LIBRARIES: Mapping[str, object] = _find("torch._library.custom_ops:OPDEF_TO_LIB", {})
"""For each operator registered by ``torch.library.custom_op`` the library that registered it."""


# --- CUDA ----------------------------------------------------------------------------------------


def _do_nothing(*_: object) -> None: ...


spin: Callable[[int], object] = _find("torch.cuda:_sleep", _do_nothing)
"""Keep the current stream at work for so many cycles; see :func:`lacks`."""

end_allocation_to_pool: Callable[[int, tuple[int, int]], object] = _find(
    "torch._C:_cuda_endAllocateToPool",
    _find("torch._C:_cuda_endAllocateCurrentStreamToPool", _do_nothing),
)
release_pool: Callable[[int, tuple[int, int]], object] = _find(
    "torch._C:_cuda_releasePool", _do_nothing
)


# --- callgrind -----------------------------------------------------------------------------------


def _cannot() -> bool:
    return False


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
