"""What is known of a case whose result was judged: its axes, facts of its x, and what failed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf, isnan

import torch

from harness.inputs import LAYOUTS, make_inputs
from harness.records import Affine, Case, Direction, Status
from harness.verify.trial import Trial
from harness.verify.trigger.axes import is_possible

__all__ = ["InputFacts", "Observation", "observation_of", "observations_of", "unseen"]

_MOST_ELEMENTS = 1 << 16  # of an x that is drawn again; facts of a larger one come from fewer rows
_MARGIN_RATIO = 3.0  # a case within this factor of its bound may be wrong or right by its rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFacts:
    """What can decide the path or the error of a kernel beside the axes: facts of x."""

    is_contiguous: bool
    is_row_dense: bool
    """Whether the elements of a row are adjacent in memory."""
    is_finite: bool
    """Whether x has neither NaN nor infinity."""
    offset_ratio: float
    """Largest |mean| / sqrt(variance + eps) of a finite row that is not constant; 0 without one."""
    least_variance_ratio: float
    """Smallest variance / eps of a finite row; infinite without eps."""
    largest: float
    """Largest finite magnitude in x."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One judged case."""

    case: Case
    judged: frozenset[str]
    """Outputs that were compared with a bound."""
    failed: frozenset[str]
    """Outputs outside their bound; empty if the result is right."""
    ratio: float
    """Largest error over its bound."""
    facts: InputFacts

    @property
    def is_clear(self) -> bool:
        """Whether the error is not so close to its bound that rounding decides the outcome."""
        return not 1 / _MARGIN_RATIO < self.ratio <= _MARGIN_RATIO


def observation_of(trial: Trial) -> Observation | None:
    """Return what a trial shows; None if its result was not judged, or has no guarantee."""
    if trial.status not in {Status.OK, Status.WRONG, Status.CRASHED}:
        return None
    ratios = {
        each.output: each.bound_ratio for each in trial.ratios if each.bound_ratio is not None
    }
    failed = frozenset(name for name, ratio in ratios.items() if not ratio <= 1)
    if trial.status is not Status.OK and not failed:  # a wrong shape or dtype, or no result
        failed = frozenset({"y"})
    worst = max((inf if isnan(each) else each for each in ratios.values()), default=inf)
    return Observation(
        case=trial.case,
        judged=frozenset(ratios) | failed,
        failed=failed,
        ratio=worst,
        facts=_facts(trial.case),
    )


def observations_of(trials: Collection[Trial]) -> list[Observation]:
    """Return what the trials show, one observation per case."""
    found = (observation_of(trial) for trial in trials if is_possible(trial.case))
    return [each for each in found if each is not None]


def unseen(case: Case) -> Observation:
    """Return what is known of a case before it is tried."""
    return Observation(
        case=case, judged=frozenset(), failed=frozenset(), ratio=0.0, facts=_facts(case)
    )


def _facts(case: Case) -> InputFacts:
    """Return the facts of the x of ``case``."""
    plain = Case(
        implementation="",
        shape=case.shape,
        normalized_dims=case.normalized_dims,
        dtype=case.dtype,
        distribution=case.distribution,
        layout=case.layout,
        affine=Affine.NONE,
        eps=case.eps,
        seed=case.seed,
        direction=Direction.FORWARD,
    )
    return _facts_of_x(plain)


@lru_cache(maxsize=4096)
def _facts_of_x(case: Case) -> InputFacts:
    laid_out = LAYOUTS[case.layout](torch.empty(case.shape, device="meta"))
    if case.rows * case.hidden > _MOST_ELEMENTS:
        few = max(_MOST_ELEMENTS // case.hidden, 1)
        case = replace(case, shape=(min(few, case.rows), case.hidden), normalized_dims=1)
        case = replace(case, layout="contiguous")
    x = make_inputs(case).x.double().reshape(case.rows, case.hidden)
    finite = x[torch.isfinite(x).all(-1)]
    scale = finite.abs().amax(-1, keepdim=True).clamp(min=1e-300) if len(finite) else finite
    unit = finite / scale  # so that squares do not overflow
    centre = unit.mean(-1, keepdim=True)
    spread, centre = (unit - centre).square().mean(-1), centre.abs()[:, 0]
    varies = (unit != unit[:, :1]).any(-1)
    eps = case.eps / scale[:, 0].square() if len(finite) else spread
    offsets = (centre / (spread + eps).sqrt())[varies]
    variances = (spread / eps) if case.eps else torch.full_like(spread, inf)
    return InputFacts(
        is_contiguous=laid_out.is_contiguous(),
        is_row_dense=laid_out.stride(-1) == 1 or laid_out.shape[-1] == 1,
        is_finite=len(finite) == len(x),
        offset_ratio=float(offsets.amax()) if len(offsets) else 0.0,
        least_variance_ratio=float(variances.amin()) if len(finite) else inf,
        largest=float(finite.abs().amax()) if finite.numel() else 0.0,
    )
