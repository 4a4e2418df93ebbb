"""Why do cases fail? The known mistakes that give the same outputs, and where they show.

A mutant matches if, on every input where the target is clearly wrong, the distance between the two
is small compared to the error of the target. All outputs are compared together first, and one by
one if no mutant matches them together. Two functions that round in the same narrow way still round
differently, so that no mutant matches: their mistake has a bound of its own, or a known result.
Each dtype is explained by itself, since a function may have another mistake in each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from harness.mutants import WRONG, Mutant
from harness.numerics.bounds import ErrorBound, error_bound_of
from harness.numerics.error_measurement import bound_ratios
from harness.numerics.outputs import OUTPUTS, Outputs
from harness.numerics.verdict import status_of
from harness.records import Case, Direction, Status
from harness.records.finding import Finding, Severity
from harness.run.attempt import Judged, attempt, exact_of
from harness.run.integrity import process_state_restored
from harness.verify.cases.plan import first_case
from harness.verify.scope import fitted
from harness.verify.where import Further, conditions_of_failures
from implementations.contract import Algorithm, Implementation, Reduction
from implementations.native import native

__all__ = ["causes_of", "mistakes_of", "narrow_sums"]

_MATCH_RATIO = 0.2
"""Of the target's own error; the right mutant leaves less than 0.03 of it, any other over 0.5."""
_CLEAR_RATIO = 10  # times the bound; closer to it, most of the error is rounding
_MOST_COMPARED = 4  # cases of different kinds; trade-off: each is run on every mutant
_MOST_MISTAKES = 3  # what a person reads
_MOST_ELEMENTS = 1 << 15  # of one case, which is run on every mutant
_MOST_JUDGED = 40  # failures, those with the largest errors first
_ROWS = 4100  # more ones than bfloat16 (256) and float16 (2048) can count

Mistake = tuple[str, tuple[str, ...]]
"""What a target does, as the end of a sentence that begins with "it"; the outputs that show it."""


def causes_of(
    target: Implementation, failures: Sequence[Judged], trials: Sequence[Judged], further: Further
) -> Iterator[Finding]:
    """Yield known mistakes that explain the failures, best first, and where those are.

    Args:
        target: what failed.
        failures: its failed cases.
        trials: all of its cases.
        further: tries further cases.
    """
    by_dtype = {
        dtype: [trial for trial in failures if trial.case.dtype == dtype]
        for dtype in dict.fromkeys(trial.case.dtype for trial in failures)
    }
    for dtype, failed in by_dtype.items():
        for text, outputs in mistakes_of(target, failed):
            shown = "" if len(outputs) > 1 else f", as {outputs[0]} shows"
            yield Finding("mistake", Severity.CAUSE, f"{text}{shown}", (dtype,), outputs)
    for dtype, failed in by_dtype.items():
        if any(trial.status is Status.CRASHED for trial in failed):
            continue  # a further case may crash, too
        tried = [trial for trial in trials if trial.case.dtype == dtype]
        for outputs, conditions in conditions_of_failures(tried, further):
            what = "wrong" if "y" in outputs else f"{', '.join(outputs)} wrong"
            where = f"where {' and '.join(part.text for part in conditions)}"
            text = f"{what} {where if conditions else 'at every size, in every layout and mode'}"
            yield Finding("trigger", Severity.CAUSE, text, (dtype,), conditions)


def mistakes_of(target: Implementation, failures: Sequence[Judged]) -> list[Mistake]:
    """Return the known mistakes that explain failures in one dtype, best first."""
    # a function that normalises the last axis alone has another mistake where there are more
    on_one_axis = [trial for trial in failures if trial.case.normalized_dims == 1]
    for kept in (failures, on_one_axis or failures):
        if found := list(_matching(_clear_failures(target, kept), OUTPUTS)):
            return found
    if (text := _explained_by_bound(target, failures)) is not None:
        return [(text, OUTPUTS)]
    found = [*narrow_sums(target, failures)]
    explained = {name for _, outputs in found for name in outputs}
    for name in OUTPUTS:
        if name not in explained:
            found += [*_matching(_clear_failures(target, failures, name), (name,))][:1]
    return found


# --- mutants -------------------------------------------------------------------------------------


def _clear_failures(
    target: Implementation, failures: Iterable[Judged], name: str | None = None
) -> dict[Case, Outputs]:
    """Return small, clear failures of different kinds, each with the outputs of the target.

    Rows of one element come last, and before them rows that are not normal: where the variance is
    0 or overflows, right and wrong code differ by NaN and by the order of operations.

    Args:
        target: what failed.
        failures: its failed cases.
        name: of the output that is clearly wrong; None for any.
    """

    def rank(trial: Judged) -> tuple[bool, bool, int]:
        case = trial.case
        return case.hidden == 1, case.distribution != "normal", case.rows * case.hidden

    clear: dict[tuple[object, ...], Case] = {}
    for trial in sorted(failures, key=rank):
        case, wrong = trial.case, trial.outputs_beyond(_CLEAR_RATIO)
        if (name in wrong if name else wrong) and 16 <= case.rows * case.hidden <= _MOST_ELEMENTS:
            values = (case.distribution, case.affine, case.grad_output, case.parameters)
            clear.setdefault((*values, case.normalized_dims, case.eps), case)
    found = ((case, _outputs_of(target, case)) for case in [*clear.values()][:_MOST_COMPARED])
    return {case: outputs for case, outputs in found if outputs is not None}


def _outputs_of(target: Implementation, case: Case) -> Outputs | None:
    """Return the outputs for ``case``; None if the target raises or violates its contract."""
    return attempt(target, case, is_judged=False).outputs


def _matching(computed: Mapping[Case, Outputs], names: tuple[str, ...]) -> Iterator[Mistake]:
    """Yield the mutants that match the named outputs in every case, best first."""
    left = {mutant.mistake: _most_unexplained(mutant, computed, names) for mutant in WRONG}
    matching = [mistake for mistake, ratio in left.items() if ratio < _MATCH_RATIO]
    for mistake in sorted(matching, key=left.__getitem__)[:_MOST_MISTAKES]:
        yield mistake, names


def _most_unexplained(
    mutant: Mutant, computed: Mapping[Case, Outputs], names: tuple[str, ...]
) -> float:
    """Return the largest distance over the cases, up to the first one without a match."""
    wrong = replace(native, name=mutant.name, function=mutant.fresh(), declared=False)
    found: list[float] = []
    for case, outputs in computed.items():
        if case.dtype in mutant.dtypes:
            with process_state_restored():  # some mutants change it
                if mutant.keeps_state:  # it must start from the target's state
                    _outputs_of(wrong, first_case(mutant.name, case.dtype, case.device))
                suspected = _outputs_of(wrong, case)
            distance = _unexplained(outputs, suspected, case, names)
            found += [] if distance is None else [distance]
            if found and not max(found) < _MATCH_RATIO:
                break
    return max(found, default=float("inf"))


def _unexplained(
    target: Outputs, suspected: Outputs | None, case: Case, names: tuple[str, ...]
) -> float | None:
    """Return the distance of two results over the target's error; None without an error.

    Args:
        target: outputs of the target for ``case``.
        suspected: outputs that it would have with the suspected mistake.
        case: what was computed.
        names: of the outputs that are compared.
    """
    if suspected is None:
        return float("inf")
    distance = error = 0.0
    for name, exact in _exact(case).items():
        own, guess = getattr(target, name), getattr(suspected, name)
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


def _exact(case: Case) -> dict[str, Tensor]:
    """Return the exact outputs of a case, rounded to float64."""
    blocks = list(exact_of(case)[1])
    found = {"y": torch.cat([block.y[0] for block in blocks])}
    if blocks[0].dx is not None:
        found["dx"] = torch.cat([block.dx[0] for block in blocks if block.dx is not None])
        for name in ("dweight", "dbias"):
            found[name] = torch.stack([getattr(block, name)[0] for block in blocks]).sum(0)
    return found


# --- mistakes that round -------------------------------------------------------------------------


_BOUNDS: tuple[tuple[str, Callable[[ErrorBound], ErrorBound]], ...] = (
    (
        "computes float64 in float32",
        lambda bound: replace(bound, accumulate_dtype=torch.float32),
    ),
    (
        "computes the variance as E[x^2] - E[x]^2, which cancels where the mean is large beside "
        "the deviations",
        lambda bound: replace(bound, algorithm=Algorithm.ONE_PASS, reduction=Reduction.SEQUENTIAL),
    ),
)
"""Mistakes, and the error bound of a function that makes them; the strictest bound first."""


def _explained_by_bound(target: Implementation, failures: Sequence[Judged]) -> str | None:
    """Return the mistake whose bound every failed case keeps, and one with a finite bound.

    One case must be clearly beyond the bound of the target.
    """
    is_clear = any(trial.outputs_beyond(_CLEAR_RATIO) for trial in failures if trial.ratios)
    if not is_clear or not all(trial.ratios for trial in failures):
        return None
    small = [trial for trial in failures if trial.case.rows * trial.case.hidden <= _MOST_ELEMENTS]
    worst = sorted(small, key=_largest_error, reverse=True)[:_MOST_JUDGED]
    for text, loosened in _BOUNDS:
        found = set()
        for trial in worst:
            case, outputs = trial.case, _outputs_of(target, trial.case)
            bound = error_bound_of(target, case)
            if outputs is None or loosened(bound) == bound:
                break
            inputs, reference = exact_of(case)
            ratios = bound_ratios(outputs, inputs, case, loosened(bound), reference)
            found.add(status_of(ratios))
            if Status.WRONG in found:
                break
        else:
            if Status.OK in found:
                return text
    return None


def _largest_error(trial: Judged) -> float:
    return max(output.bound_ratio or 0.0 for output in trial.ratios)


def narrow_sums(target: Implementation, failures: Sequence[Judged]) -> Iterator[Mistake]:
    """Count to 4100 in dbias: a narrow sum stops where adding 1 no longer changes it."""
    if not any(trial.outputs_beyond() & {"dweight", "dbias"} for trial in failures):
        return
    first = first_case(target.name, failures[0].case.dtype, failures[0].case.device)
    backward = Direction.BACKWARD
    counting = fitted(target, first, shape=(_ROWS, 24), direction=backward, grad_output="ones")
    outputs = _outputs_of(target, counting)
    if outputs is not None and outputs.dbias is not None:
        counted = float(outputs.dbias.double().max())
        if counted < 0.9 * _ROWS:
            text = f"over the rows in {first.dtype} itself: {_ROWS} ones came to {counted:g}"
            yield f"adds up dweight and dbias {text}", ("dweight", "dbias")
