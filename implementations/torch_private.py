"""Private names of torch: the purpose of each, and what happens without it.

PyTorch gives no guarantee for names that begin with an underscore; no other module here uses one.
Each name is looked up once, on import. If the installed torch lacks a name, the feature that needs
it is switched off or slower. Torch 2.6 and later have all names, unless a comment says otherwise.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Mapping
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor


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


# a mode that a target leaves on stays on, unnoticed, if torch lacks a name


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
"""Return ``-x`` over the memory of ``x``, under the negative bit; without the name, a copy."""


def count_hooks(tensor: Tensor) -> int:
    """Return how many hooks autograd calls for a tensor; 0 if torch lacks the names."""
    names = ("_backward_hooks", "_post_accumulate_grad_hooks")
    return sum(len(getattr(tensor, name, None) or ()) for name in names)


# --- torch.compile and operators -----------------------------------------------------------------


def keep_backward_buffers() -> None:
    """Make backwards that are compiled from now on keep their buffers for another run.

    Without the name, a backward that frees its buffers cannot be timed alone: torch raises.
    """
    if lacks("torch._functorch.config:donated_buffer") is None:
        torch._functorch.config.donated_buffer = False


_operation: Callable[[str, str], tuple[Any, ...] | None] = _find(
    "torch._C:_get_operation_overload", lambda *_: None
)


def function_of(operator: torch._ops.OpOverload) -> Callable[..., Any]:
    """Return what an operator calls, without a Python frame; torch.compile cannot trace it.

    Without the name it is the operator itself, which takes longer to call.
    """
    found = _operation(operator.name().partition(".")[0], "")
    return found[0] if found else operator


OPERATOR_LIBRARIES: Mapping[str, object] = _find("torch._library.custom_ops:OPDEF_TO_LIB", {})
"""From operators registered by ``torch.library.custom_op`` to the library that registered them;
without the name, an operator that two revisions register is not refused."""


# without these names, a kernel that a target registers for an operator of torch is not noticed
PYTHON_KERNELS: Collection[str] = _find("torch.library:_impls", ())
"""What torch.library has registered: "aten/native_layer_norm/CPU"."""
operator_names: Callable[[], list[str]] = _find("torch._C:_dispatch_get_all_op_names", list)
"""Return the names of all operators, each with its overload."""
kernels_of: Callable[[str], str] = _find("torch._C:_dispatch_dump_table", lambda name: "")
"""Return a text that names the kernel of an operator for each dispatch key."""
_Handle: Any = _find("torch._C:_DispatchModule", type(None))


def remove_kernels(kept: Collection[str]) -> None:
    """Remove kernels of torch's operators that a container of Python holds, but for ``kept``."""
    held = [thing for owner in gc.get_objects() for thing in gc.get_referents(owner)]
    libraries = {id(thing): thing for thing in held if type(thing) is torch.library.Library}
    for library in libraries.values():
        if {name for name in library._op_impls if name.startswith(("aten/", "_/"))} - {*kept}:
            library._destroy()
    owned = {id(library.m) for library in libraries.values()}
    for handle in held:  # without a library, of a target that called torch._C by itself
        if type(handle) is _Handle and id(handle) not in owned:
            handle.reset()


# --- CUDA ----------------------------------------------------------------------------------------


def _do_nothing(*_: object) -> None: ...


spin: Callable[[int], object] = _find("torch.cuda:_sleep", _do_nothing)
"""Keep the current stream busy for this many cycles; does nothing if torch lacks it."""

# leave and free the memory pool of a failed capture; the first has its name from torch 2.8 on, the
# second before it. A torch without CUDA may lack all three
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


# without it (before 2.7), operators on other Python threads are not counted
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

_transforms_are_active: Callable[[], bool] = _find(
    "torch._C:_are_functorch_transforms_active", _cannot
)


def is_transformed(x: torch.Tensor) -> bool:
    """Whether a call with x is traced or inside a transform of torch.func, such as vmap."""
    is_plain = type(x) is torch.Tensor or type(x) is torch.nn.Parameter
    return not is_plain or _transforms_are_active()
