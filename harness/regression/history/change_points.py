"""Change points of a series: PELT (Killick, Fearnhead, Eckley 2012) as ruptures implements it.

The cost is the sum of squares around the mean of each segment, and the penalty is that of a
modified Bayesian information criterion. Chosen by experiments/history: on twenty runs E-divisive
with a t-test (apache-otava) finds as many changes and a few more false ones. It also fixes the
version of numpy, which is part of an environment's fingerprint.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from math import log

import numpy as np

from harness.records.refusal import Refusal

__all__ = [
    "LEAST_RUNS",
    "MISSING_DETECTOR",
    "DetectorError",
    "change_points",
    "has_detector",
    "spread_between",
]

MISSING_DETECTOR = "change points need ruptures: pip install 'layernorm-bench[history]'"
LEAST_RUNS = 8  # simulated: 5 false changes per 100 unchanged series of 8 runs, 8 of 6 runs
_LEAST_SEGMENT = 2  # runs: a single run that differs is no change
# In units of the variance and of log(runs). Simulated with normal noise: 2 false changes per 100
# unchanged series of 20 runs; a penalty of 3 gives 6.
_PENALTY = 4.0
# Standard deviation of a logarithm. The steadiest recorded cases spread by as much between
# processes; smaller shifts, such as of code that was placed elsewhere, are no change.
_LEAST_SPREAD = 0.002


class DetectorError(Refusal):
    """Change points cannot be searched."""


def has_detector() -> bool:
    """Whether change points can be searched."""
    return find_spec("ruptures") is not None


def spread_between(logarithms: Sequence[float]) -> float:
    """Return the standard deviation of a series that may have changes, from its differences.

    The root of half the mean squared successive difference (von Neumann 1941), to which a change
    adds only one term.
    """
    steps = np.diff(logarithms)
    return max(float(np.sqrt((steps**2).mean() / 2)) if len(steps) else 0.0, _LEAST_SPREAD)


def change_points(logarithms: Sequence[float]) -> tuple[int, ...]:
    """Return the places at which new segments begin; none if there are fewer than LEAST_RUNS.

    Raises:
        DetectorError: ruptures is not installed.
    """
    if len(logarithms) < LEAST_RUNS:
        return ()
    if not has_detector():
        raise DetectorError(MISSING_DETECTOR)
    from ruptures import KernelCPD

    signal = np.asarray(logarithms).reshape(-1, 1) / spread_between(logarithms)
    # a linear kernel is the sum of squares; this is PELT in C, a hundred times as fast as Pelt
    search = KernelCPD(kernel="linear", min_size=_LEAST_SEGMENT).fit(signal)
    found = search.predict(pen=_PENALTY * log(len(signal)))
    return tuple(int(place) for place in found[:-1])  # the last is the end of the series
