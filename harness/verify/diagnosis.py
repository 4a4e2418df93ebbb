"""Which known mistake a wrong function makes: the mutants whose outputs come nearest to its own.

A match means: on every input where the target is clearly wrong, the mutant is wrong by the same
amount in the same elements, so that the distance between the two is small beside the error of
either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from harness.records import Case
from harness.verify.errors import Outputs
from harness.verify.mutants import WRONG, Mutant
from harness.verify.mutants.mutant import Remembering
from harness.verify.trial import Trial, exact_of, first_case, outputs_of
from implementations.contract import Algorithm, Implementation

__all__ = ["Suspect", "diagnose"]

_MOST_CASES = 4  # ours: inputs of different kinds; more of them name no other mistake
_ALIKE = 0.2  # of the target's own error: a fifth of what is to be explained may stay unexplained


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A known mistake that explains what was seen."""

    name: str
    mistake: str
    unexplained_ratio: float
    """Distance from the mutant's outputs over that from the exact ones, at worst over cases."""


def diagnose(implementation: Implementation, failures: Sequence[Trial]) -> tuple[Suspect, ...]:
    """Return the known mistakes that explain ``failures``, best first; none if none does."""
    cases = _telling(failures)
    if not cases:
        return ()
    computed = {each: outputs_of(implementation, each) for each in cases}
    suspects = []
    for mutant in WRONG:
        distances = [
            _unexplained(outputs, mutant, each)
            for each, outputs in computed.items()
            if outputs is not None and each.dtype in mutant.dtypes
        ]
        known = [each for each in distances if each is not None]
        if known and max(known) < _ALIKE:
            suspects.append(
                Suspect(name=mutant.name, mistake=mutant.mistake, unexplained_ratio=max(known))
            )
    return tuple(sorted(suspects, key=lambda each: each.unexplained_ratio)[:3])


def _telling(failures: Sequence[Trial]) -> list[Case]:
    """Pick failures with values to compare, of different kinds, small ones first."""
    chosen: dict[tuple[object, ...], Case] = {}
    for each in sorted(failures, key=lambda trial: trial.case.rows * trial.case.hidden):
        case = each.case
        if each.errors is None or case.rows * case.hidden < 16:
            continue
        kind = (case.distribution, case.normalized_dims, case.affine, case.eps, case.upstream)
        chosen.setdefault(kind, case)
    return list(chosen.values())[:_MOST_CASES]


def _unexplained(target: Outputs, mutant: Mutant, case: Case) -> float | None:
    """Distance of target and mutant over the target's error; None if there is none to explain."""
    wrong = Implementation(
        name=mutant.name,
        function=mutant.fresh(),
        source="mutant",
        algorithm=Algorithm.TWO_PASS,
    )
    if isinstance(mutant.function, Remembering):  # as the target did, it remembers the first case
        outputs_of(wrong, first_case(mutant.name, case.dtype, case.device))
    found = outputs_of(wrong, case)
    if found is None:
        return float("inf")
    apart = error = 0.0
    for name, exact in _exact(case).items():
        mine, theirs = getattr(target, name), getattr(found, name)
        if mine is None or theirs is None:
            continue
        mine, theirs, exact = (each.double().flatten() for each in (mine, theirs, exact))
        finite = torch.isfinite(mine) & torch.isfinite(theirs) & torch.isfinite(exact)
        if not bool((torch.isfinite(mine) == torch.isfinite(theirs)).all()):
            return float("inf")
        # each output by its own size: gradients of parameters are sums over many rows
        size = float(exact[finite].norm()) or 1.0
        apart += (float((mine - theirs)[finite].norm()) / size) ** 2
        error += (float((mine - exact)[finite].norm()) / size) ** 2
    return (apart / error) ** 0.5 if error else None


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
