"""Which known mistake a wrong function makes: the mutants whose outputs come nearest to its own.

A match means: on every input where the target is clearly wrong, the mutant is wrong by the same
amount in the same elements, so that the distance between the two is small beside the error of
the target. Dtypes are looked at one by one, since a function may go wrong in each in its own way;
outputs together first, and one by one if no mistake explains them together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from harness.numerics.error_measurement import Outputs
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
from harness.verify.mutants.mutant import Remembering
from harness.verify.scope import fitted
from harness.verify.trial import Trial, exact_of, first_case, outputs_of
from implementations.contract import Implementation
from implementations.native import native

__all__ = ["Suspect", "diagnose"]

_MOST_CASES = 4  # ours: inputs of different kinds; more of them name no other mistake
_MOST_SUSPECTS = 3  # ours: the fourth best explanation is none
# of the target's own error; what explains it leaves less than 0.03 of it, what does not over 0.5
_ALIKE = 0.2
_CLEAR_RATIO = 10  # ours: times the bound; nearer to it, roundings are most of what is off
_MOST_ELEMENTS = 1 << 15  # of one case, which every mutant is asked
_OUTPUTS = ("y", "dx", "dweight", "dbias")


def diagnose(implementation: Implementation, failures: Sequence[Trial]) -> tuple[Suspect, ...]:
    """Return the known mistakes that explain ``failures``, best first; none if none does."""
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
        strided_read_as_dense(failures),
        cancelling_variance(implementation, failures),
    ):
        if found := list(plain):
            return found
    clear = _telling(failures)
    computed = {each: outputs_of(implementation, each) for each in clear}
    usable = {case: outputs for case, outputs in computed.items() if outputs is not None}
    together = _matches(usable, _OUTPUTS)
    if together:
        return together
    case, broken = failures[0].case, {name for each in failures for name in _broken(each)}
    apart: list[Suspect] = list(constant_eps(implementation, case)) if broken else []
    if broken:
        apart += computed_in_float32(implementation, case)
    if {"dweight", "dbias"} & broken:
        apart += narrow_sums(implementation, case)
    if {"dx", "dweight"} & broken:
        apart += _narrow_statistics(implementation, case)
    explained = {name for each in apart for name in each.outputs}
    for name in _OUTPUTS:
        if name not in explained:
            telling = {case: each for case, each in usable.items() if name in clear[case]}
            apart += _matches(telling, (name,))[:1]
    return apart


def _broken(trial: Trial, ratio: float = 1) -> set[str]:
    """Names of the outputs that are so many times their bound off, or NaN."""
    outputs = trial.errors.outputs if trial.errors else ()
    return {
        each.output
        for each in outputs
        if each.bound_ratio is not None and not each.bound_ratio <= ratio
    }


def _matches(computed: dict[Case, Outputs], names: tuple[str, ...]) -> list[Suspect]:
    """Return the mutants that explain the outputs of those names in every case, best first."""
    suspects = []
    for mutant in WRONG:
        distances = [
            _unexplained(outputs, mutant, case, names)
            for case, outputs in computed.items()
            if case.dtype in mutant.dtypes
        ]
        known = [each for each in distances if each is not None]
        if known and max(known) < _ALIKE:
            suspects.append(
                Suspect(
                    name=mutant.name,
                    mistake=mutant.mistake,
                    dtypes=(next(iter(computed)).dtype,),
                    outputs=names,
                    unexplained_ratio=max(known),
                )
            )
    return sorted(suspects, key=lambda each: each.unexplained_ratio)[:_MOST_SUSPECTS]


def _telling(failures: Sequence[Trial]) -> dict[Case, set[str]]:
    """Pick failures of different kinds that are small and clear, and which outputs are so."""
    chosen: dict[tuple[object, ...], Case] = {}
    clear = {}
    for each in sorted(failures, key=lambda trial: trial.case.rows * trial.case.hidden):
        case = each.case
        broken = _broken(each, _CLEAR_RATIO)
        if not broken or not 16 <= case.rows * case.hidden <= _MOST_ELEMENTS:
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
            clear[case] = broken
        if len(chosen) == _MOST_CASES:
            break
    return clear


def _unexplained(
    target: Outputs, mutant: Mutant, case: Case, names: tuple[str, ...]
) -> float | None:
    """Distance of target and mutant over the target's error; None if there is none to explain."""
    wrong = replace(native, name=mutant.name, function=mutant.fresh(), declared=False)
    if isinstance(mutant.function, Remembering):  # as the target did, it remembers the first case
        outputs_of(wrong, first_case(mutant.name, case.dtype, case.device))
    found = outputs_of(wrong, case)
    if found is None:
        return float("inf")
    apart = error = 0.0
    for name, exact in _exact(case).items():
        mine, theirs = getattr(target, name), getattr(found, name)
        if name not in names or mine is None or theirs is None:
            continue
        # what is right rounds too, and so does every mutant: only what is beyond that is an error
        exact = exact.to(mine.dtype)
        mine, theirs, exact = (each.double().flatten() for each in (mine, theirs, exact))
        finite = torch.isfinite(mine) & torch.isfinite(theirs) & torch.isfinite(exact)
        if not bool((torch.isfinite(mine) == torch.isfinite(theirs)).all()):
            return float("inf")
        # each output by its own size: gradients of parameters are sums over many rows
        size = float(exact[finite].norm()) or 1.0
        apart += (float((mine - theirs)[finite].norm()) / size) ** 2
        error += (float((mine - exact)[finite].norm()) / size) ** 2
    return (apart / error) ** 0.5 if error else None


def _narrow_statistics(implementation: Implementation, case: Case) -> Iterator[Suspect]:
    """Compare on rows far from 0 with what a mean and rstd kept in a narrow dtype come to.

    Only there does the rounding of the mean stand out from that of the gradients themselves.
    """
    kept = next((each for each in WRONG if each.name == f"statistics_kept_in_{case.dtype}"), None)
    if kept is None:
        return
    probe = fitted(
        implementation,
        Case(
            implementation=implementation.name,
            shape=(16, 64),
            dtype=case.dtype,
            param_dtype=case.dtype,
            device=case.device,
            distribution="offset_1e2",
            direction=Direction.BACKWARD,
        ),
    )
    outputs = outputs_of(implementation, probe)
    if outputs is None:
        return
    left = {name: _unexplained(outputs, kept, probe, (name,)) for name in ("dx", "dweight")}
    explained = {name: each for name, each in left.items() if each is not None and each < _ALIKE}
    if explained:
        yield Suspect(
            name=kept.name,
            mistake=kept.mistake,
            dtypes=(case.dtype,),
            outputs=tuple(explained),
            unexplained_ratio=max(explained.values()),
        )


def _exact(case: Case) -> dict[str, Tensor]:
    """The exact outputs of a case, rounded to float64."""
    _, reference = exact_of(replace(case, implementation=""))
    blocks = list(reference)
    found = {"y": torch.cat([each.y[0] for each in blocks])}
    if blocks[0].dx is not None:
        found["dx"] = torch.cat([each.dx[0] for each in blocks if each.dx is not None])
        for name in ("dweight", "dbias"):
            found[name] = torch.stack([getattr(each, name)[0] for each in blocks]).sum(0)
    return found
