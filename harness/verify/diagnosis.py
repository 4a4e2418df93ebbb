"""Diagnosis: name the known mistakes whose mutants have outputs close to those of the target.

A mutant matches if, on every input where the target is clearly wrong, the distance between the two
is small compared to the error of the target. Each dtype is diagnosed by itself, since a function
may have another mistake in each. All outputs are compared together first, and one by one if no
mutant matches them together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from harness.numerics.outputs import OUTPUTS, Outputs
from harness.records import Case, Direction
from harness.verify.diagnosis_probes import (
    cancelling_variance,
    computed_in_float32,
    constant_eps,
    missing_gradient,
    narrow_sums,
    strided_read_as_dense,
)
from harness.verify.findings import Suspect
from harness.verify.mutants import WRONG, Mutant
from harness.verify.mutants.mutant import Stateful
from harness.verify.process_state import process_state_restored
from harness.verify.scope import fitted
from harness.verify.trial import Trial, first_case, outputs_of
from harness.verify.unexplained import MATCH_RATIO, unexplained
from implementations.contract import Implementation
from implementations.native import native

__all__ = ["Suspect", "diagnose"]

_MOST_CASES = 4  # of different kinds; trade-off: each is run on every mutant
_MOST_SUSPECTS = 3  # what a person reads
_CLEAR_RATIO = 10  # times the bound; closer to it, most of the error is rounding
_MOST_ELEMENTS = 1 << 15  # of one case, which is run on every mutant


def diagnose(implementation: Implementation, failures: Sequence[Trial]) -> tuple[Suspect, ...]:
    """Return the known mistakes that explain ``failures``, best first; empty if none does."""
    found: dict[tuple[str, tuple[str, ...]], Suspect] = {}
    for dtype in dict.fromkeys(each.case.dtype for each in failures):
        for suspect in _in_one_dtype(
            implementation, [each for each in failures if each.case.dtype == dtype]
        ):
            key = (suspect.name, suspect.outputs)
            if key in found:
                known = found[key]
                suspect = replace(
                    suspect,
                    dtypes=known.dtypes + suspect.dtypes,
                    unexplained_ratio=max(known.unexplained_ratio, suspect.unexplained_ratio),
                )
            found[key] = suspect
    return tuple(found.values())


def _in_one_dtype(implementation: Implementation, failures: Sequence[Trial]) -> list[Suspect]:
    for plain in (
        missing_gradient(failures),
        strided_read_as_dense(implementation, failures),
        cancelling_variance(implementation, failures),
    ):
        if found := list(plain):
            return found
    # a function that normalises the last axis alone has another mistake where there are more
    on_one_axis = [each for each in failures if each.case.normalized_dims == 1]
    for kept in (failures, on_one_axis or failures):
        clear = _clear_failures(kept)
        computed = {each: outputs_of(implementation, each) for each in clear}
        usable = {case: outputs for case, outputs in computed.items() if outputs is not None}
        if together := _matches(usable, OUTPUTS):
            return together
    case, wrong_outputs = (
        failures[0].case,
        {name for each in failures for name in each.outputs_beyond()},
    )
    apart: list[Suspect] = list(constant_eps(implementation, case)) if wrong_outputs else []
    if wrong_outputs:
        apart += computed_in_float32(implementation, case)
    if {"dweight", "dbias"} & wrong_outputs:
        apart += narrow_sums(implementation, case)
    if {"dx", "dweight"} & wrong_outputs:
        apart += _narrow_statistics(implementation, case)
    explained = {name for each in apart for name in each.outputs}
    for name in OUTPUTS:
        if name not in explained:
            with_name = {case: each for case, each in usable.items() if name in clear[case]}
            apart += _matches(with_name, (name,))[:1]
    return apart


def _matches(computed: dict[Case, Outputs], names: tuple[str, ...]) -> list[Suspect]:
    """Return the mutants that match the named outputs in every case, best first."""
    suspects = []
    for mutant in WRONG:
        ratio = _most_unexplained_by(mutant, computed, names)
        if ratio is not None and ratio < MATCH_RATIO:
            suspects.append(
                Suspect(
                    name=mutant.name,
                    mistake=mutant.mistake,
                    dtypes=(next(iter(computed)).dtype,),
                    outputs=names,
                    unexplained_ratio=ratio,
                )
            )
    return sorted(suspects, key=lambda each: each.unexplained_ratio)[:_MOST_SUSPECTS]


def _clear_failures(failures: Sequence[Trial]) -> dict[Case, set[str]]:
    """Return small, clear failures of different kinds, each with its clearly wrong outputs.

    Rows of one element come last, and before them rows that are not normal: where the variance is
    0 or overflows, right and wrong code differ by NaN and by the order of operations.
    """
    chosen: dict[tuple[object, ...], Case] = {}
    clear = {}

    def rank(trial: Trial) -> tuple[bool, bool, int]:
        case = trial.case
        return case.hidden == 1, case.distribution != "normal", case.rows * case.hidden

    for each in sorted(failures, key=rank):
        case = each.case
        wrong_outputs = each.outputs_beyond(_CLEAR_RATIO)
        if not wrong_outputs or not 16 <= case.rows * case.hidden <= _MOST_ELEMENTS:
            continue
        kind = (
            case.distribution,
            case.normalized_dims,
            case.affine,
            case.eps,
            case.grad_output,
            case.parameters,
        )
        if chosen.setdefault(kind, case) is case:
            clear[case] = wrong_outputs
        if len(chosen) == _MOST_CASES:
            break
    return clear


def _most_unexplained_by(
    mutant: Mutant, computed: dict[Case, Outputs], names: tuple[str, ...]
) -> float | None:
    """Return the largest distance over the cases, up to the first without a match; None for none.

    Most mutants do not match the first case.
    """
    largest = None
    for case, outputs in computed.items():
        if case.dtype not in mutant.dtypes:
            continue
        distance = _unexplained_by(outputs, mutant, case, names)
        if distance is not None:
            largest = max(largest or 0.0, distance)
            if not distance < MATCH_RATIO:
                break
    return largest


def _unexplained_by(
    target: Outputs, mutant: Mutant, case: Case, names: tuple[str, ...]
) -> float | None:
    """Return the distance of target and mutant over the target's error; None without an error."""
    wrong = replace(native, name=mutant.name, function=mutant.fresh(), declared=False)
    with process_state_restored():  # some mutants change it
        if isinstance(mutant.function, Stateful):  # it must start from the target's state
            outputs_of(wrong, first_case(mutant.name, case.dtype, case.device))
        outputs = outputs_of(wrong, case)
    if outputs is None:
        return float("inf")
    return unexplained(target, outputs, case, names)


def _narrow_statistics(implementation: Implementation, case: Case) -> Iterator[Suspect]:
    """Compare with a mean and rstd kept in a narrow dtype, on rows far from 0.

    Only there does the rounding of the mean exceed that of the gradients themselves.
    """
    kept = next((each for each in WRONG if each.name == f"statistics_kept_in_{case.dtype}"), None)
    if kept is None:
        return
    probe = fitted(
        implementation,
        first_case(implementation.name, case.dtype, case.device),
        shape=(16, 64),
        distribution="offset_1e2",
        direction=Direction.BACKWARD,
    )
    outputs = outputs_of(implementation, probe)
    if outputs is None:
        return
    left = {name: _unexplained_by(outputs, kept, probe, (name,)) for name in ("dx", "dweight")}
    explained = {
        name: each for name, each in left.items() if each is not None and each < MATCH_RATIO
    }
    if explained:
        yield Suspect(
            name=kept.name,
            mistake=kept.mistake,
            dtypes=(case.dtype,),
            outputs=tuple(explained),
            unexplained_ratio=max(explained.values()),
        )
