"""Why do cases fail? The known mistakes that give the same outputs, and where they show.

A mutant matches if, wherever the target is clearly wrong, the distance between the two is small
compared to the error of the target. All outputs are compared together first; if no mutant matches
them together, each wrong output is compared by itself, together with those that are right. Several
mutants may match: further cases tell them apart, and an output has one explanation at most.
The rounding of one pass differs from function to function, so that no mutant matches: it is
recognised by its error bound. The sentence that names a mistake is the
first line of the mutant's docstring in harness/mutants.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from harness.cases.axes import changed
from harness.cases.inputs import Inputs, UnrepresentableError, make_inputs
from harness.mutants import WRONG, Mutant
from harness.numerics import OUTPUTS, Outputs, Reference, bound_ratios, error_bound_of, status_of
from harness.records import Case, Status
from harness.records.finding import Finding, Severity
from harness.records.text import grouped
from harness.run import Judged, exact_of, process_state_restored
from harness.run.attempt import attempt
from harness.verify.cases import first_case
from harness.verify.in_scope import scope_of
from harness.verify.trigger import Further, conditions_of_failures
from implementations.contract import Algorithm, Implementation, Reduction
from implementations.native import native

__all__ = ["Mistake", "causes_of", "mistakes_of"]

_MATCH_RATIO = 0.2
"""Of the target's own error; the right mutant leaves less than 0.03 of it, any other over 0.5."""
_CLEAR_RATIO = 10  # times the bound; closer to it, most of the error is rounding
_MOST_COMPARED = 4  # cases of different kinds; trade-off: each is run on every mutant
_MOST_CONFIRMED = 8  # further ones, small to large, each run on the mutants that match
_LEAST_CONFIRMED = 0.5  # of those: a target may make a second mistake in some
_MOST_MISTAKES = 2  # what a person reads
_MOST_ELEMENTS = 1 << 15  # of one case, which is run on every mutant
_MOST_JUDGED = 40  # failures, those with the largest errors first
_ONE_PASS = (
    "computes the variance as E[x^2] - E[x]^2, which cancels where the mean is large beside the "
    "deviations"
)


class Mistake(NamedTuple):
    """What a target does in one dtype, and how well that explains its results."""

    text: str
    """The end of a sentence that begins with "it"."""
    outputs: tuple[str, ...]
    """Those that show it."""
    misfit: float = _MATCH_RATIO
    """The part of the error that is not explained; the largest of all cases compared."""


def causes_of(
    target: Implementation,
    failures: Sequence[Judged],
    trials: Sequence[Judged],
    further: Further,
    sizes: Sequence[int] = (),
) -> Iterator[Finding]:
    """Yield known mistakes that explain the failures, best first, and where those are.

    Args:
        target: what failed.
        failures: its failed cases.
        trials: all of its cases.
        further: tries further cases.
        sizes: at which the target may branch, as its source says.
    """
    by_dtype = grouped((trial.case.dtype, trial) for trial in failures)
    found: dict[tuple[str, tuple[str, ...]], tuple[float, list[str]]] = {}
    for dtype, failed in by_dtype.items():
        known = {text for text, _ in found}
        for text, outputs, misfit in mistakes_of(target, failed, known):
            least, dtypes = found.get((text, outputs), (misfit, []))
            found[text, outputs] = min(least, misfit), [*dtypes, dtype]
    best = sorted(found.items(), key=lambda item: (-len(item[1][1]), item[1][0]))
    for (text, outputs), (_, dtypes) in best[:_MOST_MISTAKES]:
        shown = "" if len(outputs) > 1 else f", as {outputs[0]} shows"
        yield Finding("mistake", Severity.CAUSE, f"{text}{shown}", tuple(dtypes), outputs)
    for dtype, failed in by_dtype.items():
        if any(trial.status is Status.CRASHED for trial in failed):
            continue  # a further case may crash, too
        tried = [trial for trial in trials if trial.case.dtype == dtype]
        for trigger in conditions_of_failures(tried, further, sizes):
            yield Finding("trigger", Severity.CAUSE, trigger.text, (dtype,), trigger.conditions)


def mistakes_of(
    target: Implementation, failures: Sequence[Judged], known: Iterable[str] = ()
) -> list[Mistake]:
    """Return the known mistakes that explain failures in one dtype, one per output, best first.

    Args:
        target: what failed.
        failures: its failed cases.
        known: mistakes that explain another dtype; they are preferred.
    """
    # a function that normalises the last axis alone has another mistake where there are more
    on_one_axis = [trial for trial in failures if trial.case.normalized_dims == 1]
    for kept in (failures, on_one_axis or failures):
        if found := _best_match(target, kept, None, known):
            return [found]
    if _is_one_pass(target, failures):
        return [Mistake(_ONE_PASS, OUTPUTS)]
    mistakes = (_best_match(target, failures, name, known) for name in OUTPUTS)
    return sorted(filter(None, mistakes), key=lambda mistake: mistake.misfit)


# --- what is compared ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sample:
    """A call in which the target is clearly wrong."""

    case: Case
    inputs: Inputs
    reference: Reference
    outputs: Outputs
    """Of the target."""
    wrong: frozenset[str]
    """The outputs beyond their bounds."""
    exact: Mapping[str, Tensor]
    """The exact outputs, rounded to float64."""

    def names(self, name: str | None) -> set[str]:
        """Return the outputs to compare: all, or one and those that are right."""
        return {*OUTPUTS} - (self.wrong - {name} if name else set())

    def outputs_of(self, target: Implementation) -> Outputs | None:
        """Return the outputs of another function for the same inputs; None if it raises."""
        exact = self.inputs, self.reference
        return attempt(target, self.case, exact=lambda _: exact, is_judged=False).outputs


def _sampled(
    target: Implementation, case: Case, name: str | None, factor: float = 1.0
) -> _Sample | None:
    """Call the target for a case with x multiplied by a factor; None if it is not clearly wrong.

    Args:
        target: what failed.
        case: within its scope.
        name: of the output that is clearly wrong; None for any.
        factor: of x.
    """
    try:
        inputs = make_inputs(case)
    except UnrepresentableError:
        return None
    inputs = inputs if factor == 1 else replace(inputs, x=inputs.x * factor)
    reference = Reference(inputs, case)
    judged = attempt(target, case, exact=lambda _: (inputs, reference))
    if judged.outputs is None or not _is_clear(judged, name):
        return None
    wrong = frozenset(judged.outputs_beyond())
    return _Sample(case, inputs, reference, judged.outputs, wrong, _exact(reference))


def _is_clear(judged: Judged, name: str | None) -> bool:
    """Whether the output of a name, or any if that is None, is clearly wrong."""
    beyond = judged.outputs_beyond(_CLEAR_RATIO)
    return name in beyond if name else bool(beyond)


def _exact(reference: Reference) -> dict[str, Tensor]:
    """Return exact outputs, rounded to float64."""
    blocks = list(reference)
    names = ("y",) if blocks[0].dx is None else OUTPUTS
    parts = {name: torch.cat([getattr(block, name)[0] for block in blocks]) for name in names}
    return {name: own if name in {"y", "dx"} else own.sum(0) for name, own in parts.items()}


def _clear_failures(
    target: Implementation, failures: Iterable[Judged], name: str | None
) -> tuple[list[_Sample], list[_Sample]]:
    """Return small, clear failures of different kinds, and further ones, small to large.

    Rows of one element come last, and before them rows that are not normal: where the variance is
    0 or overflows, right and wrong code differ by NaN and by the order of operations.
    """

    def rank(case: Case) -> tuple[bool, bool, int]:
        return case.hidden == 1, case.distribution != "normal", case.rows * case.hidden

    clear = [trial.case for trial in failures if _is_clear(trial, name)]
    clear = [case for case in clear if 16 <= case.rows * case.hidden <= _MOST_ELEMENTS]
    kinds: dict[tuple[object, ...], Case] = {}
    for case in sorted(clear, key=rank):
        values = (case.distribution, case.affine, case.grad_output, case.parameters)
        kinds.setdefault((*values, case.normalized_dims, case.eps), case)
    first = [*kinds.values()][:_MOST_COMPARED]
    others = sorted({*clear} - {*first}, key=lambda case: (rank(case)[0], rank(case)[2], case.id))
    others = others[:: -(-len(others) // _MOST_CONFIRMED) or 1]
    samples = ([_sampled(target, case, name) for case in cases] for cases in (first, others))
    compared, further = ([one for one in found if one is not None] for found in samples)
    return compared, further


# --- mutants -------------------------------------------------------------------------------------


def _best_match(
    target: Implementation, failures: Sequence[Judged], name: str | None, known: Iterable[str]
) -> Mistake | None:
    """Return the mistake whose mutant explains the failures best; None if none does.

    Args:
        target: what failed.
        failures: its failed cases.
        name: of the output to explain; None for all.
        known: mistakes that explain another dtype; they are preferred.
    """
    compared, further = _clear_failures(target, failures, name)
    if not compared:
        return None
    # where a mistake shows is found by itself: mutants make theirs in every call
    anywhere = {mutant.mistake: replace(mutant, where=()) for mutant in reversed(WRONG)}
    misfits = {mutant: _misfit(mutant, compared, name) for mutant in reversed(anywhere.values())}
    misfits = {
        mutant: misfit
        for mutant, misfit in misfits.items()
        if misfit < _MATCH_RATIO and _is_confirmed(mutant, further, name)
    }
    for probe in _probes(target, compared[0].case, name) if len(misfits) > 1 else ():
        again = {
            mutant: max(old, _misfit(mutant, [probe], name)) for mutant, old in misfits.items()
        }
        misfits = {mutant: misfit for mutant, misfit in again.items() if misfit < _MATCH_RATIO}
    if not misfits:
        return None
    least = min(misfits.values())
    rivals = [mutant for mutant, misfit in misfits.items() if misfit <= max(2 * least, _SAME)]
    rivals = [mutant for mutant in rivals if mutant.mistake in known] or rivals
    rivals = [mutant for mutant in rivals if not mutant.keeps_state] or rivals
    is_eps = len(rivals) > 1 and all(mutant.is_of_eps for mutant in rivals)
    text = _WITHOUT_EPS if is_eps else rivals[0].mistake
    return Mistake(text, (name,) if name else OUTPUTS, least)


_SAME = 1e-3  # mutants that leave less of the error both explain all of it
_WITHOUT_EPS = "does not add the given eps to the variance"
_PROBED = tuple(product(("normal", "mixed_scales"), (None, 0.25, 1e-3), (1.0, 1e-3, 1e-7)))
"""Distributions, eps and factors of x: an eps shows where it is not small beside the variance."""


def _probes(target: Implementation, case: Case, name: str | None) -> Iterator[_Sample]:
    """Yield calls that tell mistakes apart, made from a failed case."""
    for distribution, eps, factor in _PROBED:
        probe = changed(case, "distribution", distribution)
        probe = probe and changed(probe, "eps", case.eps if eps is None else eps)
        if probe is None or scope_of(target).fit(probe) != probe:
            continue
        if (sample := _sampled(target, probe, name, factor)) is not None:
            yield sample


def _is_confirmed(mutant: Mutant, samples: Sequence[_Sample], name: str | None) -> bool:
    """Whether a mutant explains most further failures."""
    found = [_misfit(mutant, [sample], name) < _MATCH_RATIO for sample in samples]
    return sum(found) >= _LEAST_CONFIRMED * len(found)


def _misfit(mutant: Mutant, samples: Sequence[_Sample], name: str | None) -> float:
    """Return the largest distance over the samples, up to the first one without a match."""
    wrong = replace(native, name=mutant.name, function=mutant.fresh(), declared=False)
    found: list[float] = []
    for sample in samples:
        case = sample.case
        if case.dtype in mutant.dtypes:
            with process_state_restored():  # some mutants change it
                if mutant.keeps_state:  # it must start from the target's state
                    first = first_case(mutant.name, case.dtype, case.device)
                    attempt(wrong, first, is_judged=False)
                suspected = sample.outputs_of(wrong)
            distance = _unexplained(sample, suspected, sample.names(name))
            found += [] if distance is None else [distance]
            if found and not max(found) < _MATCH_RATIO:
                break
    return max(found, default=float("inf"))


def _unexplained(sample: _Sample, suspected: Outputs | None, names: set[str]) -> float | None:
    """Return the distance of two results over the target's error; None without an error.

    Args:
        sample: a call of the target.
        suspected: outputs that it would have with the suspected mistake.
        names: of the outputs that are compared.
    """
    if suspected is None:
        return float("inf")
    distance = error = 0.0
    for name, exact in sample.exact.items():
        own, guess = getattr(sample.outputs, name), getattr(suspected, name)
        if name not in names or own is None or guess is None:
            continue
        # right outputs and mistakes round too: only the distance to the rounded result is an error
        exact = exact.to(own.dtype)
        # on the CPU, where the exact result is
        own, guess, exact = (tensor.cpu().double().flatten() for tensor in (own, guess, exact))
        finite = torch.isfinite(own) & torch.isfinite(guess) & torch.isfinite(exact)
        if not bool((torch.isfinite(own) == torch.isfinite(guess)).all()):
            return float("inf")
        # relative to each output's size: gradients of parameters are sums over many rows
        size = float(exact[finite].norm()) or 1.0
        distance += (float((own - guess)[finite].norm()) / size) ** 2
        error += (float((own - exact)[finite].norm()) / size) ** 2
    return (distance / error) ** 0.5 if error else None


# --- a mistake that rounds -----------------------------------------------------------------------


def _is_one_pass(target: Implementation, failures: Sequence[Judged]) -> bool:
    """Whether every failed case keeps the bound of one pass; in one of them it must be finite.

    One case must be clearly beyond the bound of the target.
    """
    if not any(trial.outputs_beyond(_CLEAR_RATIO) for trial in failures):
        return False
    small = [trial for trial in failures if trial.case.rows * trial.case.hidden <= _MOST_ELEMENTS]
    found = set()
    for trial in sorted(small, key=_largest_error, reverse=True)[:_MOST_JUDGED]:
        case, bound = trial.case, error_bound_of(target, trial.case)
        outputs = attempt(target, case, is_judged=False).outputs
        if outputs is None or bound.algorithm is Algorithm.ONE_PASS:
            return False
        bound = replace(bound, algorithm=Algorithm.ONE_PASS, reduction=Reduction.SEQUENTIAL)
        inputs, reference = exact_of(case)
        found.add(status_of(bound_ratios(outputs, inputs, case, bound, reference)))
    return Status.OK in found and Status.WRONG not in found


def _largest_error(trial: Judged) -> float:
    return max((output.bound_ratio or 0.0 for output in trial.ratios), default=0.0)
