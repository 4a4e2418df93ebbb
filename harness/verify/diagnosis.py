"""Which known mistake a wrong function makes: the mutants whose outputs come nearest to its own.

A match means: on every input where the target is clearly wrong, the mutant is wrong by the same
amount in the same elements, so that the distance between the two is small beside the error of
the target. Dtypes are looked at one by one, since a function may go wrong in each in its own way;
outputs together first, and one by one if no mistake explains them together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from harness.records import Case, Direction
from harness.verify.errors import Outputs
from harness.verify.mutants import WRONG, Mutant
from harness.verify.mutants.mutant import Remembering
from harness.verify.trial import Trial, exact_of, first_case, outputs_of
from implementations import adopt
from implementations.contract import Implementation

__all__ = ["Suspect", "diagnose"]

_MOST_CASES = 4  # ours: inputs of different kinds; more of them name no other mistake
_MOST_SUSPECTS = 3  # ours: the fourth best explanation is none
# of the target's own error; what explains it leaves less than 0.03 of it, what does not over 0.5
_ALIKE = 0.2
_ROWS = 4100  # more ones than bfloat16 (256) and float16 (2048) can count
_OUTPUTS = ("y", "dx", "dweight", "dbias")


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A known mistake that explains what was seen."""

    name: str
    mistake: str
    """What the target does, as the end of a sentence that begins with "it"."""
    dtypes: tuple[str, ...]
    """In which it explains what was seen."""
    outputs: tuple[str, ...]
    """Which outputs it explains."""
    unexplained_ratio: float
    """Distance from the mutant's outputs over that from the exact ones, at worst over cases."""


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
    cases = _telling(failures)
    if not cases:
        return []
    computed = {each: outputs_of(implementation, each) for each in cases}
    usable = {case: outputs for case, outputs in computed.items() if outputs is not None}
    together = _matches(usable, _OUTPUTS)
    if together:
        return together
    apart = [
        *_narrow_sums(implementation, cases[0], failures),
        *_narrow_statistics(implementation, cases[0], failures),
    ]
    explained = {name for each in apart for name in each.outputs}
    for name in sorted(_broken(failures) - explained, key=_OUTPUTS.index):
        apart += _matches(usable, (name,))[:1]
    return apart


def _broken(failures: Sequence[Trial]) -> set[str]:
    """Names of the outputs that are outside their bound."""
    return {
        output.output
        for each in failures
        if each.errors is not None
        for output in each.errors.outputs
        if output.bound_ratio is not None and not output.bound_ratio <= 1
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


def _telling(failures: Sequence[Trial]) -> list[Case]:
    """Pick failures with values to compare, of different kinds, small ones first."""
    chosen: dict[tuple[object, ...], Case] = {}
    for each in sorted(failures, key=lambda trial: trial.case.rows * trial.case.hidden):
        case = each.case
        if each.errors is None or case.rows * case.hidden < 16:
            continue
        kind = (
            case.distribution,
            case.normalized_dims,
            case.affine,
            case.eps,
            case.upstream,
            case.parameters,
        )
        chosen.setdefault(kind, case)
    return list(chosen.values())[:_MOST_CASES]


def _unexplained(
    target: Outputs, mutant: Mutant, case: Case, names: tuple[str, ...]
) -> float | None:
    """Distance of target and mutant over the target's error; None if there is none to explain."""
    wrong = adopt(mutant.fresh(), mutant.name)
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
        mine, theirs, exact = (each.double().flatten() for each in (mine, theirs, exact))
        finite = torch.isfinite(mine) & torch.isfinite(theirs) & torch.isfinite(exact)
        if not bool((torch.isfinite(mine) == torch.isfinite(theirs)).all()):
            return float("inf")
        # each output by its own size: gradients of parameters are sums over many rows
        size = float(exact[finite].norm()) or 1.0
        apart += (float((mine - theirs)[finite].norm()) / size) ** 2
        error += (float((mine - exact)[finite].norm()) / size) ** 2
    return (apart / error) ** 0.5 if error else None


def _narrow_sums(
    implementation: Implementation, case: Case, failures: Sequence[Trial]
) -> Iterator[Suspect]:
    """Count to 4100 by dbias: a narrow accumulator stops where adding 1 no longer changes it."""
    if not {"dweight", "dbias"} & _broken(failures):
        return
    counting = Case(
        implementation=implementation.name,
        shape=(_ROWS, 24),
        dtype=case.dtype,
        param_dtype=case.dtype,
        device=case.device,
        upstream="ones",
        direction=Direction.BACKWARD,
    )
    outputs = outputs_of(implementation, counting)
    if outputs is None or outputs.dbias is None:
        return
    counted = float(outputs.dbias.double().max())
    if counted < 0.9 * _ROWS:
        yield Suspect(
            name=f"narrow_sums_in_{case.dtype}",
            mistake=(
                f"adds up dweight and dbias over the rows in {case.dtype} itself: "
                f"{_ROWS} ones came to {counted:g}"
            ),
            dtypes=(case.dtype,),
            outputs=("dweight", "dbias"),
            unexplained_ratio=0.0,
        )


def _narrow_statistics(
    implementation: Implementation, case: Case, failures: Sequence[Trial]
) -> Iterator[Suspect]:
    """Compare on rows far from 0 with what a mean and rstd kept in a narrow dtype come to.

    Only there does the rounding of the mean stand out from that of the gradients themselves.
    """
    kept = next((each for each in WRONG if each.name == f"statistics_kept_in_{case.dtype}"), None)
    if kept is None or not {"dx", "dweight"} & _broken(failures):
        return
    probe = Case(
        implementation=implementation.name,
        shape=(16, 64),
        dtype=case.dtype,
        param_dtype=case.dtype,
        device=case.device,
        distribution="offset_1e2",
        direction=Direction.BACKWARD,
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
