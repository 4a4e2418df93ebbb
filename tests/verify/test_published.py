"""Published modules and functions get the verdict that a reader of their code would give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from factories import published
from factories.small_catalogue import use_small_catalogue
from factories.verify_targets import quick
from torch import nn

from harness.records import Affine, RemarkKind
from harness.records.finding import OF_NATIVE
from harness.verify import Outcome

BOTH, WEIGHT, NONE = Affine.BOTH, Affine.WEIGHT, Affine.NONE
EVERY = (BOTH, WEIGHT, NONE, Affine.BIAS)
LAST, CHANNELS = "the last axis", "the channel axis (axis 1) of x"
TRAILING = "any number of trailing axes"
EPS = RemarkKind.DEFAULT_EPS
OF_RAW_POINTERS = (
    RemarkKind.DECLINES_EMPTY,
    RemarkKind.DECLINES_LAYOUT,
    RemarkKind.MALFORMED_ARGUMENTS,
    RemarkKind.SECOND_DERIVATIVE_MISSING,
)


@dataclass(frozen=True, kw_only=True)
class Right:
    """The scope and remarks expected of a true LayerNorm."""

    target: Any
    axes: str = LAST
    eps: float | None = None
    """The fixed eps; None if the caller chooses."""
    affines: tuple[Affine, ...] = (BOTH,)
    ranks: tuple[int, ...] | None = None
    remarks: tuple[RemarkKind, ...] = ()
    init: Mapping[str, object] = field(default_factory=dict)
    in_full: bool = False
    """Whether the contract checks are run and the source is read, too."""


CHANNELS_FIRST = {"data_format": "channels_first"}
RIGHT = (
    Right(target=published.NanoGPT, eps=1e-5, affines=(BOTH, WEIGHT)),
    Right(
        target=published.ConvNeXt,
        axes=CHANNELS,
        remarks=(EPS, RemarkKind.NEVER_TRIED),
        init=CHANNELS_FIRST,
        in_full=True,
    ),
    Right(target=published.XTransformers, eps=1e-5, affines=(WEIGHT,)),
    Right(target=published.trained(), eps=1e-6, remarks=(EPS,)),
    Right(target=nn.LayerNorm, axes=TRAILING, affines=(BOTH, WEIGHT, NONE)),
    Right(target=published.batch_time_channels, affines=EVERY, ranks=(3,)),
    Right(target=published.weight_required, affines=(WEIGHT,), remarks=(EPS,)),
    Right(
        target=published.broadcasts,
        axes=TRAILING,
        affines=EVERY,
        remarks=(RemarkKind.MALFORMED_ARGUMENTS,),
        in_full=True,
    ),
    Right(target=published.RawPointers, remarks=OF_RAW_POINTERS, in_full=True),
)


# torch warns of a variance over one element
@pytest.mark.filterwarnings(r"ignore:var.*degrees of freedom is <= 0:UserWarning")
@pytest.mark.parametrize(
    "right",
    RIGHT,
    ids=lambda right: getattr(right.target, "__name__", str(right.target))[:60],
)
def test_a_true_layer_norm_passes_within_its_scope(
    right: Right, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = right.in_full
    use_small_catalogue(monkeypatch, largest=4100, one_in=10, contract=full, source=full)
    verdict = quick(right.target, fail_fast=True, init=right.init)
    assert [own.text for own in (*verdict.failures, *verdict.violations)] == []
    assert verdict.outcome is Outcome.RIGHT
    assert verdict.declined == ()  # nothing outside the scope is tried
    assert (verdict.scope.axes, verdict.scope.eps) == (right.axes, right.eps)
    assert verdict.scope.taken("affine") == right.affines
    assert right.ranks in {None, verdict.scope.taken("ndim")}
    remarks = dict.fromkeys(own.kind for own in verdict.remarks if own.kind not in OF_NATIVE)
    assert tuple(remarks) == right.remarks
    assert ("eps" in verdict.coverage) is (right.eps is None)
    assert ("normalized_axes" in verdict.coverage) is (right.axes == TRAILING)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (published.T5LayerNorm, "RMSNorm"),
        (published.Nemotron, "LayerNorm with 1 + weight"),
        (nn.GroupNorm(8, 32), "GroupNorm with 8 groups"),
        (nn.InstanceNorm2d, "InstanceNorm"),
        (nn.Identity, "Identity"),
    ],
)
def test_another_normalisation_is_named(
    target: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_small_catalogue(monkeypatch, largest=1100, one_in=6, contract=False, source=False)
    verdict = quick(target, fail_fast=True)
    assert verdict.outcome is Outcome.WRONG
    assert verdict.instead == name


def test_a_required_constructor_argument_is_named() -> None:
    verdict = quick(nn.GroupNorm)
    assert verdict.outcome is Outcome.NOT_VERIFIED
    assert "--init 'num_groups=...'" in verdict.declined[0].text
