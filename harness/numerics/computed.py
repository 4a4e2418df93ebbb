"""Calls of other people's code: the only place where any exception is caught."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from harness.inputs import Inputs
from harness.numerics.error_measurement import Outputs
from harness.records import Case, Direction, Mode, Status
from implementations.contract import Implementation, LayerNormFunction, UnsupportedError
from implementations.targets.attempt import first_line
from implementations.torch_private import keep_backward_buffers

__all__ = [
    "ContractViolationError",
    "ImplementationError",
    "bind",
    "bind_recording_forward",
    "checked",
    "function_of",
    "guarded",
    "is_of_lost_device",
    "refuses",
    "run_once",
]


# Those of kernels among the errors that "leave the process in an inconsistent state" (CUDA runtime
# API, cudaError_t), in the runtime's words.
_LOST_DEVICE = re.compile(
    "CUDA error: .*(illegal memory access|misaligned address|illegal instruction|"
    "unspecified launch failure|device-side assert|hardware stack error|invalid program counter|"
    "operation not supported on global/shared address space|launch timed out)"
)


class ImplementationError(Exception):
    """The implementation did not run the case; says how the case ended and why."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class ContractViolationError(Exception):
    """The implementation ran and broke its contract; says how."""


def function_of(
    implementation: Implementation, mode: Mode, *, keep: bool = False
) -> LayerNormFunction:
    """Return the function to call: the implementation's own, or a compiled one.

    What was compiled before is forgotten, unless it is to be kept.
    """
    if mode is Mode.EAGER:
        return implementation.function
    # torch.compile keeps few versions of one function; a case needs only its own
    if not keep:
        torch.compiler.reset()
    # a backward that gives its buffers away cannot be timed again and again
    keep_backward_buffers()
    compiled: LayerNormFunction = torch.compile(implementation.function, dynamic=False)
    return compiled


def bind(
    function: LayerNormFunction, case: Case, tensors: Sequence[Tensor]
) -> Callable[[], object]:
    """Return a call of one pass of the case on ``tensors``, in the order of Inputs.tensors.

    Gradient recording is the caller's: off for a forward case, on for the others.

    Raises:
        ImplementationError: for a backward case, the forward that has to come first fails.
    """
    if case.direction is Direction.FORWARD:
        x, weight, bias, _ = _by_name(case, tensors)
        return guarded(function, x, case.normalized_shape, weight, bias, case.eps)
    forward, leaves, dy = _recording_forward(function, case, tensors)
    if case.direction is Direction.FORWARD_BACKWARD:
        return guarded(_training_step, forward, leaves, dy)
    # the graph is kept, so that the gradients alone can be taken again and again
    y = guarded(forward)()
    return guarded(partial(torch.autograd.grad, y, leaves, dy, retain_graph=True))


def bind_recording_forward(
    function: LayerNormFunction, case: Case, tensors: Sequence[Tensor]
) -> Callable[[], object]:
    """Return a call of the forward of a backward case; its result holds what it saved."""
    forward, _, _ = _recording_forward(function, case, tensors)
    return guarded(forward)


def _recording_forward(
    function: LayerNormFunction, case: Case, tensors: Sequence[Tensor]
) -> tuple[Callable[[], Tensor], tuple[Tensor, ...], Tensor]:
    """Return the forward on leaves that ask for gradients, those leaves, and dy."""
    leaves, dy = tuple(each.detach().requires_grad_() for each in tensors[:-1]), tensors[-1]
    x, weight, bias, _ = _by_name(case, (*leaves, dy))
    forward = partial(function, x, case.normalized_shape, weight, bias, case.eps)
    return forward, leaves, dy


def _training_step(forward: Callable[[], Tensor], leaves: tuple[Tensor, ...], dy: Tensor) -> object:
    return torch.autograd.grad(forward(), leaves, dy)


def run_once(function: LayerNormFunction, case: Case, inputs: Inputs) -> Outputs:
    """Run the case once and check what came back, all but its values.

    Raises:
        ImplementationError: the implementation raised.
        ContractViolationError: what it returned is no LayerNorm's result, or it modified its inputs.
    """
    before = [each.clone() for each in inputs.tensors]
    if case.direction is Direction.FORWARD:
        outputs = Outputs(y=checked("y", bind(function, case, inputs.tensors)(), inputs.x))
    else:
        outputs = _with_gradients(function, case, inputs)
    for old, new in zip(before, inputs.tensors, strict=True):
        if not torch.equal(_bits(old), _bits(new)):
            raise ContractViolationError("modified one of its inputs")
    return outputs


def refuses(function: Callable[..., object], *arguments: object) -> bool:
    """Whether a call raises, whatever it raises."""
    try:
        guarded(function, *arguments)()
    except ImplementationError:
        return True
    return False


def _with_gradients(function: LayerNormFunction, case: Case, inputs: Inputs) -> Outputs:
    forward, leaves, dy = _recording_forward(function, case, inputs.tensors)
    y = checked("y", guarded(forward)(), inputs.x)
    if not y.requires_grad:
        raise ContractViolationError("returned a y without gradient for inputs that ask for one")
    gradients = guarded(partial(torch.autograd.grad, y, leaves, dy, allow_unused=True))()
    assert isinstance(gradients, tuple)  # what autograd.grad returns
    names = [name for name in ("x", "weight", "bias") if getattr(inputs, name) is not None]
    found = {
        f"d{name}": checked(f"d{name}", gradient, leaf)
        for name, gradient, leaf in zip(names, gradients, leaves, strict=True)
    }
    return Outputs(y=y.detach(), **found)


def checked(name: str, found: object, like: Tensor) -> Tensor:
    """Check type, shape, dtype and device of an output.

    Raises:
        ContractViolationError: one of them is not that of ``like``.
    """
    if found is None and name.startswith("d"):
        raise ContractViolationError(
            f"{name} is None: {name[1:]} asks for a gradient and gets none"
        )
    if not isinstance(found, Tensor):
        raise ContractViolationError(
            f"{name} is {_article(type(found).__name__)}, expected a torch.Tensor"
        )
    if found.layout is not torch.strided:
        raise ContractViolationError(f"{name} has layout {found.layout}, expected torch.strided")
    for what in ("shape", "dtype", "device"):
        got, expected = getattr(found, what), getattr(like, what)
        if got != expected:
            got, expected = (list(got), list(expected)) if what == "shape" else (got, expected)
            raise ContractViolationError(f"{name} has {what} {got}, expected {expected}")
    return found


def _by_name(
    case: Case, tensors: Sequence[Tensor]
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Name the tensors of Inputs.tensors again: x, weight, bias, dy."""
    rest = list(tensors[1:])
    weight = rest.pop(0) if case.affine in {"both", "weight"} else None
    bias = rest.pop(0) if case.affine in {"both", "bias"} else None
    return tensors[0], weight, bias, rest.pop(0) if rest else None


def guarded(function: Callable[..., object], *arguments: object) -> Callable[[], object]:
    """Bind arguments, and turn whatever the call raises into a ImplementationError.

    But for a GPU that is lost: no case after this one could be run in this process.
    """

    def call() -> object:
        try:
            return function(*arguments)
        except Exception as error:
            if is_of_lost_device(error):
                raise
            raise _as_implementation_error(error) from error

    return call


def is_of_lost_device(error: Exception) -> bool:
    """Whether a kernel failed so that every later call in this process will.

    It is said at whatever waits for the device next, not at the call that started the kernel.
    """
    return isinstance(error, RuntimeError) and bool(_LOST_DEVICE.search(str(error)))


def _as_implementation_error(error: Exception) -> ImplementationError:
    """Say in one line how a case ended that raised."""
    words = first_line(error)
    if isinstance(error, UnsupportedError) or _is_of_another_revision(error):
        return ImplementationError(Status.UNSUPPORTED, words)
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in words:
        return ImplementationError(Status.OUT_OF_MEMORY, words or "out of memory")
    return ImplementationError(Status.ERROR, f"{type(error).__name__}: {words}")


def _is_of_another_revision(error: Exception) -> bool:
    """Whether this is what another revision of the package raises for what it declines."""
    kinds = ((each.__name__, each.__module__.split(".")) for each in type(error).__mro__)
    return any(
        name == UnsupportedError.__name__ and "implementations" in where for name, where in kinds
    )


def _bits(tensor: Tensor) -> Tensor:
    """The bytes of a tensor, for a comparison that NaN passes."""
    if not tensor.numel():
        return tensor
    flat = tensor.resolve_neg().reshape(-1)
    if flat.stride(0) != 1:  # contiguous() leaves a single element its stride
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiouAEIOU' else 'a'} {noun}"
