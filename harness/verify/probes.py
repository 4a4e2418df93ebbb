"""Mistakes that no other function's outputs are like: each is asked for by inputs of its own.

What rounds differs from function to function, so that two with the same mistake lie as far from
each other as from the truth. Here are inputs on which one mistake alone comes to a known result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from harness.records import Case, Direction
from harness.verify.answers import outputs_of as outputs_for
from harness.verify.bounds import guarantee_of, unit_roundoff
from harness.verify.errors import measure_errors
from harness.verify.findings import Suspect
from harness.verify.guest import GuestError, Unmet
from harness.verify.scope import fitted, scope_of
from harness.verify.trial import exact_of, outputs_of
from implementations.contract import Implementation

__all__ = ["computed_in_float32", "narrow_sums"]

_ROWS = 4100  # more ones than bfloat16 (256) and float16 (2048) can count
_APART = 1e4  # ours: float32 rounds 5e8 times as coarsely as float64
_HALVES = {"float16", "bfloat16"}


def narrow_sums(implementation: Implementation, case: Case) -> Iterator[Suspect]:
    """Ask in which steps dweight and dbias are added up over the rows, by dbias.

    Counting to 4100, a narrow accumulator stops where adding 1 no longer changes it. Portions of
    the rows, each added up as it should be, lose a 1 between two large numbers in other portions.
    """
    counting = _probe(implementation, case, (_ROWS, 24))
    outputs = outputs_of(implementation, replace(counting, upstream="ones"))
    if outputs is None or outputs.dbias is None:
        return
    counted = float(outputs.dbias.double().max())
    name = None
    if counted < 0.9 * _ROWS:
        name = f"narrow_sums_in_{case.dtype}"
        how = f"over the rows in {case.dtype} itself: {_ROWS} ones came to {counted:g}"
    elif case.dtype in _HALVES and _portions_lose_a_one(implementation, counting):
        name = "portions_added_in_parameter_dtype"
        how = f"in portions of the rows, and rounds to {case.dtype} after each"
    if name is not None:
        yield Suspect(
            name=name,
            mistake=f"adds up dweight and dbias {how}",
            dtypes=(case.dtype,),
            outputs=("dweight", "dbias"),
            unexplained_ratio=0.0,
        )


def computed_in_float32(implementation: Implementation, case: Case) -> Iterator[Suspect]:
    """Ask whether the error in float64 is what float32 makes, and far from what float64 does.

    Without eps: another eps, a little off, is as small an error.
    """
    if case.dtype != "float64":
        return
    probe = _probe(implementation, case, (16, 64))
    if scope_of(implementation).eps is None:
        probe = replace(probe, eps=0.0)
    outputs = outputs_of(implementation, probe)
    if outputs is None:
        return
    inputs, reference = exact_of(replace(probe, implementation=""))
    wide = guarantee_of(implementation, probe)
    narrow = replace(wide, accumulate_dtype=torch.float32)
    by_wide, by_narrow = (
        measure_errors(outputs, inputs, probe, each, reference).outputs for each in (wide, narrow)
    )
    found = tuple(
        one.output
        for one, other in zip(by_wide, by_narrow, strict=True)
        if (one.bound_ratio or 0) > _APART and (other.bound_ratio or 0) <= 1
    )
    if found:
        yield Suspect(
            name="float64_in_float32",
            mistake="computes float64 in float32",
            dtypes=(case.dtype,),
            outputs=found,
            unexplained_ratio=0.0,
        )


def _probe(implementation: Implementation, case: Case, shape: tuple[int, ...]) -> Case:
    return fitted(
        implementation,
        Case(
            implementation=implementation.name,
            shape=shape,
            dtype=case.dtype,
            param_dtype=case.dtype,
            device=case.device,
            direction=Direction.FORWARD if implementation.forward_only else Direction.BACKWARD,
        ),
    )


def _portions_lose_a_one(implementation: Implementation, case: Case) -> bool:
    """Add up large, 1 and -large in the first row, the middle one and the last."""
    inputs, _ = exact_of(replace(case, implementation=""))
    assert inputs.dy is not None  # of a backward case
    # a quarter of its spacing: 1 is rounded away beside it, from above and from below
    large = 2 / unit_roundoff(inputs.dy.dtype) * 2
    dy = torch.zeros_like(inputs.dy)
    dy[0], dy[case.rows // 2], dy[-1] = large, 1, -large
    try:
        found = outputs_for(implementation, case, replace(inputs, dy=dy))
    except (GuestError, Unmet):
        exact_of.cache_clear()
        return False
    return found.dbias is not None and bool((found.dbias == 0).all())
