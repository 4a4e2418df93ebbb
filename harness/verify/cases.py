"""The cases that a target is tried on, and their order: the covering array and the case groups.

A case group lies beside the covering array and is aimed at one kind of mistake. Such groups need
sizes, rows or gradients that no axis of the array has: rows of public bug reports, widths with
kernels of their own, more rows than a 16-bit index counts. A case is run as a backward, which
checks y, dx, dweight and dbias together, and again as inference; groups about gradients run the
backward only. Sizes are odd, distinct and prime where that matters. The quick tier is a subset of
the full one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

from harness.cases.axes import (
    AXES,
    BACKWARD_CALLS,
    DTYPES,
    EXCLUSIONS,
    FORWARD_CALLS,
    SAME,
    Exclusion,
    array_axes,
    case_of,
)
from harness.cases.covering_array import covering_array
from harness.cases.inputs import DISTRIBUTIONS, REPORTED
from harness.records import Affine, Autograd, Case, Direction
from harness.verify.in_scope import first_case, scope_of
from harness.verify.result import QUICKEST, PlannedCase
from harness.verify.scope import Scope
from implementations.contract import Implementation

__all__ = [
    "FULL",
    "CaseGroup",
    "array_within",
    "axes_within",
    "case_from",
    "cases_of",
    "coverage_of",
    "first_case",
    "given_in",
    "planned_cases",
]

_COMBINATION = "a combination of conditions"
# by strength: array rows per combination. With one row per pair, other values of the row may hide a
# mistake
_TIMES = {2: 2}
_SMALL = 4_000  # elements: a moment, even in an interpreter of kernels
_ROWS_PER_TURN = 8  # the array finds most, so it has most cases in each turn


def planned_cases(
    implementation: Implementation,
    strength: int,
    dtypes: Sequence[str],
    device: str,
    *,
    without: Collection[Case] = (),
    in_turns: bool = False,
) -> list[PlannedCase]:
    """Return each case once, fitted to the target's scope.

    Args:
        implementation: its scope is known.
        strength: of the covering array; the quickest has fewer groups, too.
        dtypes: of x, by name.
        device: device kind.
        without: cases to leave out.
        in_turns: a part of the array comes first with the first case of each group, then the next
            part, all of small cases first; for a time budget that may not be enough for all.
    """
    scope = scope_of(implementation)
    seen: set[Case] = set(without)
    turns: list[tuple[int, PlannedCase]] = []
    for dtype in dtypes:
        for catches, per_turn, cases in _parts(implementation, strength, dtype, device):
            nearest = dict.fromkeys(scope.fit(case) for case in cases)
            new = [case for case in nearest if case not in seen and case and _has_output(case)]
            seen.update(new)
            turns += [(at // per_turn, PlannedCase(case, catches)) for at, case in enumerate(new)]
    if in_turns:
        turns.sort(key=lambda turn: (_size_class(turn[1].case), turn[0]))
    return [planned for _, planned in turns]


def coverage_of(implementation: Implementation) -> dict[str, int]:
    """Return the number of values of each axis that varies within the target's scope."""
    axes = axes_within(scope_of(implementation), forward_only=implementation.forward_only)
    return {name: len(values) for name, values in axes.items() if len(values) > 1}


def _parts(
    implementation: Implementation, strength: int, dtype: str, device: str
) -> Iterator[tuple[str, int, list[Case]]]:
    """Yield the array and the case groups: what each catches, cases per turn, cases."""
    name, forward_only = implementation.name, implementation.forward_only
    rows = array_within(scope_of(implementation), strength, forward_only=forward_only)
    yield _COMBINATION, _ROWS_PER_TURN, [case_from(row, name, dtype, device) for row in rows]
    for group in QUICK if strength <= QUICKEST else FULL:
        yield group.catches, 1, list(cases_of(group, name, dtype, device, forward_only))


def given_in(case: Case) -> set[str]:
    """Return the arguments that are given: x, and which of weight and bias."""
    return {"x", *(name for name in ("weight", "bias") if case.affine in {name, Affine.BOTH})}


def _size_class(case: Case) -> int:
    """Return the bits of the number of elements, the same for all small cases."""
    return max(prod(case.shape), _SMALL).bit_length()


def _has_output(case: Case) -> bool:
    """Whether anything that is given requires a gradient in a backward."""
    is_forward = case.direction is Direction.FORWARD
    return is_forward or not given_in(case).isdisjoint(case.differentiated)


def axes_within(scope: Scope, *, forward_only: bool) -> dict[str, tuple[Any, ...]]:
    """Return the axes, each with the values that a target accepts.

    An axis without such a value keeps its usual one, and :meth:`Scope.fit` adapts each case.

    Args:
        scope: of the target.
        forward_only: whether to leave out every backward pass.
    """
    fixed = {"eps"} if scope.eps is not None else set()
    if scope.normalized_shape is not None:
        fixed |= {"hidden", "normalized_axes"}
    within = {}
    for name, axis in array_axes().items():
        values = axis.values[:1] if name in fixed else axis.values
        if name == "call" and forward_only:
            values = FORWARD_CALLS
        within[name] = tuple(value for value in values if scope.accepts(name, value)) or values[:1]
    return within


def array_within(scope: Scope, strength: int, *, forward_only: bool) -> list[dict[str, Any]]:
    """Return the rows of the covering array over the axes of :func:`axes_within`."""
    axes = axes_within(scope, forward_only=forward_only)
    declined = scope.declined_backward.get("affine", ())
    without_gradient = Exclusion("call", BACKWARD_CALLS, "affine", declined)
    return _array(tuple(axes.items()), strength, without_gradient)


@lru_cache(maxsize=8)
def _array(
    axes: tuple[tuple[str, tuple[Any, ...]], ...], strength: int, of_target: Exclusion
) -> list[dict[str, Any]]:
    exclusions = (*EXCLUSIONS, of_target)
    rare = {name: axis.rare for name, axis in array_axes().items()}
    return covering_array(dict(axes), exclusions, strength, rare, _TIMES.get(strength, 1))


def case_from(row: Mapping[str, Any], target: str, dtype: str, device: str) -> Case:
    """Return the case in a dtype of x that a row of the covering array describes."""
    fixed = {"implementation": target, "shape": (1, 1), "dtype": dtype, "device": device}
    is_half = dtype in {"float16", "bfloat16"}  # others have no wider parameters
    return case_of({**fixed, **row, "param_dtype": row["param_dtype"] if is_half else SAME})


# --- case groups --------------------------------------------------------------------------------


FORWARD, BACKWARD = (Direction.FORWARD,), (Direction.BACKWARD,)
FROZEN = tuple(Autograd(call) for call in BACKWARD_CALLS if call.startswith(("frozen", "only")))
_NESTING = (
    "shape", "normalized_dims", "distribution", "layout", "grad_output", "affine", "parameters",
    "eps", "direction", "autograd",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CaseGroup:
    """A product of axes, and what it is there to catch."""

    catches: str
    axes: Mapping[str, tuple[Any, ...]]
    """Their values; other axes have their usual value."""
    dtypes: tuple[str, ...]


def _group(catches: str, *, dtypes: tuple[str, ...] = DTYPES, **axes: tuple[Any, ...]) -> CaseGroup:
    """Return a group; without a direction it is run backward, and as inference.

    Most implementations take another path in inference, which costs less than half to try.
    """
    return CaseGroup(catches, {"direction": BACKWARD + FORWARD, **axes}, dtypes)


def cases_of(
    group: CaseGroup, target: str, dtype: str, device: str, forward_only: bool
) -> Iterator[Case]:
    """Yield the cases of a group in one dtype; none if the group does not have the dtype."""
    axes = {name: group.axes.get(name, AXES[name].default) for name in _NESTING}
    if forward_only:
        axes["direction"] = FORWARD
    fixed = {"implementation": target, "dtype": dtype, "device": device}
    for values in product(*axes.values()) if dtype in group.dtypes else ():
        case = case_of({**fixed, **dict(zip(axes, values, strict=True))})
        if case.direction is not Direction.FORWARD:
            yield case
        # inference has no grad_output: the first one of the group stands for all
        elif case.grad_output == axes["grad_output"][0]:
            yield replace(case, grad_output=AXES["grad_output"].default[0])


_ODD_AND_EVEN = ((5, 31), (5, 64))  # kernels that load vectors take another path for each
_WIDTHS = (
    128, 256, 512, 768, 1024, 1280, 1600, 2048, 3072, 4096, 5120, 7168, 8192, 12288, 16385,
)  # fmt: skip
_AROUND_POWERS = (
    1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 129, 255, 257, 768, 1000, 1023,
    1024, 1025, 4096, 4097, 5120, 8191, 16384,
)  # fmt: skip
_CONSTANT = ("constant", "constant_1234", "constant_zero")
_NONFINITE = ("nan_row", "positive_infinity_row", "nan_after_row")
# by public bug report: the shapes it names
_REPORTED: dict[str, tuple[tuple[int, ...], ...]] = {
    "mlx_2238": ((1, 16),),
    "onnxruntime_21935": ((1, 256),),
    "onnxruntime_28463": ((1, 4),),
    "pytorch_40302": ((2, 32768),),
    "pytorch_51102": ((5, 4),),
    "pytorch_81090": ((100, 32),),
    "pytorch_108072": ((2, 2, 2),),
    "pytorch_162489": ((4, 64),),
    "pytorch_188372": ((3, 1),),
}
_MADE = tuple(name for name, made in DISTRIBUTIONS.items() if made not in REPORTED)


def _rows(counts: Sequence[int], *hidden: int) -> tuple[tuple[int, ...], ...]:
    return tuple(product(counts, hidden))


QUICK: tuple[CaseGroup, ...] = (
    _group(
        "eps left out, fixed, outside the root, or rounded to a narrow dtype", shape=_ODD_AND_EVEN,
        distribution=("normal", "tiny_variance"), eps=(0.0, 1e-8, 1e-6),
    ),
    _group(
        "special values of weight and bias: NaN, 0, 1, powers of two, large", shape=_ODD_AND_EVEN,
        parameters=(
            "zero_weight", "ones_weight", "power_of_two_weight", "nan_weight", "equal_elements",
            "large_bias",
        ),
    ),
    # within the tolerance of torch.allclose; in half precision such weights are 1
    _group(
        "a weight and a bias taken for the initial ones", shape=((5, 31),),
        parameters=("initial_within_8e-06",), dtypes=("float32", "float64"),
    ),
    _group("rows without a variance", shape=_ODD_AND_EVEN, distribution=_CONSTANT),
    _group(
        "a NaN or an infinity that is hidden or spreads to other rows", shape=_ODD_AND_EVEN,
        distribution=_NONFINITE,
    ),
    _group(
        "heads of attention taken for rows in order",
        shape=((2, 3, 5, 64), (3, 4, 2, 33), (3, 70, 33, 8)),
        layout=("heads_first",),
    ),
    _group(
        "strides of which one is taken for known",
        shape=((5, 64), (7, 33), (6, 40), (9, 32), (4, 3, 16), (3, 2, 5, 24), (2, 5, 3, 40)),
        layout=("any_view", "every_second"), grad_output=("any_view_normal",),
    ),
    _group(
        "an alignment on which the code depends", shape=((5, 64),), dtypes=("float32",),
        layout=("offset_4", "offset_8", "offset_12"),
    ),
    _group(
        "a later index of one axis: rows of another sequence, or a loop that ends too soon",
        shape=tuple(
            (*others[:at], 1103, *others[at:], 8)
            for others in ((2,), (1,), (2, 3), (2, 1, 3))
            for at in range(len(others) + 1)
        ),
    ),
    _group(
        "a later index of one normalized axis",
        shape=((5, 1103, 2), (5, 2, 1103), (5, 1103, 2, 3), (5, 2, 1103, 3), (5, 2, 3, 1103)),
        normalized_dims=(2, 3), affine=(Affine.BOTH, Affine.NONE),
    ),
    _group("one scale for all rows", shape=((7, 33), (5, 64)), distribution=("huge_row",)),
    _group("rows that fill blocks, of up to 4096", shape=((4, 64, 33), (4096, 33))),
    _group(
        "an axis of size one treated as no axis",
        shape=((1, 7, 33), (5, 1, 64), (1, 1, 33), (1, 3, 5, 64), (2, 1, 1, 33), (1, 2, 1, 3, 33)),
    ),
    _group(
        "the stride of an axis of size one", shape=((5, 1, 64), (2, 1, 3, 33)),
        layout=("sliced_middle", "sequence_first"),
    ),
    _group(
        "a sign, or whole numbers, on which the code depends", shape=((5, 200), (2, 150_529)),
        distribution=("log_probabilities", "deep_pixels", "pixels"), dtypes=("float32", "float64"),
    ),
    _group(
        "an offset or a distance between rows that is kept in 16 bits", shape=((5, 64),),
        layout=("offset_66000", "pitch_66000"), dtypes=("float32",),
    ),
    _group(
        "an axis identified by its size alone", shape=((5, 5), (7, 7, 7), (5, 5, 5, 5), (20, 6, 6)),
        layout=("contiguous", "transposed"),
    ),
    _group(
        "a normalized axis of size one", shape=((5, 4, 1), (5, 1, 33), (3, 5, 1)),
        normalized_dims=(2,), affine=(Affine.BOTH, Affine.NONE),
    ),
    _group(
        "one row with several axes, some of which share memory", shape=((5, 33), (3, 4, 40)),
        normalized_dims=(2, 3), layout=("expanded", "expanded_second"),
        grad_output=("shifted_normal", "nan_row"),
    ),
    _group("every axis normalised", shape=((2, 3, 5, 7),), normalized_dims=(4,)),
    _group(
        "tiles of images", shape=((2, 64, 7, 7), (2, 128, 8, 8), (2, 5, 24, 24)),
        normalized_dims=(3,), dtypes=("float32",),
    ),
    _group(
        "dweight and dbias summed in a narrow dtype, a block of rows left out", shape=((4100, 24),),
        grad_output=("shifted_normal", "ones", "few_rows"),
    ),
    _group(
        "a row or column left out of the gradients, a missing term of dx", shape=((67, 33),),
        grad_output=("one_row", "one_column", "centred_normal", "zero", "scaled_rows"),
        direction=BACKWARD,
    ),
    _group(
        "terms of dx that should cancel, gradients of unusual size",
        shape=((7, 33), (3, 1000)), grad_output=("inverse_weight", "normalised"),
        direction=BACKWARD,
    ),
    # eps is a fifth of variance + eps; N is odd; rows are more than a warp and no multiple of it
    _group(
        "a mistake in eps or in the mean that shows only in rows far from 0", shape=((40, 67),),
        distribution=("normal", "offset_1e1"), parameters=("normal", "power_of_two_weight"),
        grad_output=("shifted_normal", "inverse_weight"), eps=(0.25,), direction=BACKWARD,
    ),
    _group(
        "an infinity of dy that is hidden or spreads to other rows and columns",
        shape=((7, 33), (5, 64)), grad_output=("infinity_row",), direction=BACKWARD,
    ),
    # rstd is 1000 and dy 100: about a third of dx exceeds 65504, and no dweight or dbias does
    _group(
        "a clamped dx, which hides an overflow from loss scaling", shape=((7, 33), (5, 64)),
        dtypes=("float16",), distribution=("tiny_variance",), grad_output=("huge",), eps=(1e-6,),
        direction=BACKWARD,
    ),
    _group(
        "a crash for an empty x", shape=((0, 5), (3, 0), (0, 2, 5), (2, 0, 5)),
        dtypes=("float32", "bfloat16"),
    ),
    _group(
        "a crash for an empty x with several normalized axes", shape=((0, 2, 3, 5), (3, 2, 0, 5)),
        normalized_dims=(2, 3), dtypes=("float32",),
    ),
    _group(
        "a kernel specialised for a width that models use",
        shape=_rows((2,), *_WIDTHS),
    ),
    _group(
        "a tail that is wrong for one remainder of the row length, in long rows",
        shape=_rows((2,), *range(65, 97), *range(2049, 2081)), direction=BACKWARD,
    ),
    # 87,383 is a prime with every second bit set: blocks of any size leave partial sums over
    _group("an overflow of a 16-bit row index", shape=((87_383, 3),), grad_output=("ones",)),
    # the bound of a sum over so many rows exceeds 64 of them, unless dy is 0 in most rows
    _group(
        "a 16-bit row index in vectors, last rows left out of sums, rounded partial sums",
        shape=((87_383, 4),), grad_output=("few_rows",),
    ),
    _group("a later tile of rows and columns left out", shape=((300, 520),)),
    _group(
        "the last chunk of rows left out, tiles of many and long rows",
        shape=((103, 5, 1032), (130, 4125)), affine=(Affine.BOTH, Affine.NONE), direction=FORWARD,
    ),
)  # fmt: skip

FULL: tuple[CaseGroup, ...] = (
    *QUICK,
    _group(
        "what each distribution is made for", shape=((5, 64),),
        distribution=tuple(name for name in _MADE if name not in (*_CONSTANT, *_NONFINITE)),
    ),
    _group(
        "what each distribution is made for, in longer rows", shape=((17, 1000),),
        distribution=_MADE,
    ),
    _group(
        "a limit on y, which is large in long rows with an outlier", shape=((3, 10_007),),
        distribution=("outlier", "outlier_first", "one_hot"),
    ),
    _group(
        "tails of vectors and blocks, at sizes around powers of two",
        shape=_rows((1, 6), *_AROUND_POWERS),
    ),
    _group(
        "kernels that switch at 32 or 128 rows",
        shape=_rows((2, 31, 32, 67, 127, 128, 129, 160, 1000), 33, 64),
    ),
    *(
        _group(
            f"the bug reported as {name.replace('_', ' ')}", shape=shapes, distribution=(name,),
            eps=(1e-5, 1e-6),
        )
        for name, shapes in _REPORTED.items()
    ),
    _group(
        "one-pass statistics or rows left out where rows are many and long",
        shape=((300, 1040), (2001, 2003), (8209, 132), (87_383, 64), (5, 70_001)),
        distribution=("mixed_conditions",), dtypes=("float32", "bfloat16"), direction=BACKWARD,
    ),
    _group(
        "more axes than the usual two to four", shape=((2, 3, 1, 5, 7), (2, 3, 2, 2, 3, 2, 7)),
        normalized_dims=(1, 2, 3, 4, 5),
        layout=("contiguous", "channels_last", "transposed", "every_second", "reversed_axes"),
    ),
    _group(
        "cancellation that eps hides", shape=((7, 33), (3, 2, 2, 64)), normalized_dims=(1, 2),
        layout=("contiguous", "any_view"), distribution=("offset_1e2",), eps=(0.0,),
    ),
    _group(
        "more axes than a kernel has strides for", shape=((3, *(1,) * 32, 4, 40),),
        layout=("transposed", "every_second"),
    ),
    _group(
        "a missing term of dx, when dx is otherwise zero without eps", shape=((7, 33),),
        grad_output=("normalised",), eps=(0.0,), direction=BACKWARD,
    ),
    _group(
        "long rows: counts in a narrow dtype, running sums", shape=((2, 65537),),
        dtypes=("float32", "bfloat16", "float16"), distribution=("normal", "offset_1e1"),
    ),
    _group(
        "more than 2^20 elements per row, as in normalised images", shape=((2, 1_048_583),)
    ),
    _group(
        "activations of realistic size, with all gradients",
        shape=((10, 103, 1032), (41, 100, 768), (130, 4125)),
        dtypes=("float32", "bfloat16"), direction=BACKWARD,
    ),
    _group(
        "a 16-bit row index, with several normalized axes and any parameters",
        shape=((87_383, 2, 3),), normalized_dims=(2,), grad_output=("few_rows",),
        affine=tuple(Affine), dtypes=("float32",),
    ),
    _group(
        "a 16-bit row index, where x is not contiguous", shape=((87_383, 20),),
        layout=("padded_rows", "transposed"), grad_output=("few_rows",), dtypes=("float32",),
    ),
    _group(
        "a 16-bit row index, with frozen tensors", shape=((87_383, 5),), grad_output=("few_rows",),
        autograd=FROZEN, direction=BACKWARD, dtypes=("float32",),
    ),
    _group(
        "an overflow of a 16-bit row index, with two million elements", shape=((87_383, 32),),
        dtypes=("float32",),
    ),
    _group(
        "an index of rows or elements that is cut off, or blocks of them left out",
        shape=((270_001, 64), (13_001, 520), (64, 50_257)), dtypes=("float32",),
        grad_output=("few_rows",),
    ),
)  # fmt: skip
