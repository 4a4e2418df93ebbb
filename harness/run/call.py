"""Call an implementation and collect its outputs; any exception is one of the implementation."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from time import sleep

import torch
from torch import Tensor

from harness.cases.inputs import Inputs
from harness.numerics import (
    Outputs,
    bits_of,
    copies_of,
    fill_free_memory,
    incomplete_output,
)
from harness.records import Autograd, Case, Direction, Mode, Status
from implementations.contract import Implementation, LayerNormFunction, UnsupportedError
from implementations.targets.attempt import first_line
from implementations.torch_private import count_hooks, keep_backward_buffers

# The kernel errors that "leave the process in an inconsistent state", in the words of the CUDA
# runtime (CUDA Runtime API, cudaError_t), as torch and Triton report them
_LOST_DEVICE = re.compile(
    r"(CUDA error|CUDA driver error|Triton Error \[CUDA\]): .*(illegal memory access|"
    "misaligned address|illegal instruction|unspecified launch failure|device-side assert|"
    "hardware stack error|invalid program counter|uncorrectable ECC error|"
    "operation not supported on global/shared address space|launch timed out)",
    re.IGNORECASE,
)


class ImplementationError(Exception):
    """The implementation did not run the case. Holds the status of the case and its reason."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class ContractViolationError(Exception):
    """The implementation ran and violated its contract; the message says how."""


def function_of(
    implementation: Implementation, mode: Mode, *, keep: bool = False
) -> LayerNormFunction:
    """Return the function to call: the implementation's own, or its compiled form.

    Functions compiled earlier are discarded unless ``keep`` is true.
    """
    if mode is Mode.EAGER:
        return implementation.function
    # torch.compile limits the compiled versions per function; a case needs only its own
    if not keep:
        torch.compiler.reset()
    # a backward that donates its buffers cannot be run repeatedly
    keep_backward_buffers()
    compiled: LayerNormFunction = torch.compile(implementation.function, dynamic=False)
    return compiled


def grad_mode(case: Case) -> AbstractContextManager[object]:
    """Return the context in which the case is called: what autograd records, and how."""
    if case.direction is not Direction.FORWARD or case.autograd is Autograd.RECORDED:
        return torch.enable_grad()
    if case.autograd is Autograd.INFERENCE_MODE:
        return torch.inference_mode()
    return torch.no_grad()


def bind(
    function: LayerNormFunction, case: Case, tensors: Sequence[Tensor]
) -> Callable[[], object]:
    """Return a call that runs the case once on ``tensors``, in the order of Inputs.tensors.

    It is to be called in :func:`grad_mode` of the case.

    Raises:
        ImplementationError: the forward that precedes a backward case failed.
    """
    if case.direction is Direction.FORWARD and case.autograd is Autograd.RECORDED:
        return bind_recording_forward(function, case, tensors)
    if case.direction is Direction.FORWARD:
        x, weight, bias, _ = _by_name(case, tensors)
        return guarded(function, x, case.normalized_shape, weight, bias, case.eps)
    forward, leaves, dy = _recording_forward(function, case, tensors)
    required = tuple(leaves.values())
    if case.direction is Direction.FORWARD_BACKWARD:
        return guarded(lambda: torch.autograd.grad(forward(), required, dy))
    # the graph is retained so that the backward alone can be repeated
    y = guarded(forward)()
    return guarded(partial(torch.autograd.grad, y, required, dy, retain_graph=True))


def bind_recording_forward(
    function: LayerNormFunction, case: Case, tensors: Sequence[Tensor]
) -> Callable[[], object]:
    """Return a call of the forward that records a graph; its result holds the saved tensors."""
    forward, _, _ = _recording_forward(function, case, tensors)
    return guarded(forward)


def _recording_forward(
    function: LayerNormFunction, case: Case, tensors: Sequence[Tensor]
) -> tuple[Callable[[], Tensor], dict[str, Tensor], Tensor | None]:
    """Return the forward that records a graph, the leaves that require gradients, and dy.

    Raises:
        ImplementationError: unsupported, if nothing requires a gradient.
    """
    x, weight, bias, dy = _by_name(case, tensors)
    given = {"x": x, "weight": weight, "bias": bias}
    leaves = {
        name: tensor.detach().requires_grad_(name in case.differentiated)
        for name, tensor in given.items()
        if tensor is not None
    }
    x = leaves["x"]
    if case.autograd is Autograd.NON_LEAF_X:
        x = x.view_as(x)
    forward = partial(
        function, x, case.normalized_shape, leaves.get("weight"), leaves.get("bias"), case.eps
    )
    required = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    if not required:
        raise ImplementationError(
            Status.UNSUPPORTED, f"with autograd={case.autograd} nothing requires a gradient"
        )
    return forward, required, dy


def run_once(
    function: LayerNormFunction,
    case: Case,
    inputs: Inputs,
    *,
    is_judged: bool = False,
    on_copies: bool = False,
    settle_s: float = 0.0,
    after_call: Callable[[], None] = lambda: None,
) -> Outputs:
    """Run the case once and check everything about the result except its values.

    Args:
        function: the implementation's, or its compiled version.
        case: what to run.
        inputs: of the case.
        is_judged: whether to call in memory that holds no earlier result, and return copies that
            are made at once, since a thread may still write to the outputs.
        on_copies: whether to call with copies of the inputs. Only then are the inputs sure to be
            unchanged when the outputs are judged: a call may arrange for a later change.
        settle_s: seconds to wait before judged outputs are compared with these copies.
        after_call: called before anything is done with the outputs.

    Raises:
        ImplementationError: the implementation raised.
        ContractViolationError: an output has the wrong type, shape, dtype or device, was never
            written or is written after the call, or an input was modified.
    """
    before = inputs.tensors if on_copies else [tensor.clone() for tensor in inputs.tensors]
    inputs = inputs.copies() if on_copies else inputs
    unmarked = unmarked_after(inputs.tensors)
    if is_judged:
        fill_free_memory(inputs.tensors)
    if case.direction is Direction.FORWARD:
        with grad_mode(case):
            y = bind(function, case, inputs.tensors)()
        after_call()
        y = checked("y", y, inputs.x)
        if case.autograd is Autograd.RECORDED:
            y = y.detach()
        # an inference tensor could not take part in later calls that record a graph
        outputs = Outputs(y=y.clone() if y.is_inference() else y)
        del y
    else:
        outputs = _with_gradients(function, case, inputs)
        after_call()
    unmarked()
    incomplete = None
    if is_judged:
        copies = copies_of(outputs)
        if settle_s:
            sleep(settle_s)
        incomplete = incomplete_output(copies, outputs)
        outputs = copies  # what was returned ends here, and may change an input as it does
    for old, new in zip(before, inputs.tensors, strict=True):
        if not torch.equal(bits_of(old), bits_of(new)):
            raise ContractViolationError("modified one of its inputs")
    if incomplete:
        raise ContractViolationError(incomplete)
    return outputs


def refuses(function: Callable[..., object], *arguments: object) -> bool:
    """Whether a call raises any exception."""
    try:
        guarded(function, *arguments)()
    except ImplementationError:
        return True
    return False


def _with_gradients(function: LayerNormFunction, case: Case, inputs: Inputs) -> Outputs:
    forward, leaves, dy = _recording_forward(function, case, inputs.tensors)
    unmarked = unmarked_after([*leaves.values()])
    y = checked("y", guarded(forward)(), inputs.x)
    if not y.requires_grad:
        raise ContractViolationError("returned a y without gradient for inputs that require one")
    gradients = guarded(
        partial(torch.autograd.grad, y, [*leaves.values()], dy, allow_unused=True)
    )()
    unmarked()
    assert isinstance(gradients, tuple)  # the type that autograd.grad returns
    computed = {
        f"d{name}": checked(f"d{name}", gradient, leaf)
        for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True)
    }
    return Outputs(y=y.detach(), **computed)


def unmarked_after(tensors: Sequence[Tensor]) -> Callable[[], None]:
    """Return a check that ``tensors`` are as they are now, but for their values.

    Raises:
        ContractViolationError: by the check; one has other memory, or requires a gradient, or has
            a hook that it did not have.
    """
    marks = [_marks_of(tensor) for tensor in tensors]

    def check() -> None:
        for tensor, (place, requires_grad, hooks) in zip(tensors, marks, strict=True):
            new = _marks_of(tensor)
            if new[0] != place:
                raise ContractViolationError("gives one of its inputs other memory or strides")
            if new[1] != requires_grad:
                raise ContractViolationError("changes requires_grad of one of its inputs")
            if new[2] != hooks:
                raise ContractViolationError("leaves a hook on one of its inputs")

    return check


def _marks_of(tensor: Tensor) -> tuple[object, ...]:
    place = tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
    return place, tensor.requires_grad, count_hooks(tensor)


def checked(name: str, output: object, like: Tensor) -> Tensor:
    """Check type, layout, shape, dtype and device of an output.

    Raises:
        ContractViolationError: one of them differs from that of ``like``.
    """
    if output is None and name.startswith("d"):
        raise ContractViolationError(f"{name} is None, although {name[1:]} requires a gradient")
    if type(output) is not Tensor:  # a subclass may compute when its values are read
        raise ContractViolationError(
            f"{name} is of type {type(output).__name__}, expected torch.Tensor itself"
        )
    assert isinstance(output, Tensor)  # by its type
    for attribute in ("layout", "shape", "dtype", "device"):
        actual, expected = getattr(output, attribute), getattr(like, attribute)
        if actual != expected:
            if attribute == "shape":
                actual, expected = list(actual), list(expected)
            raise ContractViolationError(f"{name} has {attribute} {actual}, expected {expected}")
    return output


def _by_name(
    case: Case, tensors: Sequence[Tensor]
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Split Inputs.tensors into x, weight, bias and dy."""
    rest = list(tensors[1:])
    weight = rest.pop(0) if case.affine in {"both", "weight"} else None
    bias = rest.pop(0) if case.affine in {"both", "bias"} else None
    return tensors[0], weight, bias, rest.pop(0) if rest else None


def guarded(function: Callable[..., object], *arguments: object) -> Callable[[], object]:
    """Return a call of ``function`` that raises only ImplementationError.

    An error that leaves the GPU unusable is raised as it is: this process can run no other case.
    """

    def call() -> object:
        try:
            return function(*arguments)
        except (ImplementationError, ContractViolationError):  # of a guarded call within
            raise
        except Exception as error:
            if is_of_lost_device(error):
                raise
            raise _as_implementation_error(error) from error

    return call


def is_of_lost_device(error: Exception) -> bool:
    """Whether a kernel failed in a way that makes every later call in this process fail.

    CUDA reports it at the next call that waits for the device, not at the kernel's launch. So the
    device is asked, too: the error may be about something else.
    """
    if isinstance(error, RuntimeError) and _LOST_DEVICE.search(str(error)):
        return True
    if torch.cuda.is_initialized():
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return True
    return False


def _as_implementation_error(error: Exception) -> ImplementationError:
    """Turn an exception into the status of its case and a one-line reason."""
    message = first_line(error)
    name = UnsupportedError.__name__  # also that of another revision of the package
    kinds = [kind for kind in type(error).__mro__ if kind.__name__ == name]
    if any("implementations" in kind.__module__.split(".") for kind in kinds):
        return ImplementationError(Status.UNSUPPORTED, message)
    out_of_memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
    if out_of_memory or "can't allocate memory" in message:
        return ImplementationError(Status.OUT_OF_MEMORY, message or "out of memory")
    return ImplementationError(Status.ERROR, f"{type(error).__name__}: {message}")
