"""How much of a target's error a suspected mistake leaves unexplained."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from harness.numerics.outputs import Outputs
from harness.records import Case
from harness.verify.trial import exact_of

__all__ = ["MATCH_RATIO", "unexplained"]

MATCH_RATIO = 0.2
"""Of the target's own error; the right mutant leaves less than 0.03 of it, any other over 0.5."""


def unexplained(
    target: Outputs, suspected: Outputs, case: Case, names: tuple[str, ...]
) -> float | None:
    """Return the distance of two results over the target's error; None without an error.

    Args:
        target: outputs of the target for ``case``.
        suspected: outputs that it would have with the suspected mistake.
        case: what was computed.
        names: of the outputs that are compared.
    """
    distance = error = 0.0
    for name, exact in _exact(case).items():
        own, guess = getattr(target, name), getattr(suspected, name)
        if name not in names or own is None or guess is None:
            continue
        # right outputs and mistakes round too: only the distance to the rounded result is an error
        exact = exact.to(own.dtype)
        # on the CPU, where the exact result is
        own, guess, exact = (each.cpu().double().flatten() for each in (own, guess, exact))
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
    _, reference = exact_of(replace(case, implementation=""))
    blocks = list(reference)
    found = {"y": torch.cat([each.y[0] for each in blocks])}
    if blocks[0].dx is not None:
        found["dx"] = torch.cat([each.dx[0] for each in blocks if each.dx is not None])
        for name in ("dweight", "dbias"):
            found[name] = torch.stack([getattr(each, name)[0] for each in blocks]).sum(0)
    return found
