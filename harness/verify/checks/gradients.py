"""Contract checks of gradients: one backward in each way, other operations, training, and twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any
from warnings import catch_warnings

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import implementations
from harness.cases.axes import AXES
from harness.cases.inputs import copy_in_layout
from harness.numerics import Outputs, copies_of, named_outputs
from harness.records import Affine, Direction
from harness.records.finding import RemarkKind
from harness.records.text import listed
from harness.run import ImplementationError, guarded
from harness.verify.checks.calls import INPUTS, Call, elsewhere, has_bits_of, repeat
from harness.verify.checks.contract_checks import (
    EVERY_SETTING,
    FROZEN,
    LONG,
    LONG_TAIL,
    PADDED,
    PATHS,
    SMALL,
    TAIL,
    TRANSPOSED,
    TWO_AXES,
    check,
)
from harness.verify.code import code_of
from harness.verify.in_scope import scope_of
from harness.verify.words import cause

__all__ = [
    "EXACT",
    "allows_changes_of_y",
    "backward_accumulates_gradients",
    "create_graph_gives_same_gradients",
    "detects_in_place_changes",
    "follows_parameter_updates",
    "graphs_are_independent",
    "higher_derivatives_are_correct",
    "is_correct_under_checkpoint",
    "is_unchanged_by_many_forwards",
    "jvp",
    "retained_graph_gives_same_gradients",
    "returned_gradients_stay_unchanged",
    "runs_backward_in_another_thread",
    "second_derivative_exists",
    "second_derivative_is_correct",
    "takes_copies_of_saved_tensors",
    "takes_results_of_other_operations",
    "trains_after_inference_mode",
    "with_right_gradients",
]

EXACT = implementations.find("two_pass")
"""A target that consists of operators of PyTorch, whose derivatives are PyTorch's."""

_STEPS = 20  # more than a ring of reused buffers is likely to have
_STEPS_AT_OTHER_SIZES = 5  # the number matters at one size
_FORWARDS = 64  # layers of a model, or steps whose gradients are accumulated
_MANY_FORWARDS = 4_200  # beyond a ring of 4,096 slots
_MOST_S = 1.0  # for them
_LARGEST_RING = 20_000  # slots: a number in the source below this may be that of a ring
# by what a sentence says: inputs whose gradients are derived once more, and those that are frozen
_ASKED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "": (INPUTS, ()),
    "dx alone is used, as in a gradient penalty": (("x",), ()),
    "weight and bias are frozen": (("x",), ("weight", "bias")),
    "x is frozen": (("weight", "bias"), ("x",)),
    "dweight alone is used": (("weight",), ()),
    "dbias alone is used": (("bias",), ()),
    "dx and dbias alone are used": (("x", "bias"), ()),
    "dx and dweight alone are used": (("x", "weight"), ()),
}
# of the norm: correct ones are within 5e-7 in float32, and 0.007 in bfloat16; a missing term is 0.9
_SECOND_LIMIT = {"float16": 0.05, "bfloat16": 0.05, "float32": 1e-4, "float64": 1e-4}
# of a derivative in float64: roundings are below 1e-11, a missing term is 0.003
_HIGHER_LIMIT = 1e-6


@check(Direction.BACKWARD, *EVERY_SETTING, *FROZEN)
def retained_graph_gives_same_gradients(call: Call) -> Iterator[str]:
    """With retain_graph=True, each further backward gives the gradients of its dy."""
    dy = copy_in_layout(call.dy)
    graph = replace(call.graph(), dy=dy)
    returned = graph.gradients(retain_graph=True)
    first = copies_of(returned)
    for _, gradient in [*named_outputs(returned)][1:]:
        with suppress(RuntimeError):  # its elements overlap, which is another check's
            gradient.zero_()  # it is the caller's, and no longer what the graph needs
    where = "in a second backward over a retained graph"
    call.seeded(1).graph()  # a further forward, in whose workspace the first may have been
    yield from call.gives_another(first, graph.gradients(retain_graph=True), where)
    dy.copy_(call.seeded(1).dy)  # at the address of the first
    other = call.on(dy=elsewhere(dy))
    for output in other.differing(other.gradients(), graph.gradients()):
        yield f"gives a wrong {output} for another dy {where}"


@check(Direction.BACKWARD, *EVERY_SETTING, *FROZEN)
def create_graph_gives_same_gradients(call: Call) -> Iterator[str]:
    """With create_graph=True, the gradients are the same."""
    for given in call.each_affine():
        recorded = given.graph().gradients(create_graph=True)
        for output in given.differing(given.gradients(), recorded)[:1]:
            # PyTorch's own kernels take another path then; what is right there may differ
            if output in given.beyond(recorded):
                yield f"gives another {output} with create_graph=True"


@check(Direction.BACKWARD, *EVERY_SETTING, *FROZEN, raises_where="gradients are accumulated")
def backward_accumulates_gradients(call: Call) -> Iterator[str]:
    """Two calls of y.backward() double the gradients: autograd adds to .grad, and only then."""
    expected = call.gradients()
    leaves = call.leaves()
    for _ in range(2):
        graph = call.graph(leaves=leaves)
        guarded(graph.y.backward, graph.dy)()
    stored = copies_of(graph.stored(divisor=2))
    for output in call.differing(expected, stored):
        yield f"does not double {output} in a second y.backward()"
    graph = call.graph(leaves=leaves)
    for output in call.differing(expected, graph.gradients()):
        yield f"returns another {output} from torch.autograd.grad if .grad has a value"
    if not has_bits_of(graph.stored(divisor=2), stored):
        yield "changes .grad in torch.autograd.grad"


@check(Direction.BACKWARD, *PATHS, *FROZEN, remark=RemarkKind.CHANGES_UNNOTICED)
def detects_in_place_changes(call: Call) -> Iterator[str]:
    """A tensor changed in place before the backward raises, or does not change the gradients.

    Autograd raises for tensors that were given to save_for_backward.
    """
    for own in call.each_affine():
        expected = copies_of(own.gradients())
        for changed in (*own.given, "y"):
            graph = own.graph()
            y = graph.y.detach().clone()
            with torch.no_grad():
                ({"y": graph.y} | graph.leaves)[changed].mul_(-3).add_(1)
            changes = f"if {changed} is changed in place before the backward"
            with suppress(ImplementationError):
                for output in own.differing(expected, replace(graph.gradients(), y=y)):
                    yield f"gives a wrong {output}, without an error, {changes}"


@check(Direction.BACKWARD, *EVERY_SETTING, raises_where="several training steps are made")
def returned_gradients_stay_unchanged(call: Call) -> Iterator[str]:
    """No later training step overwrites what an earlier one returned."""
    kept = []
    steps = _STEPS if call.case.shape == SMALL["shape"] else _STEPS_AT_OTHER_SIZES
    for step in range(steps):
        own = call.seeded(step)
        for names in (INPUTS, ("x",), tuple(own.parameters)):  # a model may be frozen in part
            if names:
                returned = own.graph(names).gradients()
                kept.append((copies_of(returned), returned))
    for copies, returned in kept:
        for name, before in named_outputs(copies):
            if not torch.equal(before, getattr(returned, name)):
                yield f"overwrites a {name} that it has returned, in a later training step"


@check(
    Direction.BACKWARD,
    *EVERY_SETTING,
    *FROZEN,
    raises_where="two layers run forward before either runs backward",
)
def graphs_are_independent(call: Call) -> Iterator[str]:
    """If two layers run forward before either runs backward, each gets its own gradients."""
    layers = (call, call.seeded(1))
    alone = [copies_of(layer.gradients()) for layer in layers]
    where = "if a second forward runs before the backward"
    for order in ((0, 1), (1, 0)):
        graphs = [layer.graph() for layer in layers]
        for index in order:
            yield from layers[index].gives_another(alone[index], graphs[index].gradients(), where)


@check(Direction.BACKWARD, raises_where="a thousand forwards run before a backward")
def is_unchanged_by_many_forwards(call: Call) -> Iterator[str]:
    """A backward uses what its own forward saved, not the slot of a ring that others reuse."""
    expected, graph = copies_of(call.gradients()), call.graph()
    numbers = [own for own in code_of(call.target).integers if own < _LARGEST_RING]
    most = max([_MANY_FORWARDS, *numbers]) + 1
    made = repeat(call.seeded(1).graph, most, _MOST_S * most / _MANY_FORWARDS)
    where = f"if {made:,} forwards run before the backward"
    yield from call.gives_another(expected, graph.gradients(), where)


@check(
    Direction.BACKWARD,
    SMALL,
    TRANSPOSED,
    raises_where="saved tensors are copied, as where they are offloaded",
)
def takes_copies_of_saved_tensors(call: Call) -> Iterator[str]:
    """The gradients are the same if autograd keeps contiguous copies of what the forward saved."""
    contiguous_copy = partial(torch.clone, memory_format=torch.contiguous_format)
    with torch.autograd.graph.saved_tensors_hooks(contiguous_copy, Tensor.clone):
        found = call.gradients()
    where = "if autograd keeps copies of saved tensors"
    yield from call.gives_another(call.gradients(), found, where)


@check(Direction.BACKWARD, raises_where="it is called under torch.utils.checkpoint")
def is_correct_under_checkpoint(call: Call) -> Iterator[str]:
    """The gradients are the same where torch.utils.checkpoint runs the forward anew.

    So are those of two layers, of which the second has fewer rows.
    """
    function = call.target.function

    def two_layers(x: Tensor, *arguments: Any, **named: Any) -> Tensor:
        y = function(x, *arguments, **named)
        return torch.cat([y[:1], function(y[1:], *arguments, **named)])

    again = call.by(partial(checkpoint, function, use_reentrant=False)).gradients()
    yield from call.gives_another(call.gradients(), again, "under torch.utils.checkpoint")
    both = partial(checkpoint, two_layers, use_reentrant=False)
    expected, found = (call.by(own).gradients() for own in (two_layers, both))
    for name, right in named_outputs(expected):
        distance = (getattr(found, name) - right).norm()
        if not distance <= _SECOND_LIMIT[call.case.dtype] * right.norm():
            yield f"gives another {name} under torch.utils.checkpoint of two layers"


@check(Direction.BACKWARD, SMALL, TAIL, remark=RemarkKind.Y_IS_KEPT)
def allows_changes_of_y(call: Call) -> Iterator[str]:
    """y may be changed in place, as by nn.ReLU(inplace=True), with all parameters or none."""
    for given in call.each_affine():
        graph = given.graph()
        try:
            graph.y.relu_()  # autograd notices here if y is a view, and later if it was saved
            graph.gradients()
        except (RuntimeError, ImplementationError):
            yield "raises in the backward if y is changed in place, as by nn.ReLU(inplace=True)"


@check(Direction.BACKWARD, *PATHS)
def takes_results_of_other_operations(call: Call) -> Iterator[str]:
    """x, weight and bias may be no leaves, as where a weight is 1 + gamma, and x a parameter."""
    expected, usual = call.gradients(), call.leaves()
    for words, form in (
        ("results of other operations", lambda leaf: leaf.view_as(leaf)),
        ("of class nn.Parameter", lambda leaf: torch.nn.Parameter(leaf.detach())),
    ):
        leaves = {name: form(leaf) for name, leaf in usual.items()}
        where = f"if x, weight and bias are {words}"
        yield from call.gives_another(expected, call.graph(leaves=leaves).gradients(), where)
    leaf = usual["x"].detach().requires_grad_()
    with torch.enable_grad():
        y = call.on(**usual | {"x": torch.tanh(leaf)}).y()
    try:
        guarded(y.sum().backward)()
    except ImplementationError as raised:
        yield f"raises in the backward of the operation that made x: {cause(raised.reason)}"


@check(Direction.BACKWARD, SMALL, TAIL, raises_where="a backward runs in another thread")
def runs_backward_in_another_thread(call: Call) -> Iterator[str]:
    """After 64 forwards, a backward in another thread gives the gradients of its own forward.

    The last forward is of a layer without parameters.
    """
    layers = (call, *[call.seeded(1)] * (_FORWARDS - 1))  # equal ones, whatever is overwritten
    graphs = [layer.graph() for layer in layers]
    layers[-1].changed(affine=Affine.NONE).graph()
    with ThreadPoolExecutor(1, initializer=partial(torch.set_num_threads, 1)) as pool:
        for at in (0, -1):
            gradients = pool.submit(graphs[at].gradients).result()
            first = f", and after {_FORWARDS - 1} further forwards" if at == 0 else ""
            where = f"if the backward runs in another thread{first}"
            yield from layers[at].gives_another(layers[at].gradients(), gradients, where)


@check(Direction.BACKWARD, *PATHS, raises_where="training changes weight and bias")
def follows_parameter_updates(call: Call) -> Iterator[str]:
    """A weight or bias that training changes, in place or through .data, is used as it is now."""
    later = call.seeded(1).inputs
    trained = call.on(weight=later.weight, bias=later.bias)
    expected = trained.gradients()
    for way in ("in place", "through .data"):
        leaves = {
            name: leaf if name == "x" else torch.nn.Parameter(leaf.detach())
            for name, leaf in call.leaves().items()
        }
        held = call.on(**leaves)
        held.graph(leaves=leaves).gradients()
        held.forward().outputs()
        for name, new in trained.parameters.items():
            with torch.no_grad():
                (leaves[name] if way == "in place" else leaves[name].data).copy_(new)
        for outputs in (held.graph(leaves=leaves).gradients(), held.forward().outputs()):
            for output in trained.differing(expected, outputs):
                yield f"gives {output} of the old parameters after they were changed {way}"
    frozen = {name: old.detach().clone() for name, old in call.parameters.items()}
    held = call.on(**frozen).forward()
    held.outputs()
    for name, new in trained.parameters.items():
        frozen[name].data.copy_(new)
    if trained.differing(Outputs(y=expected.y), held.outputs()):
        yield "gives y of the old parameters after frozen ones were changed through .data"


@check(Direction.BACKWARD, SMALL, LONG_TAIL)
def takes_one_tensor_as_weight_and_bias(call: Call) -> Iterator[str]:
    """Weight and bias in one memory get their own gradients, and one tensor gets the sum."""
    if len(call.parameters) < len(INPUTS) - 1:
        return
    call = call.on(bias=call.inputs.weight)
    expected, leaves = copies_of(call.gradients()), call.leaves()
    shared = {**leaves, "bias": leaves["weight"].detach().requires_grad_()}
    where = "if weight and bias share their memory"
    yield from call.gives_another(expected, call.graph(leaves=shared).gradients(), where)
    both = call.graph(leaves={**leaves, "bias": leaves["weight"]}).gradients()
    parts = [getattr(expected, name).double() for name in ("dweight", "dbias")]
    distance, size = (both.dweight - sum(parts)).abs(), parts[0].abs() + parts[1].abs()
    is_another = call.differing(Outputs(y=expected.y), Outputs(y=both.y))
    if is_another or not distance.norm() <= size.norm() / 16:  # of columns that cancel, too
        yield "gives another result if one tensor is both weight and bias"


@check(Direction.BACKWARD, *PATHS)
def trains_after_inference_mode(call: Call) -> Iterator[str]:
    """A call in torch.inference_mode leaves nothing behind that a later backward cannot use."""
    expected = copies_of(call.gradients())
    leaves = call.leaves()
    with torch.inference_mode():
        call.on(**leaves | {"x": copy_in_layout(call.inputs.x)}).forward().outputs()
    where = "after a call in torch.inference_mode"
    try:
        yield from call.gives_another(expected, call.graph(leaves=leaves).gradients(), where)
    except ImplementationError as raised:
        yield f"raises in training {where}: {raised}"


@check(
    Direction.BACKWARD,
    *(SMALL, TAIL, LONG, TWO_AXES, PADDED),
    remark=RemarkKind.SECOND_DERIVATIVE_WRONG,
)
def second_derivative_is_correct(call: Call) -> Iterator[str]:
    """The second derivative is that of operators of PyTorch in float64, or raises.

    A recorded backward that computes from statistics saved as constants misses a term. The check
    needs correct gradients.
    """
    for number, given in enumerate(with_right_gradients(call)):
        for words, (asked, frozen) in _ASKED.items():
            is_of_dbias = "x" in frozen or "x" not in asked
            if is_of_dbias and given.case.affine is Affine.BIAS:
                continue  # torch's own loses the derivative of dbias there: pytorch issue 79705
            where = _where(given, is_usual=not number, words=words)
            with suppress(ImplementationError):
                for name in _wrongly_derived(given, asked, frozen):
                    what = f"a wrong second derivative with respect to {name}{where}"
                    yield f"has {what}, without an error"
        constant = given.on(x=given.inputs.x.clone())
        constant.inputs.x.flatten(0, -2)[0] = 1
        with suppress(ImplementationError):
            for name in _wrongly_derived(constant, INPUTS, ()):
                what = f"a wrong second derivative with respect to {name}"
                yield f"has {what} where a row is constant, without an error"


@check(Direction.BACKWARD, remark=RemarkKind.SECOND_DERIVATIVE_MISSING)
def second_derivative_exists(call: Call) -> Iterator[str]:
    """The gradients have a derivative, as those of torch.nn.functional.layer_norm have."""
    for number, given in enumerate(with_right_gradients(call)):
        if number and given.case.affine is Affine.BIAS:
            continue  # torch's own has none there
        try:
            guarded(_second, given)()
        except ImplementationError as raised:
            where = _where(given, is_usual=not number)
            yield f"has no second derivative{where} ({cause(raised.reason)})"


def _where(call: Call, *, is_usual: bool, words: str = "") -> str:
    """Say for which parameters, unless they are the usual ones, and for what else."""
    of_affine = "" if is_usual else AXES["affine"].words[f"is {call.case.affine}"]
    conditions = " and ".join(filter(None, [of_affine, words]))
    return f" where {conditions}" if conditions else ""


@check(Direction.BACKWARD, remark=RemarkKind.HIGHER_DERIVATIVE_WRONG)
def higher_derivatives_are_correct(call: Call) -> Iterator[str]:
    """The third derivative, and those that use forward mode twice or once, are right, or raise."""
    given = next(with_right_gradients(call), None) if call.case.dtype == "float64" else None
    if given is None:
        return
    exact, wrong = replace(given, target=EXACT), []
    for words, derivative in _HIGHER.items():
        with suppress(ImplementationError):
            derived: list[Any] = [guarded(derivative, *_along(own))() for own in (given, exact)]
            found, expected = derived
            if not (found - expected).abs() <= _HIGHER_LIMIT * expected.abs().clamp(min=1):
                wrong.append(words)
    if wrong:
        yield f"has a wrong {listed(wrong)}, without an error"


Scalar = Callable[[Tensor], Tensor]


def _along(call: Call) -> tuple[Scalar, Tensor, Tensor]:
    """Return the inner product of y with dy as a function of x, its x, and a direction."""

    def scalar(x: Tensor) -> Tensor:
        with torch.enable_grad():
            return (call.on(x=x).y() * call.dy).sum()

    return scalar, call.inputs.x, call.seeded(1).inputs.x


def _third_derivative(scalar: Scalar, x: Tensor, direction: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    derived = scalar(x)
    for _ in range(3):
        (gradient,) = torch.autograd.grad(derived, x, create_graph=True)
        derived = (gradient * direction).sum()
    return derived.detach()


def _forward_twice(scalar: Scalar, x: Tensor, direction: Tensor) -> Tensor:
    return jvp(lambda at: jvp(scalar, [at], [direction]), [x], [direction])


def _backward_of_forward(scalar: Scalar, x: Tensor, direction: Tensor) -> Tensor:
    gradient: Tensor = torch.func.grad(lambda at: jvp(scalar, [at], [direction]))(x)
    return (gradient * direction).sum()


def _forward_of_backward(scalar: Scalar, x: Tensor, direction: Tensor) -> Tensor:
    return jvp(lambda at: (torch.func.grad(scalar)(at) * direction).sum(), [x], [direction])


def jvp(
    function: Callable[..., Tensor], at: Sequence[Tensor], directions: Sequence[Tensor]
) -> Tensor:
    """Return the derivative of a function along directions of its arguments, in forward mode."""
    # its first use in a process warns of what torch itself calls
    with catch_warnings(action="ignore"):
        derived: Tensor = torch.func.jvp(function, tuple(at), tuple(directions))[1]
    return derived


_HIGHER: dict[str, Callable[[Scalar, Tensor, Tensor], Tensor]] = {
    "third derivative": _third_derivative,
    "jvp of a jvp": _forward_twice,
    "gradient of a jvp": _backward_of_forward,
    "jvp of a gradient": _forward_of_backward,
}


def with_right_gradients(call: Call) -> Iterator[Call]:
    """Yield small cases, up to the first with a wrong gradient."""
    first = scope_of(call.target).taken("affine", backward=True)[0]
    for given in call.each_affine():
        if call.case.shape != SMALL["shape"] and given.case.affine is not first:
            return  # every affine at one size, and one at every size
        if given.beyond(given.outputs()):
            return
        yield given


def _wrongly_derived(call: Call, asked: Sequence[str], frozen: Sequence[str]) -> Iterator[str]:
    """Yield the inputs whose second derivative is wrong.

    Raises:
        ImplementationError: the target raised.
    """
    if call.given.keys().isdisjoint(asked):
        return
    second: Any = guarded(_second, call, asked, frozen)()
    exact = replace(call.at([own.double() for own in call.inputs.tensors]), target=EXACT)
    expected = _second(exact, asked, frozen)
    for name, found, right in zip([*call.given, "dy"], second, expected, strict=True):
        limit = _SECOND_LIMIT[call.case.dtype] * max(right.norm(), right.numel() ** 0.5)
        if not (found - right).norm() <= limit:
            yield name


def _second(
    call: Call, asked: Sequence[str] = INPUTS, frozen: Sequence[str] = ()
) -> tuple[Tensor, ...]:
    """Return the derivative of some gradients along a direction.

    The inner product of the two is derived with respect to x, weight, bias and dy.
    """
    along = call.seeded(1).given
    *tensors, dy = [tensor.clone().requires_grad_() for tensor in call.inputs.tensors]
    leaves = {
        name: own.detach() if name in frozen else own
        for name, own in zip(call.given, tensors, strict=True)
    }
    names = [name for name in leaves if name in asked]
    with torch.enable_grad():
        y = call.on(**leaves).y_of(leaves["x"])
        gradients = torch.autograd.grad(y, [leaves[name] for name in names], dy, create_graph=True)
        parts = zip(names, gradients, strict=True)
        total = torch.stack([(gradient * along[name]).sum() for name, gradient in parts]).sum()
    # not autograd.grad: it skips the node in which once_differentiable raises
    total.backward()
    return tuple(torch.zeros_like(own) if own.grad is None else own.grad for own in (*tensors, dy))
