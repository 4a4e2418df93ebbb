"""Every mutant is caught by the check that it names, and no right LayerNorm is called wrong."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import cache, partial
from itertools import product
from typing import Any

import pytest
import torch
from interactions import is_caught_by_interaction
from mutant_dtypes import two_dtypes
from side_effects import is_caught_by_effect
from torch import Tensor
from torch.nn import functional

from harness.inputs import LAYOUTS, Inputs, make_inputs
from harness.inputs.grad_outputs import LAYOUT_OF
from harness.numerics.bounds import guarantee_of
from harness.numerics.computed import ContractViolationError, grad_mode, run_once
from harness.numerics.error_measurement import measure_errors
from harness.numerics.oracle import Reference
from harness.numerics.outputs import Outputs
from harness.records import Affine, Case, Direction
from harness.verify import mutants
from harness.verify.mutants import RIGHT, WRONG, CheckKind, Mutant
from harness.verify.mutants.arguments import layer_norm_of
from harness.verify.mutants.compound import BASES
from harness.verify.mutants.mutant import HALVES
from harness.verify.process_state import process_state_restored
from implementations import Implementation
from implementations.contract import LayerNormFunction

DTYPES = ["float32", "bfloat16", "float16", "float64"]
MUTANTS = tuple(dict.fromkeys((*WRONG, *BASES)))
"""Every mutant; some are wrong only behind the triggers of compounds."""


def mutants_and_dtypes(*, shown: bool) -> pytest.MarkDecorator:
    """Every mutant with dtypes in which its mistake shows, or with the others."""
    chosen = two_dtypes(MUTANTS)
    return pytest.mark.parametrize(
        ("mutant", "dtype"),
        [
            (mutant, dtype)
            for mutant, dtype in product(MUTANTS, DTYPES)
            if (dtype in mutant.dtypes) == shown
            and (dtype in chosen[mutant.name] or len(mutant.dtypes) < len(DTYPES))
        ],
        ids=lambda each: each.name if isinstance(each, Mutant) else each,
    )


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Undo what the mutants that change the process have changed."""
    with process_state_restored():
        yield


# --- cases: each of them alone catches some mutant -----------------------------------------------


def case_of(dtype: str, shape: tuple[int, ...], distribution: str = "normal", **axes: Any) -> Case:
    """A backward case; its parameters have the dtype of x."""
    axes = {"direction": Direction.BACKWARD, "param_dtype": dtype} | axes
    return Case(
        implementation="mutant", shape=shape, dtype=dtype, distribution=distribution, **axes
    )


def contiguous_cases(dtype: str) -> Iterator[Case]:
    """Odd and even, on and off multiples of 4, 32, 64 and powers of two, in rows and elements."""
    case, forward = partial(case_of, dtype), {"direction": Direction.FORWARD}
    yield case((33, 257))
    yield case((33, 257), **forward)
    yield case((33, 257), "tiny_variance")
    yield case((33, 257), "tiny_variance", eps=1e-8, **forward)
    yield case((33, 257), eps=0.5)
    yield case((12, 100), "offset_1e2")
    yield case((12, 257), "offset_1e4")
    yield case((5, 64), "constant")
    yield case((12, 64), "mixed_outliers")
    yield case((5, 64), parameters="ones_weight")
    yield case((5, 64), "nan_row")
    yield case((5, 64), grad_output="expanded_row")
    yield case((5, 64), grad_output="expanded_number")
    yield case((5, 64), grad_output="nan_row")
    yield case((5, 64), "tiny_variance", grad_output="huge", eps=1e-6)
    yield case((3, 4, 5, 7), normalized_dims=2)
    yield case((3, 4, 5, 7), normalized_dims=2, **forward)
    yield case((3, 4, 31), affine=Affine.WEIGHT)
    yield case((3, 4, 31), affine=Affine.BIAS)
    yield case((3, 4, 64), affine=Affine.BIAS)
    wide = "float32" if dtype in HALVES else dtype
    yield case((1, 6, 64), param_dtype=wide)
    yield case((1, 6, 64), param_dtype=wide, **forward)
    yield case((300, 16))
    yield case((67, 129))
    yield case((2, 2048), **forward)
    yield case((5, 4097), **forward)
    yield case((4, 4125), "mixed_conditions", **forward)


def cases_of_many_rows(dtype: str) -> tuple[Case, Case]:
    """More rows than a 16-bit index counts, and more elements than one chunk."""
    return (
        case_of(dtype, (65_600, 4), grad_output="few_rows"),
        case_of(dtype, (1030, 1024), direction=Direction.FORWARD),
    )


def other_layouts(dtype: str) -> Iterator[Case]:
    for layout in ("padded_rows", "transposed", "every_second", "storage_offset", "negated"):
        yield case_of(dtype, (8, 65), layout=layout)
    yield case_of(dtype, (7, 7), layout="transposed")
    yield case_of(dtype, (8, 65), layout="padded_rows", direction=Direction.FORWARD)
    yield case_of(dtype, (4, 6, 32), layout="sequence_first")
    yield case_of(dtype, (4, 6, 32), layout="sliced_middle")
    yield case_of(dtype, (6, 5, 7), layout="transposed", normalized_dims=2)


@cache
def arranged(case: Case) -> tuple[Inputs, Reference]:
    """The inputs of a case and its exact result, the same for all mutants."""
    inputs = make_inputs(case)
    lay = LAYOUTS[case.layout]
    laid = {
        name: lay(each)
        for name in ("weight", "bias", "dy")
        if (each := getattr(inputs, name)) is not None
        and (name != "dy" or case.grad_output not in LAYOUT_OF)
    }
    inputs = replace(inputs, **laid)
    return inputs, Reference(inputs, case)


def copied(tensor: Tensor | None) -> Tensor | None:
    """Another tensor in memory of its own, laid out the same."""
    if tensor is not None and tensor.is_neg():  # deepcopy keeps strides, and not that bit
        return torch._neg_view(deepcopy(torch._neg_view(tensor)))
    return deepcopy(tensor)


# --- the checks ----------------------------------------------------------------------------------


def undeclared(function: LayerNormFunction) -> Implementation:
    return Implementation(name="mutant", function=function, source="")


def beyond(
    outputs: Outputs,
    inputs: Inputs,
    case: Case,
    implementation: Implementation,
    reference: Reference | None = None,
) -> set[str]:
    """The names of the outputs that exceed their bound."""
    reference = reference or Reference(inputs, case)
    guarantee = guarantee_of(implementation, case)
    errors = measure_errors(outputs, inputs, case, guarantee, reference)
    return {
        each.output
        for each in errors.outputs
        if each.bound_ratio is not None and not each.bound_ratio <= 1
    }


def finding(
    function: LayerNormFunction, case: Case, implementation: Implementation
) -> CheckKind | None:
    """The first kind of check that one call fails, or None."""
    inputs, reference = arranged(case)
    lent = Inputs(*(copied(each) for each in (inputs.x, inputs.weight, inputs.bias, inputs.dy)))
    try:
        with grad_mode(case):
            outputs = run_once(function, case, lent)
    except ContractViolationError:
        return CheckKind.CONTRACT
    broken = beyond(outputs, inputs, case, implementation, reference)
    if broken and case.layout != "contiguous":
        return CheckKind.LAYOUT
    if "y" in broken:
        return CheckKind.VALUES
    return CheckKind.GRADIENT if broken else None


def is_caught_by_repetition(function: LayerNormFunction, dtype: str) -> bool:
    """Whether calls with other data at one address, other parameters, eps or shape are wrong."""
    return any(_is_wrong_again(function, dtype, shape) for shape in ((8, 64), (2, 1088)))


def _is_wrong_again(function: LayerNormFunction, dtype: str, most: tuple[int, int]) -> bool:
    buffers: dict[tuple[int, ...], Tensor] = {}
    earlier: list[tuple[Tensor, Tensor]] = []
    for seed in range(12):  # more than the ten calls for which one mutant is right
        shape = (6, 32) if seed % 3 == 2 else most
        case = case_of(dtype, shape, eps=0.5 if seed % 2 else 1e-5, seed=seed)
        drawn = make_inputs(case)
        inputs = replace(drawn, x=buffers.setdefault(case.shape, drawn.x).copy_(drawn.x))
        outputs = run_once(function, case, inputs)
        if any(not torch.equal(y, kept) for y, kept in earlier):
            return True
        earlier.append((outputs.y, outputs.y.clone()))
        if beyond(outputs, inputs, case, undeclared(function)):
            return True
    return False


def is_caught_by_threads(function: LayerNormFunction, dtype: str) -> bool:
    """Whether the result on two threads is wrong."""
    case = case_of(dtype, (301, 256))
    inputs = make_inputs(case)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        outputs = run_once(function, case, inputs)
    finally:
        torch.set_num_threads(before)
    return bool(beyond(outputs, inputs, case, undeclared(function)))


def is_caught_by_autograd(function: LayerNormFunction, dtype: str) -> bool:
    """Whether gradients are wrong that are computed singly, twice, or after inputs have changed."""
    return any(
        _has_wrong_graph(function, case_of(dtype, shape, **axes))
        for shape, axes in (
            ((8, 65), {}),
            ((2, 3, 1088), {}),
            ((3, 4, 6, 10), {"normalized_dims": 2}),
            ((8, 65), {"layout": "padded_rows"}),
        )
    )


def _has_wrong_graph(function: LayerNormFunction, case: Case) -> bool:
    dtype, wanted, drawn = case.dtype, ("x", "weight", "bias"), make_inputs(case)

    def recorded(*names: str) -> tuple[Tensor, list[Tensor]]:
        copies = make_inputs(case)
        given = [getattr(copies, name).requires_grad_(name in names) for name in wanted]
        y = function(given[0], case.normalized_shape, given[1], given[2], 1e-5)
        return y, [each for each in given if each.requires_grad]

    y, leaves = recorded(*wanted)
    first = torch.autograd.grad(y, leaves, drawn.dy, retain_graph=True)
    kept = [each.clone() for each in first]
    again = [torch.autograd.grad(y, leaves, drawn.dy, retain_graph=True)]
    twice = torch.autograd.grad(y, leaves, 2 * drawn.dy)
    if not all(map(torch.equal, twice, [2 * each for each in kept])):
        return True
    for name, expected in zip(wanted, kept, strict=True):
        y, leaves = recorded(name)
        if not y.requires_grad or not torch.equal(
            torch.autograd.grad(y, leaves, 2 * drawn.dy)[0], 2 * expected
        ):
            return True
    y, leaves = recorded(*wanted)
    with torch.no_grad():
        leaves[0].zero_()
    with suppress(RuntimeError):  # autograd notices it
        again.append(torch.autograd.grad(y, leaves, drawn.dy))
    if dtype not in HALVES and not has_second_derivative(function, drawn.x):
        return True
    y, leaves = recorded(*wanted)
    torch.autograd.grad(y, leaves, 3 * drawn.dy)  # it must not overwrite earlier results
    return any(
        not torch.equal(one, other)
        for found in (first, *again)
        for one, other in zip(found, kept, strict=True)
    )


def has_second_derivative(function: LayerNormFunction, x: Tensor) -> bool:
    """Whether the second derivative of sin(y) agrees with the kernel's own, or is refused."""
    found = []
    for each in (function, functional.layer_norm):
        leaf = x.clone().requires_grad_()
        value = each(leaf, x.shape[-1:], None, None, 1e-5).sin().sum()
        (first,) = torch.autograd.grad(value, leaf, create_graph=True)
        if not first.requires_grad:  # it refuses
            return True
        found += torch.autograd.grad(first.square().sum(), leaf)
    return torch.allclose(*found, rtol=1e-2, atol=1e-2 * float(found[1].abs().amax()))


def catching_check(mutant: Mutant, dtype: str) -> CheckKind | None:
    """The weakest check that catches a mutant; CheckKind lists them from weak to strong."""
    with process_state_restored():
        if caught := wrong_result(mutant, dtype):
            return caught
    has_effect = is_caught_by_effect(mutant.fresh(), getattr(torch, dtype))
    return CheckKind.EFFECT if has_effect else None


def wrong_result(mutant: Mutant, dtype: str) -> CheckKind | None:
    """The weakest check of results that catches a mutant."""
    order = list(CheckKind)
    claimed = undeclared(mutant.function)
    caught: set[CheckKind] = set()
    for case in (*contiguous_cases(dtype), *other_layouts(dtype)):
        if check := finding(mutant.fresh(), case, claimed):
            caught.add(check)
        if check is CheckKind.VALUES:
            return check
    if caught:
        return min(caught, key=order.index)
    if is_caught_by_repetition(mutant.fresh(), dtype):
        return CheckKind.REPETITION
    if is_caught_by_threads(mutant.fresh(), dtype):
        return CheckKind.THREADS
    if is_caught_by_autograd(mutant.fresh(), dtype):
        return CheckKind.GRAPH
    if is_caught_by_interaction(mutant.fresh(), getattr(torch, dtype)):
        return CheckKind.INTERACTION
    # last, because they take longest
    large = (finding(mutant.fresh(), case, claimed) for case in cases_of_many_rows(dtype))
    return min(filter(None, large), key=order.index, default=None)


# --- wrong ---------------------------------------------------------------------------------------


@mutants_and_dtypes(shown=True)
def test_a_mutant_is_caught_by_the_check_that_it_names(mutant: Mutant, dtype: str) -> None:
    assert catching_check(mutant, dtype) is mutant.caught_by, mutant.mistake


@mutants_and_dtypes(shown=False)
def test_a_mutant_is_right_in_the_dtypes_that_do_not_show_it(mutant: Mutant, dtype: str) -> None:
    assert catching_check(mutant, dtype) is None


def named(mutants: Iterable[Mutant]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("mutant", list(mutants), ids=lambda each: each.name)


@named(each for each in WRONG if Direction.FORWARD not in each.directions)
def test_a_mutant_of_the_backward_alone_is_right_forward(mutant: Mutant) -> None:
    for case in contiguous_cases("float32"):
        forward = replace(case, direction=Direction.FORWARD)
        assert finding(mutant.fresh(), forward, undeclared(mutant.function)) is None


@named(each for each in WRONG if each.directions == {Direction.FORWARD})
def test_a_mutant_of_inference_is_right_where_gradients_are_recorded(mutant: Mutant) -> None:
    for case in (*contiguous_cases("bfloat16"), *other_layouts("bfloat16")):
        if case.direction is Direction.BACKWARD:
            assert finding(mutant.fresh(), case, undeclared(mutant.function)) is None


def test_a_mutant_says_what_its_mistake_is() -> None:
    for mutant in WRONG:
        assert mutant.mistake[0].islower()
        assert not mutant.mistake.endswith(".")
        assert mutant.dtypes
        assert mutant.dtypes <= set(DTYPES)


def test_a_fresh_mutant_remembers_nothing() -> None:
    mutant = next(each for each in WRONG if each.name == "output_of_the_first_call")
    first, second = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0)).unbind()
    used = mutant.fresh()
    once = used(first, (8,))
    assert torch.equal(used(second, (8,)), once)
    assert not torch.equal(mutant.fresh()(second, (8,)), once)
    assert not torch.equal(mutant(second, (8,)), once)


def test_every_check_has_a_mutant() -> None:
    assert {each.caught_by for each in WRONG} == set(CheckKind)


# --- right ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("right", "dtype"),
    [(right, dtype) for right in RIGHT for dtype in sorted(two_dtypes(RIGHT)[right.name])],
    ids=lambda each: each.name if isinstance(each, Implementation) else each,
)
def test_a_right_one_is_never_called_wrong(right: Implementation, dtype: str) -> None:
    for case in (*contiguous_cases(dtype), *other_layouts(dtype)):
        assert finding(right.function, case, right) is None, case.id
    assert not is_caught_by_repetition(right.function, dtype)
    assert not is_caught_by_threads(right.function, dtype)
    assert not is_caught_by_autograd(right.function, dtype)
    assert not is_caught_by_interaction(right.function, getattr(torch, dtype))
    assert not is_caught_by_effect(right.function, getattr(torch, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_most_mutants_change_is_right(dtype: str) -> None:
    unchanged = undeclared(layer_norm_of(lambda rows: rows.y))
    cases = (*contiguous_cases(dtype), *other_layouts(dtype), *cases_of_many_rows(dtype))
    for case in cases:
        assert finding(unchanged.function, case, unchanged) is None, case.id


# --- the lists -----------------------------------------------------------------------------------


def test_every_mutant_and_every_right_one_is_in_its_list_by_its_own_name() -> None:
    defined: dict[str, Mutant | Implementation] = {}
    for module in pkgutil.iter_modules(mutants.__path__):
        names = vars(importlib.import_module(f"{mutants.__name__}.{module.name}"))
        defined |= {
            name: value
            for name, value in names.items()
            if isinstance(value, Mutant | Implementation)
        }
    assert {each.name: each for each in (*MUTANTS, *RIGHT)} == defined
    assert len(MUTANTS) + len(RIGHT) == len(defined)


@pytest.mark.parametrize("family", sorted({each.function.__module__ for each in (*WRONG, *RIGHT)}))
def test_every_public_function_of_a_family_is_a_mutant(family: str) -> None:
    names = vars(importlib.import_module(family))
    public = {
        name
        for name, value in names.items()
        if not name.startswith("_")
        and callable(value)
        and getattr(value, "__module__", "") == names["__name__"]
    }
    assert public == set(), f"{family}: neither a mutant nor private"
